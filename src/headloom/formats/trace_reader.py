"""Reading a trace folder: what is damaged says so in one line, and nothing is read before asked."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from mimetypes import guess_type
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from headloom.errors import DataError
from headloom.formats.files import (
    JsonMapping,
    JsonObject,
    cannot_read,
    check_file,
    file_digest,
    is_there,
    read_json,
)
from headloom.formats.folders import AGAIN, check_there
from headloom.formats.manifest import manifest_problem
from headloom.formats.terms import TENSORS, Terms
from headloom.formats.trace_files import FRACTIONS, STORED_TYPES
from headloom.formats.trace_writer import (
    EDGE_COLUMNS,
    EDGES,
    FORMAT,
    KEY_COLUMNS,
    KEYS,
    MANIFEST,
    QUERIES_KEYS,
    RECEIVED,
    RECEIVED_COLUMNS,
    ROW_COLUMNS,
    ROWS,
    VERSION,
)
from headloom.mechanism.graph import AttentionGraph
from headloom.mechanism.received import Received

__all__ = ["Digests", "StoredLayer", "check_stored_types", "open_folder"]

_REMEDY = "Trace the model again."
_MAKE = "Check the path, or make a trace: headloom trace."


def open_folder(path: Path | str) -> tuple[Path, JsonObject]:
    """Check a trace folder as far as can be done without reading its tables.

    Returns: the folder and its manifest.

    Raises: DataError: it is missing, half-written, damaged, or of a newer version.
    """
    folder = Path(path)
    check_there(folder, "trace")
    if not folder.is_dir():
        picture = (guess_type(folder.name)[0] or "").startswith("image/")
        what, option = ("an image", "--image") if picture else ("a text", "--file")
        raise DataError(
            f"{folder}: not a trace: a trace is a folder with {MANIFEST} in it. To trace {what}: "
            f"headloom trace MODEL {option} {folder} -o PATH."
        )
    if not is_there(folder / MANIFEST, "trace"):
        started = any((folder / name).exists() for name in (EDGES, ROWS))
        one = min(folder.glob(f"*/{MANIFEST}"), default=None)
        if one is not None and not started:
            raise DataError(f"{folder}: a folder of traces. Give one of them, as {one.parent}.")
        what = "a half-written trace" if started else "not a trace"
        raise DataError(f"{folder}: {what}: it has no {MANIFEST}. {AGAIN if started else _MAKE}")
    manifest = read_json(folder / MANIFEST, "trace")
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise DataError(f"{folder}: not a trace: {MANIFEST} does not say that it is a {FORMAT}.")
    version = manifest.get("version")
    if type(version) is int and version > VERSION:
        raise DataError(
            f"{folder}: a trace of version {version}, made by headloom "
            f"{manifest.get('headloom')}; this "
            f"headloom reads up to version {VERSION}. Upgrade headloom."
        )
    try:
        problem = manifest_problem(folder, manifest)
    except RecursionError:
        problem = f"{MANIFEST} is nested too deeply"
    if problem:
        raise DataError(f"{folder}: this trace is damaged: {problem}. {_REMEDY}")
    # The program may change its folder before the layers are read.
    return folder.absolute(), manifest


class Digests:
    """The digests of the files of a trace, each verified once, when the file is first read.

    From then on a file must stay the one that was verified: of a trace that is written anew while
    it is open, nothing is mixed with what was read before.
    """

    def __init__(self, folder: Path, manifest: JsonMapping) -> None:
        self._folder = folder
        # Threads of the studio read one trace at once.
        self._verifying = threading.Lock()
        self._seen = {MANIFEST: _identity(folder / MANIFEST)}
        self._open = {
            name: entry["sha256"]
            for name, entry in manifest["files"].items()
            if isinstance(entry, dict) and "sha256" in entry
        }

    def check_same(self, name: str) -> None:
        """Raises: DataError: the trace, or this file of it, is not the one that was opened."""
        known = {one: self._seen[one] for one in (MANIFEST, name) if one in self._seen}
        if any(_identity(self._folder / one) != seen for one, seen in known.items()):
            raise DataError(
                f"{self._folder}: this trace was written anew, moved or removed since it was "
                "opened. Open it again."
            )

    def verify(self, name: str) -> None:
        """Raises: ValueError: the file is not as it was written. DataError: see `check_same`."""
        with self._verifying:
            self.check_same(name)
            expected = self._open.get(name)
            if expected is None:
                return
            before = _identity(self._folder / name)
            if file_digest(self._folder / name) != expected:
                raise ValueError("the file does not match its digest")
            self._seen[name] = before
            del self._open[name]


def _identity(path: Path) -> tuple[int, int, int] | None:
    """What changes where a file is replaced or written to; None: there is no such file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


