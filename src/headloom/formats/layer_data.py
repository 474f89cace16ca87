"""Data of a traced layer: in memory, or on disk and read on demand."""

from __future__ import annotations

import itertools
import threading
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from torch import Tensor

from headloom.errors import DataError
from headloom.formats.files import (
    JsonMapping,
    JsonObject,
    check_file,
    file_digest,
    is_there,
    reading,
)
from headloom.formats.manifest import (
    COLUMNS,
    EDGES,
    FRACTIONS,
    KEYS,
    MANIFEST,
    QUERIES_KEYS,
    RECEIVED,
    REMEDY,
    ROWS,
    STORED_TYPES,
)
from headloom.formats.terms import TENSORS, Terms
from headloom.mechanism.graph import AttentionGraph
from headloom.mechanism.received import Received


@dataclass(frozen=True, eq=False)
class LayerInMemory:
    """Data of a layer in memory.

    graph: edges and rows.
    queries_keys: queries, (heads, queries, depth), and keys, (kv_heads, keys, depth).
    terms: mask, biases and sinks of the weights; None: unknown.
    value_norms: |v_j| of the values, (kv_heads, keys).
    """

    graph: AttentionGraph
    queries_keys: tuple[Tensor, Tensor] | None = None
    terms: Terms | None = None
    value_norms: Tensor | None = None

    @property
    def has_matrix(self) -> bool:
        """Whether the weight matrix can be computed; known without reading data."""
        terms = self.terms
        return self.queries_keys is not None and terms is not None and not terms.missing

    @property
    def has_value_norms(self) -> bool:
        """Whether the norms of the values were kept; known without reading them."""
        return self.value_norms is not None

    @property
    def keeps_every_edge(self) -> bool:
        """Whether no edge was left out, as far as known without reading them."""
        return bool((self.graph.count <= (self.graph.keys >= 0).sum(-1)).all())

    @property
    def symmetric(self) -> bool:
        """Whether score(i, j) = score(j, i) by construction; known without reading the edges."""
        return self.graph.symmetric

    @property
    def lse(self) -> Tensor:
        """Log-sum-exp of each row, (heads, queries)."""
        return self.graph.lse


class Digests:
    """Digests of the files of a trace, each verified once, at the first read of the file.

    After that the file must not change: data of a trace that is rewritten while it is open are
    never mixed with the earlier ones.
    """

    def __init__(self, folder: Path, manifest: JsonMapping) -> None:
        self._folder = folder
        # Threads of the studio read one trace concurrently.
        self._lock = threading.Lock()
        self._verified = {MANIFEST: _identity(folder / MANIFEST)}
        self._pending = {name: entry.get("sha256") for name, entry in manifest["files"].items()}
        self._first_layers: dict[str, list[int]] = {}

    def check_same(self, name: str) -> None:
        """Raise a DataError if the trace or this file has changed since it was opened."""
        for known in {MANIFEST, name} & set(self._verified):
            if _identity(self._folder / known) != self._verified[known]:
                raise DataError(
                    f"{self._folder}: this trace was rewritten, moved or removed since it was "
                    "opened. Open it again."
                )

    def verify(self, name: str) -> None:
        """Verify a file. Raises: ValueError: wrong digest. DataError: see `check_same`."""
        with self._lock:
            self.check_same(name)
            if name not in self._pending:
                return
            before = _identity(self._folder / name)
            if file_digest(self._folder / name) != self._pending[name]:
                raise ValueError("the file does not match its digest")
            self._verified[name] = before
            del self._pending[name]

    def first_layers(self, name: str, file: pq.ParquetFile) -> list[int]:
        """Return the layer of the first row of each row group of a table.

        The rows are read, not the statistics: where these are damaged, Arrow aborts the process.
        """
        if name not in self._first_layers:
            self._first_layers[name] = [
                next(file.iter_batches(1, [number], ["layer"], use_threads=False))[0][0].as_py()
                for number in range(file.num_row_groups)
            ]
        return self._first_layers[name]


