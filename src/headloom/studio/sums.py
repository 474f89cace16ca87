"""Sums over all weights of a layer, and their mean over heads, as little-endian arrays.

A browser works out the mean's graph and the paths through all layers from `layer_mean`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from scipy import sparse

from headloom.formats.trace import TraceData
from headloom.studio.arrays import Array, LayerArrays, Layers

#: Layers of up to this many rows have a mean.
LOCAL = 2048
#: Edges of a mean and of the means of all layers at most, and of each row at least.
_EDGES, _EDGES_OF_ALL, _EDGES_OF_A_ROW = 2**16, 2**20, 8
#: Means of up to this many cells of all heads are exact where possible: a second of work.
_CHEAP_CELLS = 2**26


def most_kept(trace: TraceData, number: int) -> int:
    """Return the edges of each row in the mean of a layer at most."""
    _, queries, keys = trace.layers[number].shape
    edges = min(_EDGES, _EDGES_OF_ALL // len(trace.layers))
    return min(keys, max(_EDGES_OF_A_ROW, edges // max(queries, 1)))


def layer_mean(layers: Layers, number: int) -> bytes:
    """Compute the mean of a layer's heads, the strongest edges of each row; exact where cheap.

    weights   float32 (rows, kept), strongest first
    missing   float32 (rows,): the mass of the row on keys that are not here
    keys      uint32 (rows, kept); 4294967295: no edge
    """
    arrays, kept = layers[number], most_kept(layers.trace, number)
    dense, mass = _dense_mean(layers, number)
    keys = np.argsort(-dense, 1, kind="stable")[:, :kept]
    weights = np.take_along_axis(dense, keys, 1).astype("<f4")
    missing = np.maximum(mass - weights.sum(-1, dtype=np.float64), 0)
    keys = np.where(weights > 0, keys, 2**32 - 1)
    assert len(weights) == arrays.queries
    return b"".join(
        (weights.tobytes(), missing.astype("<f4").tobytes(), keys.astype("<u4").tobytes())
    )


def _dense_mean(layers: Layers, number: int) -> tuple[Array, Array]:
    """Return the mean of all cells or of the kept edges, (queries, keys), and its rows' mass."""
    arrays = layers[number]
    data = layers.trace.layers[number].data
    mean = np.zeros((arrays.queries, arrays.length))
    cheap = arrays.heads * mean.size <= _CHEAP_CELLS and not np.isnan(arrays.lse).any()
    matrix = layers.matrix(number) if cheap and not data.keeps_every_edge else None
    if matrix is not None:
        for head in range(arrays.heads):
            mean += matrix[head, :, :].numpy()
        mean /= max(arrays.heads, 1)
        return mean, mean.sum(-1)
    heads, rows, places = np.nonzero((arrays.keys >= 0) & ~np.isnan(arrays.weights))
    kept = arrays.weights[heads, rows, places] / np.float64(arrays.heads)
    np.add.at(mean, (rows, arrays.keys[heads, rows, places]), kept)
    return mean, arrays.masses.mean(0)


@torch.no_grad()
def layer_sums(
    layers: Layers, number: int, norms: Array | None, go_on: Callable[[], bool] = lambda: True
) -> bytes:
    """Return sums over the weights P of each head, float32, one after the other.

    received (heads, keys)     sum_i P_ij: what a key receives from all queries
    valued (heads, queries)    sum_j P_ij |v_j|
    weighted (heads, keys)     sum_i P_ij |v_j| / valued_i: the same, weighted by |v|
    sinks (heads,)             logits of sinks, where there are some: e^(sink - lse_i) of row i

    Args:
        layers: of the trace.
        number: a layer that has its matrix, or that kept every edge.
        norms: |v|, (heads, keys); None: without `valued` and `weighted`.
        go_on: called before each head.

    Raises: InterruptedError: it returned False.
    """
    arrays, matrix = layers[number], layers.matrix(number)
    heads, queries, length = arrays.heads, arrays.queries, arrays.length
    known = arrays.received
    received = np.zeros((heads, length), np.float32) if known is None else known
    valued = np.zeros((heads, queries), np.float32)
    weighted = np.zeros((heads, length), np.float32)
    for head in range(heads if queries and length else 0):
        if not go_on():
            raise InterruptedError
        whole = _edges(arrays, head) if matrix is None else matrix.head(head)
        if known is None:
            received[head] = whole.T @ np.ones(queries, np.float32)
        if norms is not None:
            valued[head] = whole @ norms[head]
            # A fully masked row gives nothing.
            inverse = np.divide(
                1, valued[head], out=np.zeros(queries, np.float32), where=valued[head] > 0
            )
            weighted[head] = norms[head] * (whole.T @ inverse)
    parts = [received] if norms is None else [received, valued, weighted]
    terms = layers.trace.layers[number].terms
    if terms is not None and terms.sinks is not None:
        parts.append(terms.sinks.float().numpy())
    return b"".join(part.astype("<f4").tobytes() for part in parts)


def _edges(arrays: LayerArrays, head: int) -> sparse.csr_array:
    """Return the kept edges of a head as a sparse matrix."""
    rows, places = np.nonzero(arrays.keys[head] >= 0)
    weights, keys = arrays.weights[head, rows, places], arrays.keys[head, rows, places]
    return sparse.csr_array((weights, (rows, keys)), shape=(arrays.queries, arrays.length))
