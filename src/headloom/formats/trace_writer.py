"""Writing of trace folders: attention traces on disk, in open formats.

docs/formats.md describes the files. `layer` is the index in the list of layers of trace.json; head,
query and key are indices, too, all from 0. Tables are sorted by layer, head, query; a query's edges
come strongest first. A row group holds heads of one layer, so that layers can be read separately.

A trace is written layer by layer, each while the model computes the next, so that memory holds at
most two layers, into a temporary folder that is renamed when it is complete.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from torch import Tensor

from headloom.errors import DataError, InputError
from headloom.formats.files import JsonMapping, JsonObject, file_digest, finite
from headloom.formats.folders import atomic_folder
from headloom.formats.manifest import (
    COLUMNS,
    EDGES,
    FORMAT,
    FRACTIONS,
    KEYS,
    MANIFEST,
    QUERIES_KEYS,
    RECEIVED,
    ROWS,
    STORED_TYPES,
    VERSION,
    manifest_digest,
)
from headloom.formats.tensors import TensorFile
from headloom.formats.terms import Terms
from headloom.formats.traced_images import TracedImage
from headloom.mechanism.graph import AttentionGraph
from headloom.version import __version__

if TYPE_CHECKING:
    from headloom.formats.trace import TraceLayer

#: Parquet encoding of each column, small and fast: scores and weights split into bytes, which LZ4
#: then compresses better; keys as differences.
_ENCODINGS = {"key": "DELTA_BINARY_PACKED", **dict.fromkeys(FRACTIONS, "BYTE_STREAM_SPLIT")}
#: Columns with statistics, by which a reader can skip row groups.
_STATISTICS = ("layer", "head", "kv_head", "query", "key")
#: Edges of a row group, approximately: suits DuckDB, and takes 4 MB of memory.
GROUP = 2**18


def _column(numbers: NDArray[np.generic]) -> pa.Array:
    """Return numbers as a column without a copy; `pa.array` would import pandas, a second."""
    kind = pa.from_numpy_dtype(numbers.dtype)
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])


def edge_table(layer: int, graph: AttentionGraph) -> pa.Table:
    """Return the kept edges of a graph, as in edges.parquet."""
    return pa.concat_tables(_edge_tables(layer, graph)).combine_chunks()


def _edge_tables(layer: int, graph: AttentionGraph) -> Iterator[pa.Table]:
    """Yield the kept edges of a graph, some heads at a time, without a copy where rows are full."""
    heads, queries, k = graph.keys.shape
    numbers = (graph.keys.int(), graph.scores.float(), graph.weights.float())
    tensors = [tensor.detach().cpu().contiguous() for tensor in numbers]
    size = max(1, GROUP // max(1, queries * k))
    for start in range(0, heads, size):
        yield pa.concat_tables(
            _edges_of_head(layer, head, [tensor[head] for tensor in tensors])
            for head in range(start, min(start + size, heads))
        )
    if not heads:
        yield _edges_of_head(layer, 0, [tensor.flatten(0, 1) for tensor in tensors])


def _edges_of_head(layer: int, head: int, tensors: Sequence[Tensor]) -> pa.Table:
    """Return the edges of one head from its keys, scores and weights, (queries, k)."""
    keys = tensors[0]
    queries, k = keys.shape
    # A row is full if its last slot is. Rows that are not full mostly come first: under a causal
    # mask they see fewer than k keys.
    short = (keys[:, -1] < 0).nonzero() if k else keys
    first = int(short[-1]) + 1 if len(short) and k else 0
    kept = keys[:first] >= 0
    numbers = np.arange(queries, dtype=np.int32)
    query = np.concatenate((
        np.repeat(numbers[:first], kept.sum(-1).numpy()), np.repeat(numbers[first:], k)
    ))  # fmt: skip
    columns = {
        "layer": _column(np.full(len(query), layer, np.int16)),
        "head": _column(np.full(len(query), head, np.int16)),
        "query": _column(query),
    }
    for name, tensor in zip(("key", "score", "weight"), tensors, strict=True):
        parts = tensor[:first][kept], tensor[first:].flatten()
        columns[name] = pa.chunked_array([_column(part.numpy()) for part in parts])
    return pa.table(columns)


def _by_place(layer: int, head: str, position: str, **numbers: Tensor) -> pa.Table:
    """Return numbers of shape (heads, positions) as a table with a row for each."""
    heads, length = next(iter(numbers.values())).shape
    columns: dict[str, NDArray[np.generic]] = {
        "layer": np.full(heads * length, layer, np.int16),
        head: np.repeat(np.arange(heads, dtype=np.int16), length),
        position: np.tile(np.arange(length, dtype=np.int32), heads),
    }
    for name, tensor in numbers.items():
        kind = torch.float32 if name in FRACTIONS else torch.int32
        columns[name] = tensor.detach().cpu().to(kind).contiguous().numpy().ravel()
    return pa.table({name: _column(column) for name, column in columns.items()})


def row_table(layer: int, graph: AttentionGraph) -> pa.Table:
    """Return the rows of a graph, as in rows.parquet."""
    return _by_place(
        layer, "head", "query",
        lse=graph.lse, entropy=graph.entropy, rest=graph.rest, count=graph.count,
    )  # fmt: skip


def key_table(layer: int, value_norms: Tensor) -> pa.Table:
    """Return the norms of a layer's values, as in keys.parquet."""
    return _by_place(layer, "kv_head", "key", value_norm=value_norms)


