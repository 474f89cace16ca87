"""Reading a trace folder: what is damaged says so in one line, and nothing is read before asked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from weft.errors import DataError
from weft.formats.files import read_json
from weft.formats.folders import leftovers
from weft.formats.terms import TENSORS, Terms
from weft.formats.trace_files import file_digest
from weft.formats.trace_folder import (
    EDGE_COLUMNS,
    EDGES,
    FORMAT,
    KEY_COLUMNS,
    KEYS,
    MANIFEST,
    QUERIES_KEYS,
    ROW_COLUMNS,
    ROWS,
    VERSION,
    manifest_digest,
)
from weft.formats.verification import is_verification
from weft.mechanism.graph import AttentionGraph

__all__ = ["Digests", "StoredLayer", "open_folder"]

#: What every layer of the manifest must say, and how.
_LAYER: dict[str, type | tuple[type, ...]] = {
    "name": str,
    "kind": str,
    "index": int,
    "queries": str,
    "keys": str,
    "shape": list,
    "kept": int,
    "edges": int,
    "scale": (int, float),
    "positions": str,
    "mask": (str, type(None)),
    "symmetric": bool,
    "queries_keys": bool,
}
#: What it says of a module that was not traced.
_NOT_TRACED = ("name", "class", "reason")
_REMEDY = "Trace the model again."
_MAKE = "Check the path, or make a trace: weft trace."
_AGAIN = "Give the command that writes it again: it removes what is left, and begins anew."


def open_folder(path: Path | str) -> tuple[Path, dict[str, Any]]:
    """Check a trace folder as far as can be done without reading its tables.

    Returns: the folder and its manifest.

    Raises: DataError: it is missing, half-written, damaged, or of a newer version.
    """
    folder = Path(path)
    if not folder.exists():
        raise DataError(f"{folder}: no such trace{_why_missing(folder)}")
    if not folder.is_dir():
        raise DataError(
            f"{folder}: not a trace: a trace is a folder with {MANIFEST} in it. Check the path."
        )
    if not (folder / MANIFEST).exists():
        started = any((folder / name).exists() for name in (EDGES, ROWS))
        what = "a half-written trace" if started else "not a trace"
        raise DataError(f"{folder}: {what}: it has no {MANIFEST}. {_AGAIN if started else _MAKE}")
    manifest = read_json(folder / MANIFEST, "trace")
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise DataError(f"{folder}: not a trace: {MANIFEST} does not say that it is a {FORMAT}.")
    version = manifest.get("version")
    if isinstance(version, int) and version > VERSION:
        raise DataError(
            f"{folder}: a trace of version {version}, made by weft {manifest.get('weft')}; this "
            f"weft reads up to version {VERSION}. Upgrade weft: pip install -U weft."
        )
    problem = _problem(folder, manifest)
    if problem:
        raise DataError(f"{folder}: this trace is damaged: {problem}. {_REMEDY}")
    return folder, manifest


def _why_missing(folder: Path) -> str:
    """The end of the line for a trace that is not there: what can be done."""
    left = leftovers(folder)
    if left.written:
        return ": it is being written. Wait for that to end."
    if left.old:
        return (
            f": a kill came while it was replaced. What was there is {left.old[0].name}; give the "
            "same command again: it puts that back first."
        )
    if left.parts:
        return f": its writing was interrupted, and left {left.parts[0].name}. {_AGAIN}"
    return ". Check the path."


def _problem(folder: Path, manifest: dict[str, Any]) -> str | None:
    """What is wrong with a manifest or with the files it names; None: nothing."""
    if manifest.get("version") != VERSION:
        return f"{MANIFEST} names no version"
    sequences, layers, files = (manifest.get(name) for name in ("sequences", "layers", "files"))
    if not isinstance(manifest.get("model"), dict):
        return f"{MANIFEST} says nothing of the model"
    if not isinstance(sequences, dict) or not all(
        isinstance(tokens, list) and all(isinstance(token, str) for token in tokens)
        for tokens in sequences.values()
    ):
        return f"{MANIFEST} has no sequences of tokens"
    positions = manifest.get("positions", {})
    if not isinstance(positions, dict) or not all(
        name in sequences
        and isinstance(known, dict)
        and all(isinstance(of, list) and len(of) == len(sequences[name]) for of in known.values())
        and all(isinstance(text, str) for text in known.get("texts", ()))
        for name, known in positions.items()
    ):
        return f"{MANIFEST} describes positions that do not fit its sequences"
    if not is_verification(manifest.get("verification")):
        return f"{MANIFEST} says nothing clear of how it was verified"
    without = manifest.get("not_traced", [])
    if not isinstance(without, list) or not all(
        isinstance(entry, dict) and all(isinstance(entry.get(name), str) for name in _NOT_TRACED)
        for entry in without
    ):
        return f"{MANIFEST} names modules that were not traced, not all with {_NOT_TRACED}"
    if not isinstance(layers, list) or not layers:
        return f"{MANIFEST} has no layers"
    for number, layer in enumerate(layers):
        problem = _layer_problem(layer, sequences)
        if problem:
            return f"{MANIFEST}, layer {number}: {problem}"
    if not isinstance(files, dict):
        return f"{MANIFEST} names no files"
    needed = [EDGES, ROWS]
    if any(layer["queries_keys"] for layer in layers):
        needed.append(QUERIES_KEYS)
    if any(layer.get("value_norms") is not None for layer in layers):
        needed.append(KEYS)
    for name in needed:
        if not isinstance(files.get(name), dict):
            return f"{MANIFEST} does not name {name}"
        try:
            size = (folder / name).stat().st_size
        except OSError:
            return f"{name} is missing"
        if size != files[name].get("bytes"):
            return f"{name} has {size} bytes, expected {files[name].get('bytes')}"
    # A trace of an older weft has no digests at all.
    sealed = "sha256" in manifest or any("sha256" in files[name] for name in needed)
    if sealed and manifest.get("sha256") != manifest_digest(manifest):
        return f"{MANIFEST} does not match its digest"
    return None


def _layer_problem(layer: Any, sequences: dict[str, list[str]]) -> str | None:
    if not isinstance(layer, dict):
        return "not an object"
    for name, kind in _LAYER.items():
        if name not in layer or not isinstance(layer[name], kind):
            return f"{name} is missing or of the wrong type"
    for name in ("softcap", "deviation"):
        if not isinstance(layer.get(name), int | float | None):
            return f"{name} is of the wrong type"
    shape = layer["shape"]
    if len(shape) != 3 or not all(isinstance(size, int) and size >= 0 for size in shape):
        return "shape is not (heads, queries, keys)"
    for name, size in (("queries", shape[1]), ("keys", shape[2])):
        if len(sequences.get(layer[name], ())) != size or layer[name] not in sequences:
            return f"its {name} do not fit the tokens of {layer[name]!r}"
    if not 0 <= layer["kept"] <= max(shape[2], 0):
        return f"{layer['kept']} edges a row of {shape[2]} keys"
    return _terms_problem(layer, shape[0])


def _terms_problem(layer: dict[str, Any], heads: int) -> str | None:
    """What is wrong with what a layer says of its mask, terms and values, if it says anything."""
    window, terms = layer.get("window"), layer.get("terms")
    if window is not None and not (
        isinstance(window, list)
        and len(window) == 3
        and all(isinstance(side, int | None) and (side is None or side >= 0) for side in window[:2])
        and isinstance(window[2], int)
    ):
        return "window is not [left, right, offset]"
    if terms is not None and not (
        isinstance(terms, dict)
        and isinstance(terms.get("missing"), str | None)
        and isinstance(terms.get("offset"), int)
        and isinstance(terms.get("tensors"), list)
        and set(terms["tensors"]) <= set(TENSORS)
    ):
        return "terms are of the wrong type"
    norms = layer.get("value_norms")
    if norms is not None and (not isinstance(norms, int) or norms < 1 or heads % norms):
        return "value_norms are of the wrong type"
    return None


class Digests:
    """The digests of the files of a trace, each verified once, when the file is first read."""

    def __init__(self, folder: Path, manifest: Mapping[str, Any]) -> None:
        self._folder = folder
        self._open = {
            name: entry["sha256"]
            for name, entry in manifest["files"].items()
            if isinstance(entry, dict) and "sha256" in entry
        }

    def verify(self, name: str) -> None:
        """Raises: ValueError: the file is not as it was written."""
        expected = self._open.get(name)
        if expected is None:
            return
        if file_digest(self._folder / name) != expected:
            raise ValueError("the file does not match its digest")
        del self._open[name]


@dataclass(frozen=True)
class StoredLayer:
    """The numbers of a layer, on disk."""

    folder: Path
    number: int
    entry: dict[str, Any]
    digests: Digests

    def graph(self) -> AttentionGraph:
        """See LayerData."""
        heads, queries, length = self.entry["shape"]
        kept = self.entry["kept"]
        with self._reading(EDGES):
            edges = self._table(EDGES, EDGE_COLUMNS)
            keys, scores, weights = _slots(edges, heads, queries, length, kept)
        totals = self._rows()
        return AttentionGraph(
            keys, scores, weights, **totals, length=length, symmetric=self.entry["symmetric"]
        )

    def lse(self) -> Tensor:
        """See LayerData."""
        return self._rows()["lse"]

    def _rows(self) -> dict[str, Tensor]:
        heads, queries, _ = self.entry["shape"]
        with self._reading(ROWS):
            rows = self._table(ROWS, ROW_COLUMNS)
            if not np.array_equal(
                rows["head"] * np.int64(queries) + rows["query"], np.arange(heads * queries)
            ):
                raise ValueError("its rows are not those of every head and query")
            totals = {
                name: torch.from_numpy(rows[name].reshape(heads, queries).copy())
                for name in ("lse", "entropy", "rest", "count")
            }
        totals["count"] = totals["count"].long()
        return totals

    def queries_keys(self) -> tuple[Tensor, Tensor] | None:
        """See LayerData."""
        if not self.entry["queries_keys"]:
            return None
        heads, queries, length = self.entry["shape"]
        with self._reading(QUERIES_KEYS):
            self.digests.verify(QUERIES_KEYS)
            from_queries, from_keys = self._stored(heads, queries, length)
        return from_queries, from_keys

    def terms(self) -> Terms | None:
        """See LayerData."""
        said = self.entry.get("terms")
        if said is None:
            return None
        heads, queries, length = self.entry["shape"]
        found: dict[str, Tensor] = {}
        if said["tensors"]:
            with self._reading(QUERIES_KEYS):
                self.digests.verify(QUERIES_KEYS)
                sizes = {
                    "1": (1,), "2": (2,), "h": (heads,), "1h": (1, heads), "q": (queries,),
                    "1q": (1, queries), "1k": (1, length), "n": (queries + length - 1,),
                }  # fmt: skip
                with safe_open(self.folder / QUERIES_KEYS, framework="pt") as file:
                    for name in said["tensors"]:
                        tensor: Tensor = file.get_tensor(f"layers.{self.number}.{name}")
                        expected = TENSORS[name]
                        if tensor.ndim != len(expected) or any(
                            want in sizes and size not in sizes[want]
                            for size, want in zip(tensor.shape, expected, strict=True)
                        ):
                            raise ValueError(f"{name} does not fit the layer")
                        found[name] = tensor
        return Terms.stored(said, self.entry.get("window"), found, queries)

    def value_norms(self) -> Tensor | None:
        """See LayerData."""
        kv_heads = self.entry.get("value_norms")
        if kv_heads is None:
            return None
        length = self.entry["shape"][2]
        with self._reading(KEYS):
            rows = self._table(KEYS, KEY_COLUMNS)
            places = rows["kv_head"] * np.int64(length) + rows["key"]
            if not np.array_equal(places, np.arange(kv_heads * length)):
                raise ValueError("its rows are not those of every kv head and key")
            return torch.from_numpy(rows["value_norm"].reshape(kv_heads, length).copy())

    def _stored(self, heads: int, queries: int, length: int) -> tuple[Tensor, Tensor]:
        with safe_open(self.folder / QUERIES_KEYS, framework="pt") as file:
            from_queries: Tensor = file.get_tensor(f"layers.{self.number}.queries")
            from_keys: Tensor = file.get_tensor(f"layers.{self.number}.keys")
            if (
                from_queries.shape[:2] != (heads, queries)
                or from_keys.ndim != 3
                or from_keys.shape[1] != length
                or not from_keys.shape[0]
                or heads % from_keys.shape[0]
            ):
                raise ValueError("queries and keys do not fit the layer")
        return from_queries, from_keys

    def _table(self, name: str, columns: tuple[str, ...]) -> dict[str, np.ndarray[Any, Any]]:
        """The row groups of this layer."""
        self.digests.verify(name)
        with pq.ParquetFile(self.folder / name, page_checksum_verification=True) as file:
            if file.schema_arrow.names != list(columns):
                raise ValueError(f"it has the columns {', '.join(file.schema_arrow.names)}")
            groups = []
            for number in range(file.num_row_groups):
                statistics = file.metadata.row_group(number).column(0).statistics
                if statistics is None or statistics.min <= self.number <= statistics.max:
                    groups.append(number)
            table = file.read_row_groups(groups)
            table = table.filter(pc.equal(table["layer"], self.number))
        if table.column("layer").null_count or any(column.null_count for column in table.columns):
            raise ValueError("it has missing values")
        return {name: table.column(name).to_numpy() for name in columns}

    def verify(self, name: str) -> None:
        """Raise a DataError unless a file of the trace is as it was written."""
        with self._reading(name):
            self.digests.verify(name)

    @contextmanager
    def _reading(self, name: str) -> Iterator[None]:
        """Errors of the libraries that read a file, as the one line that says which."""
        try:
            yield
        except FileNotFoundError:
            raise DataError(
                f"{self.folder}: this trace is damaged: {name} is missing. {_REMEDY}"
            ) from None
        except DataError:
            raise
        except (pa.ArrowException, SafetensorError, OSError, ValueError, KeyError) as error:
            reason = (str(error).splitlines() or ["unreadable"])[0].rstrip(".")
            raise DataError(
                f"{self.folder}: this trace is damaged: {name}, layer {self.number}: {reason}. "
                f"{_REMEDY}"
            ) from error


def _slots(
    edges: dict[str, np.ndarray[Any, Any]], heads: int, queries: int, length: int, kept: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Edges one below the other -> keys, scores, weights of (heads, queries, kept)."""
    for name, size in (("head", heads), ("query", queries), ("key", length)):
        column = edges[name]
        if len(column) and not 0 <= column.min() <= column.max() < size:
            raise ValueError(f"a {name} is not in 0 to {size - 1}")
    rows = edges["head"].astype(np.int64) * queries + edges["query"]
    if np.any(np.diff(rows) < 0):
        raise ValueError("edges are out of order")
    starts = np.searchsorted(rows, np.arange(heads * queries))
    places = np.arange(len(rows)) - starts[rows]
    if len(places) and places.max() >= kept:
        raise ValueError(f"a row has more than {kept} edges")
    keys = np.full((heads * queries, kept), -1, np.int64)
    scores = np.full((heads * queries, kept), -np.inf, np.float32)
    weights = np.zeros((heads * queries, kept), np.float32)
    keys[rows, places] = edges["key"]
    scores[rows, places] = edges["score"]
    weights[rows, places] = edges["weight"]
    shape = (heads, queries, kept)
    return tuple(torch.from_numpy(part.reshape(shape)) for part in (keys, scores, weights))  # type: ignore[return-value]
