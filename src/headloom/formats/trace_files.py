"""The files of a trace while they grow: Parquet tables and a safetensors file.

Writing costs little beside a model's forward pass, because nothing is copied that need not be:
rows of a graph that are full go to Parquet as they lie in memory, a few heads at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from torch import Tensor

from headloom.formats.files import JsonObject
from headloom.formats.tensors import DTYPES, header_of
from headloom.mechanism.graph import AttentionGraph

#: Number types of stored queries and keys, by the names of safetensors.
STORED_TYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}

#: Columns of float32; the others hold whole numbers.
FRACTIONS = (
    "score", "weight", "value_norm", "lse", "entropy", "rest",
    "received", "received_most", "received_last",
)  # fmt: skip

#: Edges of a row group, about: what DuckDB likes, and 4 MB of memory.
GROUP = 2**18
#: Bytes at most that are kept free for the table of contents of a safetensors file.
CONTENTS = 2**18


def _numbers(tensor: Tensor) -> NDArray[np.generic]:
    return tensor.detach().cpu().contiguous().float().numpy().ravel()


def _column(numbers: NDArray[np.generic]) -> pa.Array:
    """Numbers as a column, not copied; `pa.array` would load pandas first, a second of work."""
    kind = pa.from_numpy_dtype(numbers.dtype)
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])


def edge_table(layer: int, graph: AttentionGraph) -> pa.Table:
    """The kept edges of a graph, as they lie in edges.parquet."""
    return pa.concat_tables(edge_tables(layer, graph)).combine_chunks()


def edge_tables(layer: int, graph: AttentionGraph) -> Iterator[pa.Table]:
    """The kept edges of a graph, some heads at a time, without a copy where rows are full."""
    heads, queries, k = graph.keys.shape
    keys, scores, weights = (
        tensor.detach().cpu().contiguous() for tensor in (graph.keys, graph.scores, graph.weights)
    )
    keys, scores, weights = keys.int(), scores.float(), weights.float()
    size = max(1, GROUP // max(1, queries * k))
    for start in range(0, max(heads, 1), size):
        chunks = [
            _edges_of_head(layer, head, keys[head], scores[head], weights[head])
            for head in range(start, min(start + size, heads))
        ]
        yield pa.concat_tables(chunks or [_edges_of_head(layer, 0, *_NOTHING)])


_NOTHING = (torch.zeros(0, 0, dtype=torch.int32), torch.zeros(0, 0), torch.zeros(0, 0))


def _edges_of_head(layer: int, head: int, *tensors: Tensor) -> pa.Table:
    """The edges of one head from its keys, scores and weights, (queries, k)."""
    keys = tensors[0]
    queries, k = keys.shape
    # A row is full where its last place is. Rows that are not mostly come first: those of a causal
    # mask that see fewer than k keys.
    short = (keys[:, -1] < 0).nonzero() if k else torch.zeros(0)
    first = int(short[-1]) + 1 if len(short) else 0
    there = keys[:first] >= 0
    counts = there.sum(-1).numpy()
    edges = int(counts.sum()) + (queries - first) * k
    query = np.concatenate(
        (
            np.repeat(np.arange(first, dtype=np.int32), counts),
            np.repeat(np.arange(first, queries, dtype=np.int32), k),
        )
    )

    def kept(tensor: Tensor) -> pa.ChunkedArray:
        return pa.chunked_array(
            [_column(part.numpy()) for part in (tensor[:first][there], tensor[first:].flatten())]
        )

    return pa.table(
        {
            "layer": _column(np.full(edges, layer, np.int16)),
            "head": _column(np.full(edges, head, np.int16)),
            "query": _column(query),
            **{
                name: kept(of) for name, of in zip(("key", "score", "weight"), tensors, strict=True)
            },
        }
    )


def _places(layer: int, head: str, position: str, numbers: Tensor) -> dict[str, pa.Array]:
    """The columns that say where numbers of (heads, positions) stand, row by row."""
    heads, length = numbers.shape
    return {
        "layer": _column(np.full(heads * length, layer, np.int16)),
        head: _column(np.repeat(np.arange(heads, dtype=np.int16), length)),
        position: _column(np.tile(np.arange(length, dtype=np.int32), heads)),
    }


def row_table(layer: int, graph: AttentionGraph) -> pa.Table:
    """The rows of a graph, as they lie in rows.parquet."""
    return pa.table(
        {
            **_places(layer, "head", "query", graph.lse),
            "lse": _column(_numbers(graph.lse)),
            "entropy": _column(_numbers(graph.entropy)),
            "rest": _column(_numbers(graph.rest)),
            "count": _column(graph.count.detach().cpu().numpy().ravel().astype(np.int32)),
        }
    )


def key_table(layer: int, value_norms: Tensor) -> pa.Table:
    """The norms of a layer's values, as they lie in keys.parquet."""
    places = _places(layer, "kv_head", "key", value_norms)
    return pa.table({**places, "value_norm": _column(_numbers(value_norms))})