def _identity(path: Path) -> tuple[int, int, int] | None:
    """Return inode, size and time of change of a file; None: no such file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


@dataclass(frozen=True)
class StoredLayer:
    """Data of a layer on disk, read at each access; see LayerInMemory.

    number: its index in the manifest's list of layers; entry: its entry there.
    """

    folder: Path
    number: int
    entry: JsonObject
    digests: Digests

    @property
    def has_matrix(self) -> bool:
        """See LayerInMemory."""
        terms = self.entry.get("terms")
        return bool(self.entry["queries_keys"]) and terms is not None and not terms["missing"]

    @property
    def has_value_norms(self) -> bool:
        """See LayerInMemory."""
        return self.entry.get("value_norms") is not None

    @property
    def keeps_every_edge(self) -> bool:
        """See LayerInMemory."""
        return bool(self.entry["kept"] >= self.entry["shape"][2])

    @property
    def symmetric(self) -> bool:
        """See LayerInMemory."""
        return bool(self.entry["symmetric"])

    @property
    def graph(self) -> AttentionGraph:
        """See LayerInMemory."""
        heads, queries, length = self.entry["shape"]
        # Rows first: their number is checked against the manifest before edges are allocated.
        totals = self._rows()
        with self._reading(EDGES):
            edges = self._table(EDGES, self.entry["edges"])
            keys, scores, weights = _slots(edges, heads, queries, length, self.entry["kept"])
        return AttentionGraph(
            keys, scores, weights, **totals, length=length, symmetric=self.entry["symmetric"],
            **self._received()._asdict(),
        )  # fmt: skip

    @property
    def lse(self) -> Tensor:
        """See LayerInMemory."""
        return self._rows()["lse"]

    def _received(self) -> Received:
        kept = self.entry.get("received")
        if kept is None:
            return Received()
        heads, _, length = self.entry["shape"]
        with self._reading(RECEIVED):
            received = Received(**self._by_place(RECEIVED, heads, length))
        return received if kept["last"] else received._replace(received_last=None)

    def _rows(self) -> dict[str, Tensor]:
        heads, queries, length = self.entry["shape"]
        with self._reading(ROWS):
            totals = self._by_place(ROWS, heads, queries)
            count = totals["count"]
            if count.numel() and not 0 <= int(count.min()) <= int(count.max()) <= length:
                raise ValueError(f"a count of keys is not in 0 to {length}")
        return totals | {"count": count.long()}

    @property
    def queries_keys(self) -> tuple[Tensor, Tensor] | None:
        """See LayerInMemory."""
        if not self.entry["queries_keys"]:
            return None
        heads, queries, length = self.entry["shape"]
        with self._reading(QUERIES_KEYS):
            tensors = self._tensors(["queries", "keys"])
            query_tensor, key_tensor = tensors["queries"], tensors["keys"]
            if (
                query_tensor.ndim != 3
                or query_tensor.shape[:2] != (heads, queries)
                or key_tensor.ndim != 3
                or key_tensor.shape[1] != length
                or not key_tensor.shape[0]
                or heads % key_tensor.shape[0]
                or {query_tensor.dtype, key_tensor.dtype} - set(STORED_TYPES)
            ):
                raise ValueError("queries and keys do not fit the layer")
        return query_tensor, key_tensor

    @property
    def terms(self) -> Terms | None:
        """See LayerInMemory."""
        terms = self.entry.get("terms")
        if terms is None:
            return None
        heads, queries, length = self.entry["shape"]
        sizes = {
            "1": (1,), "2": (2,), "h": (heads,), "1h": (1, heads), "q": (queries,),
            "1q": (1, queries), "1k": (1, length), "n": (queries + length - 1,),
        }  # fmt: skip
        with self._reading(QUERIES_KEYS if terms["tensors"] else MANIFEST):
            tensors = self._tensors(terms["tensors"]) if terms["tensors"] else {}
            for name, tensor in tensors.items():
                expected = TENSORS[name]
                kind = torch.int32 if name == "ranges" else torch.float32
                fits = tensor.dtype == kind and tensor.ndim == len(expected)
                if not fits or any(
                    want in sizes and size not in sizes[want]
                    for size, want in zip(tensor.shape, expected, strict=True)
                ):
                    raise ValueError(f"{name} does not fit the layer")
            return Terms.from_manifest(self.entry, tensors, queries)

    @property
    def value_norms(self) -> Tensor | None:
        """See LayerInMemory."""
        kv_heads, length = self.entry.get("value_norms"), self.entry["shape"][2]
        if kv_heads is None:
            return None
        with self._reading(KEYS):
            return self._by_place(KEYS, kv_heads, length)["value_norm"]

    def _tensors(self, names: list[str]) -> dict[str, Tensor]:
        """Read tensors of this layer."""
        with safe_open(self._verified(QUERIES_KEYS), framework="pt") as file:
            return {name: file.get_tensor(f"layers.{self.number}.{name}") for name in names}

    def _verified(self, name: str) -> Path:
        """Return the path of a file of the trace after it was checked and verified."""
        path = self.folder / name
        self.digests.check_same(MANIFEST)
        if not is_there(path, "part of a trace"):
            raise DataError(f"{self.folder}: this trace is damaged: {name} is missing. {REMEDY}")
        check_file(path, "part of a trace")
        self.digests.verify(name)
        return path

    def _table(self, name: str, rows: int) -> dict[str, NDArray[np.generic]]:
        """Read this layer's row groups of a table; `rows` is their expected number of rows."""
        with pq.ParquetFile(self._verified(name), page_checksum_verification=True) as file:
            _check_columns(file.schema_arrow, COLUMNS[name])
            firsts = self.digests.first_layers(name, file)
            pairs = itertools.pairwise([*firsts, self.number])
            groups = [n for n, (first, end) in enumerate(pairs) if first <= self.number <= end]
            table = file.read_row_groups(groups)
            table = table.filter(pc.equal(table["layer"], self.number))
        if any(column.null_count for column in table.columns):
            raise ValueError("it has missing values")
        if len(table) != rows:
            raise ValueError(f"it has {len(table)} rows of this layer, expected {rows}")
        return {column: table.column(column).to_numpy() for column in COLUMNS[name]}

    def _by_place(self, name: str, heads: int, length: int) -> dict[str, Tensor]:
        """Read a table with a row for every head and position; each column as (heads, length)."""
        table = self._table(name, heads * length)
        _, head, position, *numbers = COLUMNS[name]
        places = table[head].astype(np.int64) * length + table[position].astype(np.int64)
        if not np.array_equal(places, np.arange(heads * length)):
            raise ValueError(f"its rows are not those of every {head} and {position}")
        return {
            column: torch.from_numpy(table[column].reshape(heads, length).copy())
            for column in numbers
        }

    def verify(self, name: str) -> None:
        """Raise a DataError if a file of the trace has changed since it was written."""
        with self._reading(name):
            self.digests.verify(name)

    def _reading(self, name: str) -> AbstractContextManager[None]:
        damage = f"{self.folder}: this trace is damaged: {name}, layer {self.number}"
        return reading(self.folder / name, "part of a trace", damage, REMEDY)


