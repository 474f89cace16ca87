"""The trace folder: an attention trace on disk, in open formats that other tools read.

    trace.json                   model, token sequences, layers, sizes and digests of the files
    edges.parquet                layer, head, query, key, score, weight: one row per kept edge
    rows.parquet                 layer, head, query, lse, entropy, rest, count: one per query
    keys.parquet                 optional: layer, kv_head, key, value_norm: one per key
    queries_keys.safetensors     optional: layers.<n>.queries and layers.<n>.keys, and what else
                                 enters the scores: see weft.formats.terms

`layer` is the position in the list of layers of trace.json, from 0, as are head, query and key.
Both tables are in the order layer, head, query; a query's edges come strongest first. Each layer
is a row group of its own, so that one is read without the others. Nothing is ever unpickled.

A trace is written layer by layer, so that memory holds one layer at most, into a temporary folder
that is renamed when it is whole.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from weft.errors import DataError, InputError
from weft.formats.files import atomic_folder
from weft.formats.terms import Terms
from weft.mechanism.graph import AttentionGraph
from weft.version import __version__

__all__ = [
    "EDGES",
    "EDGE_COLUMNS",
    "FORMAT",
    "KEYS",
    "KEY_COLUMNS",
    "MANIFEST",
    "QUERIES_KEYS",
    "ROWS",
    "ROW_COLUMNS",
    "STORED_TYPES",
    "VERSION",
    "TraceWriter",
    "edge_table",
    "file_digest",
    "key_table",
    "manifest_digest",
    "not_a_trace",
    "row_table",
    "writing_trace",
]

FORMAT = "weft-trace"
#: Raised when an older weft could not read what this one writes.
VERSION = 1

MANIFEST = "trace.json"
EDGES = "edges.parquet"
ROWS = "rows.parquet"
KEYS = "keys.parquet"
QUERIES_KEYS = "queries_keys.safetensors"

EDGE_COLUMNS = ("layer", "head", "query", "key", "score", "weight")
ROW_COLUMNS = ("layer", "head", "query", "lse", "entropy", "rest", "count")
KEY_COLUMNS = ("layer", "kv_head", "key", "value_norm")

#: Number types of stored queries and keys, by the names of safetensors.
STORED_TYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}

_PARQUET: dict[str, Any] = {
    "compression": "zstd",
    "use_dictionary": ["layer", "head", "query"],
    "write_page_checksum": True,
    "store_schema": False,
}


def _numbers(tensor: Tensor) -> np.ndarray[Any, Any]:
    return tensor.detach().cpu().contiguous().float().numpy().ravel()


def edge_table(layer: int, graph: AttentionGraph) -> pa.Table:
    """The kept edges of a graph, as they lie in edges.parquet."""
    keys = graph.keys.detach().cpu()
    kept = keys >= 0
    heads, queries = keys.shape[:2]
    edges = kept.sum(-1).numpy().ravel()
    head = np.repeat(np.arange(heads, dtype=np.int16), queries)
    query = np.tile(np.arange(queries, dtype=np.int32), heads)
    return pa.table(
        {
            "layer": pa.array(np.full(edges.sum(), layer, np.int16)),
            "head": pa.array(np.repeat(head, edges)),
            "query": pa.array(np.repeat(query, edges)),
            "key": pa.array(keys[kept].numpy().astype(np.int32)),
            "score": pa.array(_numbers(graph.scores.detach().cpu()[kept])),
            "weight": pa.array(_numbers(graph.weights.detach().cpu()[kept])),
        }
    )


def row_table(layer: int, graph: AttentionGraph) -> pa.Table:
    """The rows of a graph, as they lie in rows.parquet."""
    heads, queries = graph.lse.shape
    return pa.table(
        {
            "layer": pa.array(np.full(heads * queries, layer, np.int16)),
            "head": pa.array(np.repeat(np.arange(heads, dtype=np.int16), queries)),
            "query": pa.array(np.tile(np.arange(queries, dtype=np.int32), heads)),
            "lse": pa.array(_numbers(graph.lse)),
            "entropy": pa.array(_numbers(graph.entropy)),
            "rest": pa.array(_numbers(graph.rest)),
            "count": pa.array(graph.count.detach().cpu().numpy().ravel().astype(np.int32)),
        }
    )


def key_table(layer: int, value_norms: Tensor) -> pa.Table:
    """The norms of a layer's values, as they lie in keys.parquet."""
    kv_heads, keys = value_norms.shape
    return pa.table(
        {
            "layer": pa.array(np.full(kv_heads * keys, layer, np.int16)),
            "kv_head": pa.array(np.repeat(np.arange(kv_heads, dtype=np.int16), keys)),
            "key": pa.array(np.tile(np.arange(keys, dtype=np.int32), kv_heads)),
            "value_norm": pa.array(_numbers(value_norms)),
        }
    )