def received_table(layer: int, graph: AttentionGraph) -> pa.Table:
    """What the keys of a graph receive, where it is known, as it lies in received.parquet.

    received_last is NaN where the last queries were not asked for.
    """
    if graph.received is None or graph.received_most is None:
        raise ValueError("a graph that does not know what its keys receive")
    last = graph.received_last
    last = torch.full_like(graph.received, torch.nan) if last is None else last
    return pa.table(
        {
            **_places(layer, "head", "key", graph.received),
            "received": _column(_numbers(graph.received)),
            "received_most": _column(_numbers(graph.received_most)),
            "received_last": _column(_numbers(last)),
        }
    )


#: How each column is written: what is small and quick for numbers of its kind. Scores and weights
#: byte by byte, which LZ4 then finds alike; keys as differences.
_ENCODINGS = {
    "key": "DELTA_BINARY_PACKED",
    **dict.fromkeys(FRACTIONS, "BYTE_STREAM_SPLIT"),
}
#: Columns by whose smallest and largest values a reader can skip row groups.
_STATISTICS = ("layer", "head", "kv_head", "query", "key")


class TableFile:
    """A Parquet file that grows a row group at a time."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.path, self.rows = path, 0
        self._writer = pq.ParquetWriter(
            path,
            schema,
            compression="lz4",
            use_dictionary=False,
            column_encoding={name: _ENCODINGS[name] for name in schema.names if name in _ENCODINGS},
            write_statistics=[name for name in schema.names if name in _STATISTICS],
            write_page_checksum=True,
            store_schema=False,
        )

    def append(self, table: pa.Table) -> None:
        """Add a row group; an empty one is left out."""
        if table.num_rows:
            self._writer.write_table(table, row_group_size=table.num_rows)
            self.rows += table.num_rows

    def close(self) -> None:
        """Write the end of the file."""
        self._writer.close()


class TensorFile:
    """A safetensors file that grows by a tensor at a time.

    The format puts its table of contents first. Room is left for it before the numbers; only where
    that is too small, the numbers are copied behind it.
    """

    def __init__(self, path: Path, metadata: dict[str, str], first: int) -> None:
        """first: bytes of the first layer, by which room is left."""
        self._path = path
        self._file: BinaryIO = path.open("wb")
        self._contents: JsonObject = {"__metadata__": metadata}
        self._room = min(CONTENTS, first // 128 * 8)
        try:
            self._file.seek(self._room)
        except BaseException:
            self._file.close()
            raise

    def append(self, name: str, tensor: Tensor) -> None:
        """Add a tensor."""
        start = self._file.tell() - self._room
        numbers = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
        self._file.write(numbers.data)
        self._contents[name] = {
            "dtype": DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, self._file.tell() - self._room],
        }

    def close(self) -> None:
        """Close the file, whole or not."""
        self._file.close()

    def finish(self) -> None:
        """Write the table of contents and close the file."""
        self.close()
        header = header_of(self._contents)
        if 8 + len(header) <= self._room:
            header += b" " * (self._room - 8 - len(header))
            with self._path.open("r+b") as file:
                file.write(len(header).to_bytes(8, "little") + header)
            return
        part = self._path.with_suffix(".part")
        with part.open("wb") as whole, self._path.open("rb") as numbers:
            whole.write(len(header).to_bytes(8, "little") + header)
            numbers.seek(self._room)
            while block := numbers.read(1 << 22):
                whole.write(block)
        part.replace(self._path)
