"""The weights of a layer averaged over its heads, the strongest edges of each row.

A browser works out the mean's graph and the paths through all layers from these; of long texts the
server does: see `token_flow` and `strongest`.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import scipy.sparse
import torch

from headloom.analysis.graphs.head_average import average_rows, averaged
from headloom.formats.trace import TraceData, TraceLayer
from headloom.studio.arrays import Array, LayerArrays

__all__ = [
    "LOCAL",
    "layer_mean",
    "mean_rows",
    "most_kept",
    "partial_rows",
    "rows_at_once",
]

#: Rows of a layer up to which a browser works with its mean.
LOCAL = 2048
#: Edges of a mean at most, and of the means of all layers; and yet so many of each row.
_EDGES, _EDGES_OF_ALL, _EDGES_OF_A_ROW = 2**16, 2**20, 8
#: Cells of all heads up to which a mean is exact where it can be: a second of work.
_CHEAP_CELLS = 2**26
#: Kept edges of all heads that are averaged at once.
_PART = 2**21


def most_kept(trace: TraceData, number: int) -> int:
    """Edges that the mean of a layer has of each row, at most."""
    _, queries, keys = trace.layers[number].shape
    edges = min(_EDGES, _EDGES_OF_ALL // len(trace.layers))
    return min(keys, max(_EDGES_OF_A_ROW, edges // max(queries, 1)))


def rows_at_once(arrays: LayerArrays) -> int:
    """Rows whose kept edges of all heads are averaged in one go."""
    return max(1, _PART // max(arrays.heads * arrays.kept, 1))


def mean_rows(arrays: LayerArrays, rows: slice) -> scipy.sparse.csr_array:
    """Some rows of the mean of the kept edges, (rows, keys)."""
    keys, weights = (torch.from_numpy(of[:, rows]) for of in (arrays.keys, arrays.weights))
    return average_rows(keys, weights, arrays.length)


def partial_rows(arrays: LayerArrays) -> Array:
    """Of which rows some head did not keep every edge, (queries,)."""
    found: Array = ((arrays.keys >= 0).sum(-1) < arrays.count).any(0)
    return found


def layer_mean(trace: TraceData, number: int, arrays: LayerArrays) -> bytes:
    """The mean of a layer's heads, exact where that is cheap, little-endian.

    weights   float32 (rows, kept), strongest first
    missing   float32 (rows,): the mass of the row on keys that are not here
    partial   uint32 (rows,): 1 where weights may be higher, as some head did not keep the edge
    keys      uint32 (rows, kept); 4294967295: no edge
    """
    kept, layer = most_kept(trace, number), trace.layers[number]
    weights = np.zeros((arrays.queries, kept), np.float32)
    keys = np.full((arrays.queries, kept), 2**32 - 1, np.uint32)
    dense = _exact(layer, arrays)
    size = rows_at_once(arrays)
    for start in range(0, arrays.queries, size):
        rows = slice(start, min(start + size, arrays.queries))
        part = mean_rows(arrays, rows) if dense is None else scipy.sparse.csr_array(dense[rows])
        _strongest(part, weights[rows], keys[rows])
    mass = arrays.masses.mean(0) if dense is None else dense.sum(-1, dtype=np.float64)
    missing = np.maximum(mass - weights.sum(-1, dtype=np.float64), 0)
    partial = partial_rows(arrays) if dense is None else np.zeros(arrays.queries)
    parts = weights, missing.astype("<f4"), partial.astype("<u4"), keys.astype("<u4")
    return b"".join(part.tobytes() for part in parts)


def _exact(layer: TraceLayer, arrays: LayerArrays) -> Array | None:
    """The mean of all cells; None: of the kept edges, which may be all there are."""
    cheap = math.prod(layer.shape) <= _CHEAP_CELLS and not np.isnan(arrays.lse).any()
    if not cheap or not layer.data.has_matrix or layer.data.keeps_every_edge:
        return None
    # A layer of its own, so that what it reads can be let go.
    found: Array = averaged(dataclasses.replace(layer), True).dense().numpy()
    return found


def _strongest(part: scipy.sparse.csr_array, weights: Array, keys: Array) -> None:
    """Write the strongest edges of each row, ties in the order of their keys.

    A weight that is not a number is none: its row lacks its mass.
    """
    counts = np.diff(part.indptr)
    rows = np.repeat(np.arange(len(counts)), counts)
    order = np.lexsort((part.indices, -part.data, rows))
    place = np.arange(len(order)) - np.repeat(part.indptr[:-1], counts)
    some = (place < weights.shape[1]) & ~np.isnan(part.data[order])
    chosen = order[some]
    weights[rows[some], place[some]] = part.data[chosen]
    keys[rows[some], place[some]] = part.indices[chosen]