def file_digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def manifest_digest(manifest: Mapping[str, Any]) -> str:
    """SHA-256 of what a manifest says, besides its own digest: of its JSON, in one writing."""
    # Read back, so that keys are texts, as they are for who reads the file.
    said = json.loads(json.dumps({k: v for k, v in manifest.items() if k != "sha256"}))
    text = json.dumps(said, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()


class _Table:
    """A Parquet file that grows by one row group a layer."""

    def __init__(self, path: Path, template: pa.Table) -> None:
        self.rows = 0
        floats = [f.name for f in template.schema if pa.types.is_floating(f.type)]
        self._writer = pq.ParquetWriter(
            path, template.schema, use_byte_stream_split=floats, **_PARQUET
        )

    def append(self, table: pa.Table) -> None:
        if table.num_rows:
            self._writer.write_table(table, row_group_size=table.num_rows)
            self.rows += table.num_rows

    def close(self) -> None:
        self._writer.close()


class _TensorFile:
    """A safetensors file that grows by a tensor at a time.

    The format puts its table of contents first, so the numbers are written beside it and joined
    to it at the end.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._part = path, path.with_suffix(".part")
        self._file: BinaryIO = self._part.open("wb")
        self._contents: dict[str, Any] = {"__metadata__": {"format": FORMAT}}
        self._names = {dtype: name for name, dtype in STORED_TYPES.items()}
        self._names[torch.int32] = "I32"

    def append(self, name: str, tensor: Tensor) -> None:
        start = self._file.tell()
        numbers = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
        self._file.write(numbers.data)
        self._contents[name] = {
            "dtype": self._names[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, self._file.tell()],
        }

    def close(self) -> None:
        self._file.close()

    def join(self) -> None:
        """Make the file of its two parts."""
        self.close()
        header = json.dumps(self._contents).encode()
        header += b" " * (-len(header) % 8)
        with self._path.open("wb") as whole, self._part.open("rb") as numbers:
            whole.write(len(header).to_bytes(8, "little") + header)
            shutil.copyfileobj(numbers, whole, 1 << 20)
        self._part.unlink()


class TraceWriter:
    """Takes the layers of a trace one after the other; made by `writing_trace`."""

    def __init__(
        self,
        folder: Path,
        sequences: Mapping[str, Sequence[str]],
        model: Mapping[str, Any],
        dtype: torch.dtype | None,
    ) -> None:
        self._folder = folder
        self._sequences = {name: list(tokens) for name, tokens in sequences.items()}
        self._model, self._dtype = dict(model), dtype
        self._positions: dict[str, Mapping[str, Any]] = {}
        self._layers: list[dict[str, Any]] = []
        self._tables: dict[str, _Table] = {}
        self._tensors: _TensorFile | None = None

    def add_sequence(self, name: str, tokens: Sequence[str]) -> None:
        """Name a sequence that is known only while the model runs, before its first layer."""
        self._sequences[name] = list(tokens)

    def describe(self, name: str, known: Mapping[str, Any]) -> None:
        """Say more of the tokens of a sequence: see Trace.positions."""
        self._positions[name] = dict(known)

    def append(
        self,
        name: str,
        kind: str,
        index: int,
        graph: AttentionGraph,
        *,
        queries_from: str,
        keys_from: str,
        scale: float,
        positions: str = "none",
        mask: str | None = None,
        softcap: float | None = None,
        deviation: float | None = None,
        queries_keys: tuple[Tensor, Tensor] | None = None,
        terms: Terms | None = None,
        value_norms: Tensor | None = None,
    ) -> None:
        """Write the next layer.

        Args:
            name: its path in the model.
            kind: "encoder", "decoder" or "cross".
            index: its place among the layers of its kind, from 0.
            graph: without a batch.
            queries_from, keys_from: the sequences that its queries and keys are made from.
            scale: the factor on its scores.
            positions: its relative positions: "none", "shaw", "alibi", "rotary" or "bias".
            mask: the rule of its mask where it is known: see TraceLayer.
            softcap: of its scores, where there is one.
            deviation: from the model's own attention, where it was measured.
            queries_keys: (heads, queries, depth) and (kv_heads, keys, depth), to be kept.
            terms: what else enters the scores; kept where queries and keys are.
            value_norms: (kv_heads, keys).
        """
        self._check(name, graph, queries_from, keys_from)
        number = len(self._layers)
        tables = {EDGES: edge_table(number, graph), ROWS: row_table(number, graph)}
        if value_norms is not None:
            tables[KEYS] = key_table(number, value_norms)
        for file, table in tables.items():
            if file not in self._tables:
                self._tables[file] = _Table(self._folder / file, table)
            self._tables[file].append(table)
        if queries_keys is not None:
            self._append_tensors(number, queries_keys, terms)
        self._layers.append(
            {
                "name": name,
                "kind": kind,
                "index": index,
                "queries": queries_from,
                "keys": keys_from,
                "shape": list(graph.shape),
                "kept": min(graph.k, graph.length),
                "edges": tables[EDGES].num_rows,
                "scale": scale,
                "positions": positions,
                "mask": mask,
                "window": None if terms is None else terms.window,
                "softcap": softcap,
                "deviation": deviation,
                "symmetric": graph.symmetric,
                "queries_keys": queries_keys is not None,
                "terms": None if terms is None or queries_keys is None else terms.said(),
                "value_norms": None if value_norms is None else value_norms.shape[0],
            }
        )

    def _append_tensors(
        self, number: int, queries_keys: tuple[Tensor, Tensor], terms: Terms | None
    ) -> None:
        if self._tensors is None:
            self._tensors = _TensorFile(self._folder / QUERIES_KEYS)
        for part, tensor in zip(("queries", "keys"), queries_keys, strict=True):
            dtype = self._dtype or tensor.dtype
            if dtype not in STORED_TYPES.values():
                dtype = torch.float32
            self._tensors.append(f"layers.{number}.{part}", tensor.to(dtype))
        for part, tensor in ({} if terms is None else terms.tensors()).items():
            self._tensors.append(f"layers.{number}.{part}", tensor)

    def _check(self, name: str, graph: AttentionGraph, queries_from: str, keys_from: str) -> None:
        if graph.batched:
            raise InputError(
                f"trace layer {name}: the graph holds a batch. A trace is of one input: graph[b]."
            )
        for what, sequence, size in (
            ("queries", queries_from, graph.shape[1]),
            ("keys", keys_from, graph.shape[2]),
        ):
            tokens = self._sequences.get(sequence)
            if tokens is None or len(tokens) != size:
                found = "is missing" if tokens is None else f"has {len(tokens)} tokens"
                raise InputError(
                    f"trace layer {name}: {size} {what} of the sequence {sequence!r}, which "
                    f"{found}. Give every sequence with a token for each position."
                )

    def finish(self) -> None:
        """Close the tables and write the manifest: without it, a folder is no trace."""
        if not self._tables:
            raise InputError("a trace needs at least one layer; none was written.")
        self.close()
        if self._tensors is not None:
            self._tensors.join()
        files: dict[str, dict[str, Any]] = {}
        for name, table in self._tables.items():
            files[name] = {"bytes": (self._folder / name).stat().st_size, "rows": table.rows}
        if self._tensors is not None:
            files[QUERIES_KEYS] = {"bytes": (self._folder / QUERIES_KEYS).stat().st_size}
        for name, entry in files.items():
            entry["sha256"] = file_digest(self._folder / name)
        manifest = {
            "format": FORMAT,
            "version": VERSION,
            "weft": __version__,
            "model": self._model,
            "sequences": self._sequences,
            "positions": self._positions,
            "layers": self._layers,
            "files": files,
        }
        manifest["sha256"] = manifest_digest(manifest)
        # A lone surrogate, which UTF-8 lacks, becomes the same escape that JSON has for it.
        text = json.dumps(manifest, indent=1, ensure_ascii=False) + "\n"
        (self._folder / MANIFEST).write_bytes(text.encode("utf-8", "backslashreplace"))

    def close(self) -> None:
        """Close the files."""
        for file in (*self._tables.values(), self._tensors):
            if file is not None:
                file.close()


def not_a_trace(path: Path) -> str | None:
    """Why what is at a path must not be replaced by a trace; None: it is one, whole or damaged."""
    if not path.is_dir():
        return "it is no trace but a file"
    try:
        content = (path / MANIFEST).read_bytes()
    except OSError:
        return f"it is no trace: it has no {MANIFEST} that can be read"
    try:
        manifest = json.loads(content)
        ours = isinstance(manifest, dict) and manifest.get("format") == FORMAT
    except ValueError:
        # Damaged; what weft writes begins with its format.
        ours = content.startswith(f'{{\n "format": "{FORMAT}",'.encode())
    if not ours:
        return f"it is no trace: its {MANIFEST} does not say that it is a {FORMAT}"
    known = {MANIFEST, EDGES, ROWS, KEYS, QUERIES_KEYS}
    others = sorted({file.name for file in path.iterdir()} - known)
    others = [name for name in others if not name.startswith(".")]
    return f"besides a trace it holds {others[0]!r}" if others else None


@contextmanager
def writing_trace(
    path: Path | str,
    sequences: Mapping[str, Sequence[str]],
    model: Mapping[str, Any] | None = None,
    *,
    dtype: torch.dtype | None = None,
    overwrite: bool = False,
) -> Iterator[TraceWriter]:
    """Write a trace folder layer by layer: it is there when the block ends well, else nothing is.

    Args:
        path: the folder to be.
        sequences: the tokens: {"tokens": ...}, or {"source": ..., "target": ...}.
        model: what is known of the model; JSON.
        dtype: of stored queries and keys: float32, bfloat16 or float16; None: as they come.
        overwrite: replace a trace that is there, and nothing else.

    Raises: DataError: the folder exists, or cannot be written.
    """
    if dtype is not None and dtype not in STORED_TYPES.values():
        raise InputError(f"a trace keeps queries and keys as float32, bfloat16 or float16, not "
                         f"{dtype}.")  # fmt: skip
    with atomic_folder(path, not_a_trace if overwrite else None) as folder:
        writer = TraceWriter(folder, sequences, model or {}, dtype)
        try:
            yield writer
            writer.finish()
        except pa.ArrowException as error:
            reason = str(error).splitlines()[0]
            raise DataError(f"cannot write {path}: {reason}. Nothing was changed.") from error
        finally:
            writer.close()