def received_table(layer: int, graph: AttentionGraph) -> pa.Table:
    """Return the attention that keys receive, as in received.parquet.

    received_last is NaN where the last queries were not requested.
    """
    received, most, last = graph.received, graph.received_most, graph.received_last
    assert received is not None and most is not None
    last = torch.full_like(received, torch.nan) if last is None else last
    return _by_place(
        layer, "head", "key", received=received, received_most=most, received_last=last
    )


class TraceWriter:
    """Writer of the layers of a trace, one after the other; made by `writing_trace`.

    verification, not_traced, images: for the manifest, see `TraceData`.
    """

    def __init__(
        self, folder: Path, sequences: Mapping[str, Sequence[str]], model: JsonMapping,
        dtype: torch.dtype | None,
    ) -> None:  # fmt: skip
        self._folder = folder
        self._sequences = {name: list(tokens) for name, tokens in sequences.items()}
        self._model, self._dtype = dict(model), dtype
        self._positions: dict[str, JsonMapping] = {}
        self.verification: JsonMapping | None = None
        self.not_traced: Sequence[Mapping[str, str]] = ()
        self.images: Sequence[TracedImage] = ()
        self._layers: list[JsonObject] = []
        self._tables: dict[str, pq.ParquetWriter] = {}
        self._rows: dict[str, int] = {}
        self._tensors: TensorFile | None = None
        # One layer is written while the model computes the next.
        self._thread = ThreadPoolExecutor(1, "headloom-trace")
        self._pending: Future[None] | None = None

    def add_sequence(self, name: str, tokens: Sequence[str]) -> None:
        """Add a sequence that is known only while the model runs, before its first layer."""
        self._sequences[name] = list(tokens)

    def describe(self, name: str, known: JsonMapping) -> None:
        """Set the facts about the tokens of a sequence: see `TraceData`, positions."""
        self._positions[name] = dict(known)

    def append(self, layer: TraceLayer) -> None:
        """Write the next layer; without queries and keys, only mask and sinks of its terms."""
        graph, queries_keys, terms = layer.data.graph, layer.data.queries_keys, layer.terms
        norms = layer.data.value_norms
        self._check(layer, graph)
        if self._pending is not None:
            self._pending.result()  # raises the error of the previous layer
        if terms is not None and queries_keys is None:
            terms = terms.of_edges()
        received = {"last": graph.received_last is not None}
        self._layers.append(
            {
                "name": layer.name, "kind": layer.kind, "index": layer.index,
                "queries": layer.queries_from, "keys": layer.keys_from, "shape": list(graph.shape),
                "kept": min(graph.k, graph.length), "edges": int((graph.keys >= 0).sum()),
                "scale": layer.scale, "positions": layer.positions, "mask": layer.mask,
                "window": None if terms is None else terms.window, "softcap": layer.softcap,
                "deviation": finite(layer.deviation), "symmetric": graph.symmetric,
                "queries_keys": queries_keys is not None,
                "terms": None if terms is None else terms.to_manifest(),
                "value_norms": None if norms is None else norms.shape[0],
                **({} if graph.received is None else {"received": received}),
            }
        )  # fmt: skip
        # In lists, from which the thread removes them, so that each is freed once it is written.
        tensors, number = list(queries_keys or ()), len(self._layers) - 1
        self._pending = self._thread.submit(self._write, number, [graph], tensors, terms, norms)

    def _write(
        self, number: int, graphs: list[AttentionGraph], queries_keys: list[Tensor],
        terms: Terms | None, value_norms: Tensor | None,
    ) -> None:  # fmt: skip
        others = {} if terms is None else terms.tensors()
        if self._tensors is None and (queries_keys or others):
            size = sum(tensor.nbytes for tensor in queries_keys)
            self._tensors = TensorFile(self._folder / QUERIES_KEYS, {"format": FORMAT}, size)
        if self._tensors is not None:
            for part in ("queries", "keys") if queries_keys else ():
                tensor = self._stored(queries_keys.pop(0), part, number)
                self._tensors.append(f"layers.{number}.{part}", tensor)
            for part, tensor in others.items():
                self._tensors.append(f"layers.{number}.{part}", tensor)
        graph = graphs.pop()
        for table in _edge_tables(number, graph):
            self._table(EDGES, table)
        self._table(ROWS, row_table(number, graph))
        if value_norms is not None:
            self._table(KEYS, key_table(number, value_norms))
        if graph.received is not None:
            self._table(RECEIVED, received_table(number, graph))

    def _stored(self, tensor: Tensor, part: str, number: int) -> Tensor:
        """Convert queries or keys to the stored type. Raises: InputError: they exceed its range."""
        dtype = self._dtype or tensor.dtype
        dtype = dtype if dtype in STORED_TYPES else torch.float32
        most = torch.finfo(dtype).max
        if tensor.numel() and torch.finfo(tensor.dtype).max > most:
            # Infinity and NaN exist in every type.
            largest = float(tensor.nan_to_num(0, 0, 0).abs().max())
            if largest > most:
                raise InputError(
                    f"trace layer {number}: its {part} reach {largest:.3g}, "
                    f"{str(dtype).removeprefix('torch.')} ends at {most:.3g}. Store them as "
                    "float32 or bfloat16."
                )
        return tensor.to(dtype)

    def _table(self, name: str, table: pa.Table) -> None:
        """Add a row group to a table; an empty one is left out."""
        if name not in self._tables:
            names = table.schema.names
            self._tables[name] = pq.ParquetWriter(
                self._folder / name, table.schema, compression="lz4", use_dictionary=False,
                column_encoding={key: _ENCODINGS[key] for key in names if key in _ENCODINGS},
                write_statistics=[key for key in names if key in _STATISTICS],
                write_page_checksum=True, store_schema=False,
            )  # fmt: skip
        if table.num_rows:
            self._tables[name].write_table(table, row_group_size=table.num_rows)
        self._rows[name] = self._rows.get(name, 0) + table.num_rows

    def _check(self, layer: TraceLayer, graph: AttentionGraph) -> None:
        if graph.batched:
            raise InputError(
                f"trace layer {layer.name}: the graph holds a batch. A trace has one input: "
                "give graph[b]."
            )
        _, queries, keys = graph.shape
        for size, what, sequence in ((queries, "queries", layer.queries_from),
                                     (keys, "keys", layer.keys_from)):  # fmt: skip
            tokens = self._sequences.get(sequence)
            if tokens is None or len(tokens) != size:
                known = "is missing" if tokens is None else f"has {len(tokens)} tokens"
                raise InputError(
                    f"trace layer {layer.name}: {size} {what} of the sequence {sequence!r}, which "
                    f"{known}. Give every sequence with a token for each position."
                )

    def finish(self) -> None:
        """Close the tables and write the manifest, which makes the folder a trace."""
        if self._pending is None:
            raise InputError("a trace needs at least one layer; none was written.")
        self._pending.result()
        files: dict[str, JsonObject] = {}
        for name, table in self._tables.items():
            table.close()
            files[name] = {"rows": self._rows[name]}
        if self._tensors is not None:
            self._tensors.finish()
            files[QUERIES_KEYS] = {}
        for name, entry in files.items():
            path = self._folder / name
            entry |= {"bytes": path.stat().st_size, "sha256": file_digest(path)}
        manifest = {
            "format": FORMAT, "version": VERSION, "headloom": __version__, "model": self._model,
            "sequences": self._sequences, "positions": self._positions, "layers": self._layers,
            "files": files,
        }  # fmt: skip
        if self.verification is not None:
            manifest["verification"] = dict(self.verification)
        if self.not_traced:
            manifest["not_traced"] = [dict(entry) for entry in self.not_traced]
        if self.images:
            manifest["images"] = [image.to_manifest() for image in self.images]
        manifest["sha256"] = manifest_digest(manifest)
        # A lone surrogate, which UTF-8 cannot encode, becomes its JSON escape.
        text = json.dumps(manifest, indent=1, ensure_ascii=False) + "\n"
        (self._folder / MANIFEST).write_bytes(text.encode("utf-8", "backslashreplace"))

    def close(self) -> None:
        """Close all files, complete or not, even if closing one of them fails (full disk)."""
        self._thread.shutdown()
        with ExitStack() as stack:
            for file in (*self._tables.values(), self._tensors):
                if file is not None:
                    stack.callback(file.close)