@dataclass(frozen=True)
class StoredLayer:
    """The numbers of a layer, on disk."""

    folder: Path
    number: int
    entry: JsonObject
    digests: Digests

    @property
    def has_matrix(self) -> bool:
        """See LayerData."""
        terms = self.entry.get("terms")
        return bool(self.entry["queries_keys"]) and terms is not None and not terms["missing"]

    @property
    def has_value_norms(self) -> bool:
        """See LayerData."""
        return self.entry.get("value_norms") is not None

    @property
    def keeps_every_edge(self) -> bool:
        """See LayerData."""
        return bool(self.entry["kept"] >= self.entry["shape"][2])

    @property
    def symmetric(self) -> bool:
        """See LayerData."""
        return bool(self.entry["symmetric"])

    def graph(self) -> AttentionGraph:
        """See LayerData."""
        heads, queries, length = self.entry["shape"]
        kept = self.entry["kept"]
        # Rows first: they must be as many as the manifest says, before room is made for edges.
        totals = self._rows()
        with self._reading(EDGES):
            edges = self._table(EDGES, EDGE_COLUMNS, self.entry["edges"])
            keys, scores, weights = _slots(edges, heads, queries, length, kept)
        return AttentionGraph(
            keys, scores, weights, **totals, length=length, symmetric=self.entry["symmetric"],
            **self.received()._asdict(),
        )  # fmt: skip

    def lse(self) -> Tensor:
        """See LayerData."""
        return self._rows()["lse"]

    def received(self) -> Received:
        """What keys receive, where that was kept: see AttentionGraph."""
        said = self.entry.get("received")
        if said is None:
            return Received()
        heads, _, length = self.entry["shape"]
        with self._reading(RECEIVED):
            found = Received(**self._by_place(RECEIVED, RECEIVED_COLUMNS, heads, length))
        return found if said["last"] else found._replace(received_last=None)

    def _rows(self) -> dict[str, Tensor]:
        heads, queries, length = self.entry["shape"]
        with self._reading(ROWS):
            totals = self._by_place(ROWS, ROW_COLUMNS, heads, queries)
            count = totals["count"]
            if count.numel() and not 0 <= int(count.min()) <= int(count.max()) <= length:
                raise ValueError(f"a count of keys is not in 0 to {length}")
        return totals | {"count": count.long()}

    def queries_keys(self) -> tuple[Tensor, Tensor] | None:
        """See LayerData."""
        if not self.entry["queries_keys"]:
            return None
        heads, queries, length = self.entry["shape"]
        with self._reading(QUERIES_KEYS):
            from_queries, from_keys = self._tensors(["queries", "keys"]).values()
            if (
                from_queries.ndim != 3
                or from_queries.shape[:2] != (heads, queries)
                or from_keys.ndim != 3
                or from_keys.shape[1] != length
                or not from_keys.shape[0]
                or heads % from_keys.shape[0]
                or {from_queries.dtype, from_keys.dtype} - set(STORED_TYPES.values())
            ):
                raise ValueError("queries and keys do not fit the layer")
        return from_queries, from_keys

    def terms(self) -> Terms | None:
        """See LayerData."""
        said = self.entry.get("terms")
        if said is None:
            return None
        heads, queries, length = self.entry["shape"]
        with self._reading(QUERIES_KEYS if said["tensors"] else MANIFEST):
            found = self._tensors(said["tensors"]) if said["tensors"] else {}
            sizes = {
                "1": (1,), "2": (2,), "h": (heads,), "1h": (1, heads), "q": (queries,),
                "1q": (1, queries), "1k": (1, length), "n": (queries + length - 1,),
            }  # fmt: skip
            for name, tensor in found.items():
                expected, dtype = TENSORS[name], tensor.dtype
                if (
                    dtype != (torch.int32 if name == "ranges" else torch.float32)
                    or tensor.ndim != len(expected)
                    or any(
                        want in sizes and size not in sizes[want]
                        for size, want in zip(tensor.shape, expected, strict=True)
                    )
                ):
                    raise ValueError(f"{name} does not fit the layer")
            return Terms.stored(self.entry, found, queries)

    def value_norms(self) -> Tensor | None:
        """See LayerData."""
        kv_heads = self.entry.get("value_norms")
        if kv_heads is None:
            return None
        length = self.entry["shape"][2]
        with self._reading(KEYS):
            return self._by_place(KEYS, KEY_COLUMNS, kv_heads, length)["value_norm"]

    def _tensors(self, names: list[str]) -> dict[str, Tensor]:
        """Tensors of this layer."""
        path = self._verified(QUERIES_KEYS)
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(f"layers.{self.number}.{name}") for name in names}

    def _verified(self, name: str) -> Path:
        """The path of a file that is there, can be read, and is as it was written."""
        path = self.folder / name
        self.digests.check_same(MANIFEST)
        if not is_there(path, "part of a trace"):
            raise DataError(f"{self.folder}: this trace is damaged: {name} is missing. {_REMEDY}")
        check_file(path, "part of a trace")
        self.digests.verify(name)
        return path

    def _table(
        self, name: str, columns: tuple[str, ...], rows: int
    ) -> dict[str, np.ndarray[Any, Any]]:
        """The row groups of this layer, which has so many rows."""
        path = self._verified(name)
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            _check_columns(file.schema_arrow, columns)
            groups = []
            for number in range(file.num_row_groups):
                group = file.metadata.row_group(number)
                check_stored_types(group, file.schema)
                statistics = group.column(0).statistics
                if statistics is None or statistics.min <= self.number <= statistics.max:
                    groups.append(number)
            table = file.read_row_groups(groups)
            table = table.filter(pc.equal(table["layer"], self.number))
        if any(column.null_count for column in table.columns):
            raise ValueError("it has missing values")
        if len(table) != rows:
            raise ValueError(f"it has {len(table)} rows of this layer, expected {rows}")
        return {name: table.column(name).to_numpy() for name in columns}

    def _by_place(
        self, name: str, columns: tuple[str, ...], heads: int, length: int
    ) -> dict[str, Tensor]:
        """The numbers of a table with a row for every head and position, each (heads, length)."""
        table = self._table(name, columns, heads * length)
        _, head, position, *numbers = columns
        places = table[head] * np.int64(length) + table[position]
        if not np.array_equal(places, np.arange(heads * length)):
            raise ValueError(f"its rows are not those of every {head} and {position}")
        return {
            column: torch.from_numpy(table[column].reshape(heads, length).copy())
            for column in numbers
        }

    def verify(self, name: str) -> None:
        """Raise a DataError unless a file of the trace is as it was written."""
        with self._reading(name):
            self.digests.verify(name)

    @contextmanager
    def _reading(self, name: str) -> Iterator[None]:
        """Errors of the libraries that read a file, as the one line that says which."""
        try:
            yield
        except (DataError, UnicodeEncodeError):  # the latter of its path, not of what it holds
            raise
        except _UNREADABLE as error:
            if isinstance(error, OSError) and error.errno is not None:
                # The system's word, not that of a library that understood nothing.
                raise cannot_read(self.folder / name, "part of a trace", error) from error
            reason = (str(error).splitlines() or ["unreadable"])[0].rstrip(".")
            raise DataError(
                f"{self.folder}: this trace is damaged: {name}, layer {self.number}: {reason}. "
                f"{_REMEDY}"
            ) from error