LayerData = LayerInMemory | StoredLayer


def _check_columns(schema: pa.Schema, columns: tuple[str, ...]) -> None:
    """Raise a ValueError unless a table has these columns with the right types."""
    if schema.names != list(columns):
        raise ValueError(f"it has the columns {', '.join(schema.names)}")
    for name in columns:
        kind = schema.field(name).type
        fits = kind == pa.float32() if name in FRACTIONS else pa.types.is_signed_integer(kind)
        if not fits:
            raise ValueError(f"its column {name} has the type {kind}")


def _slots(
    edges: dict[str, NDArray[np.generic]], heads: int, queries: int, length: int, kept: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Arrange a table of edges as keys, scores and weights, each (heads, queries, kept)."""
    for name, size in (("head", heads), ("query", queries), ("key", length)):
        column = edges[name]
        if len(column) and not 0 <= column.min() <= column.max() < size:
            raise ValueError(f"a {name} is not in 0 to {size - 1}")
    rows = edges["head"].astype(np.int64) * queries + edges["query"].astype(np.int64)
    if np.any(np.diff(rows) < 0):
        raise ValueError("edges are out of order")
    starts = np.searchsorted(rows, np.arange(heads * queries))
    places = np.arange(len(rows)) - starts[rows]
    if len(places) and places.max() >= kept:
        raise ValueError(f"a row has more than {kept} edges")
    slots = []
    for name, empty, kind in (
        ("key", -1, np.int64), ("score", -np.inf, np.float32), ("weight", 0, np.float32)
    ):  # fmt: skip
        slot = np.full((heads * queries, kept), empty, kind)
        slot[rows, places] = edges[name]
        slots.append(torch.from_numpy(slot.reshape(heads, queries, kept)))
    return slots[0], slots[1], slots[2]