def not_a_trace(path: Path) -> str | None:
    """Return why `path` must not be replaced by a trace; None: it is one, intact or damaged."""
    try:
        content = (path / MANIFEST).read_bytes()
    except OSError:
        return f"it is no trace: it has no {MANIFEST} that can be read"
    if not content.startswith(f'{{\n "format": "{FORMAT}",'.encode()):
        return f"it is no trace: its {MANIFEST} has no format {FORMAT!r}"
    others = {file.name for file in path.iterdir()} - {MANIFEST, QUERIES_KEYS, *COLUMNS}
    others = {name for name in others if not name.startswith(".")}
    return f"besides a trace it holds {min(others)!r}" if others else None


@contextmanager
def writing_trace(
    path: Path | str, sequences: Mapping[str, Sequence[str]], model: JsonMapping | None = None, *,
    dtype: torch.dtype | None = None, overwrite: bool = False,
) -> Iterator[TraceWriter]:  # fmt: skip
    """Write a trace folder layer by layer; it appears only if the block ends without an error.

    Args:
        path: of the new folder.
        sequences: the tokens: {"tokens": ...}, or {"source": ..., "target": ...}.
        model: description of the model; JSON.
        dtype: of stored queries and keys: float32, bfloat16 or float16; None: unchanged.
        overwrite: replace an existing trace; other folders are never replaced.

    Raises: DataError: the folder exists, or cannot be written.
    """
    if dtype is not None and dtype not in STORED_TYPES:
        raise InputError(f"a trace keeps queries and keys as float32, bfloat16 or float16, not "
                         f"{dtype}.")  # fmt: skip

    def never(path: Path) -> str:
        remedy = "" if not_a_trace(path) else ", and overwrite=True was not given"
        return f"it exists already{remedy}"

    with atomic_folder(path, not_a_trace if overwrite else never) as folder:
        writer = TraceWriter(folder, sequences, model or {}, dtype)
        try:
            yield writer
            writer.finish()
        except pa.ArrowException as error:
            reason = str(error).splitlines()[0]
            raise DataError(f"cannot write {path}: {reason}. Nothing was changed.") from error
        finally:
            writer.close()