#: What the libraries raise that read a file which is not what it says.
_UNREADABLE = (
    pa.ArrowException, SafetensorError, OSError, ValueError, KeyError, TypeError, RuntimeError,
    OverflowError, MemoryError,
)  # fmt: skip


def _check_columns(schema: pa.Schema, columns: tuple[str, ...]) -> None:
    """Raise a ValueError unless a table has these columns, of numbers of their kinds."""
    if schema.names != list(columns):
        raise ValueError(f"it has the columns {', '.join(schema.names)}")
    for name in columns:
        kind = schema.field(name).type
        fits = kind == pa.float32() if name in FRACTIONS else pa.types.is_signed_integer(kind)
        if not fits:
            raise ValueError(f"its column {name} is of {kind}")


def check_stored_types(group: pq.RowGroupMetaData, schema: pq.ParquetSchema) -> None:
    """Raise a ValueError where a row group stores a column as another type: Arrow would abort."""
    for place in range(group.num_columns):
        column, expected = group.column(place), schema.column(place)
        if column.physical_type != expected.physical_type:
            raise ValueError(
                f"its column {expected.name} is of {expected.physical_type}, and stored as "
                f"{column.physical_type}"
            )


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
    first, second, third = (part.reshape(shape) for part in (keys, scores, weights))
    return torch.from_numpy(first), torch.from_numpy(second), torch.from_numpy(third)
