"""The weight matrices of a layer seen from afar: the mean weight of every block of cells.

    mean_BC = sum over i in B, j in C of P_ij / (|B| |C|)

Exact wherever the trace has queries and keys, or kept every edge; else of the kept edges alone,
with what they leave out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headloom.analysis.weights import keeps_all, mean_left_out
from headloom.formats.trace import TraceLayer
from headloom.mechanism.matrix.attention_matrix import AttentionMatrix
from headloom.mechanism.shapes import whole_number

Array = np.ndarray
#: Cells between two times that a pass asks whether to go on: a second or two.
_BAND_CELLS = 2**28


@dataclass(frozen=True)
class Overview:
    """Block means of every head of a layer.

    means      (heads, blocks of queries, blocks of keys); the last blocks may be smaller
    sizes      rows and columns of a block
    exact      whether all cells are in them; False: an edge that was not kept counts as 0
    left_out   (heads,), the share of a row's mass that is not in them, on average
    """

    means: Array
    sizes: tuple[int, int]
    exact: bool
    left_out: Array

    @property
    def masses(self) -> Array:
        """means times the keys of a block: the share of a row that such a block holds, 0 to 1."""
        masses: Array = self.means * self.sizes[1]
        return masses


def block_sizes(queries: int, keys: int, most: int) -> tuple[int, int]:
    """Rows and columns of a block, so that there are at most `most` blocks along each.

    >>> block_sizes(480, 100, 128)
    (4, 1)
    """
    return max(1, -(-queries // most)), max(1, -(-keys // most))


def overview(layer: TraceLayer, most: int) -> Overview:
    """The means of a layer in at most `most` x `most` blocks: of the whole matrix where it can be.

    >>> import headloom
    >>> seen = overview(headloom.from_weights(torch.eye(4)[None]).layers[0], 2)
    >>> seen.means[0].round(6).tolist(), seen.masses[0].round(6).tolist()
    ([[0.5, 0.0], [0.0, 0.5]], [[1.0, 0.0], [0.0, 1.0]])
    """
    most = whole_number("overview", "most", most, 1)
    heads, queries, keys = layer.shape
    sizes = block_sizes(queries, keys, most)
    graph = layer.graph
    matrix = None if keeps_all(graph) else layer.matrix
    if matrix is not None:
        means = [matrix_means(matrix, head, sizes) for head in range(heads)]
        return Overview(torch.stack(means).numpy(), sizes, True, np.zeros(heads))
    kept = edge_means(graph.keys.numpy(), graph.weights.numpy(), keys, sizes)
    sinks = None if layer.terms is None else layer.terms.sinks
    return Overview(kept, sizes, keeps_all(graph), mean_left_out(graph, sinks).numpy())


def matrix_means(
    matrix: AttentionMatrix,
    head: int,
    sizes: tuple[int, int],
    go_on: Callable[[], bool] = lambda: True,
) -> Tensor:
    """The block means of one head, exactly: its matrix times the membership of keys in blocks.

    go_on: asked now and then in a pass that takes long.
    Raises: InterruptedError: it said no.
    """
    _, queries, keys = matrix.shape
    rows, columns = sizes
    member = _member(keys, columns)
    high = -(-queries // rows)
    total = torch.zeros(high, member.shape[1], dtype=torch.float64)
    band = max(1, _BAND_CELLS // max(keys, 1))
    for start in range(0, queries, band):
        if not go_on():
            raise InterruptedError
        stop = min(start + band, queries)
        part = matrix.of_rows(head, start, stop) if band < queries else None
        if part is None:
            if start:
                break
            stop, part = queries, matrix.of_head(head)
        product = (part @ member)[0].double()
        total.index_add_(0, torch.arange(start, stop) // rows, product)
    counts = _sizes(queries, rows)[:, None] * _sizes(keys, columns)[None]
    return (total / counts).float()


def layer_means(matrix: AttentionMatrix, sizes: tuple[int, int]) -> Tensor:
    """The block means of every head in one pass, (heads, blocks, blocks), as `matrix_means` finds
    them head by head: for many heads of a short text, whose passes cost more than their cells.
    """
    heads, queries, keys = matrix.shape
    rows, columns = sizes
    member = _member(keys, columns)
    total = torch.zeros(heads, -(-queries // rows), member.shape[1], dtype=torch.float64)
    total.index_add_(1, torch.arange(queries) // rows, (matrix @ member).double())
    counts = _sizes(queries, rows)[:, None] * _sizes(keys, columns)[None]
    return (total / counts).float()


def _member(keys: int, columns: int) -> Tensor:
    """Which block each key is in, as ones and zeros, (keys, blocks)."""
    return (torch.arange(keys)[:, None] // columns == torch.arange(-(-keys // columns))).float()


def edge_means(keys: Array, weights: Array, length: int, sizes: tuple[int, int]) -> Array:
    """The block means of kept edges, an edge that was not kept being 0.

    Args:
        keys, weights: (heads, queries, kept); key -1: no edge.
        length: how many keys there are.
        sizes: rows and columns of a block.
    """
    heads, queries, _ = keys.shape
    rows, columns = sizes
    high, wide = -(-queries // rows), -(-length // columns)
    if not heads * queries * length:
        return np.zeros((heads, high, wide), np.float32)
    of_row = np.arange(heads)[:, None, None] * high + (np.arange(queries) // rows)[:, None]
    cells = of_row * wide + np.maximum(keys, 0) // columns  # empty places weigh 0
    sums = np.bincount(cells.ravel(), weights=weights.ravel(), minlength=heads * high * wide)
    counts = np.outer(_sizes(queries, rows).numpy(), _sizes(length, columns).numpy())
    means: Array = (sums.reshape(heads, high, wide) / counts).astype(np.float32)
    return means


def _sizes(length: int, size: int) -> Tensor:
    """How many positions each block has: the last may have fewer."""
    starts = torch.arange(0, length, size)
    return (length - starts).clamp(max=size).double()
