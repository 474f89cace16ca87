"""Overview of a layer's weight matrices: the mean weight of every block of cells.

mean_BC = sum over i in B, j in C of P_ij / (|B| |C|)
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from headloom.mechanism.matrix.attention_matrix import AttentionMatrix

Array = np.ndarray
#: Cells between two calls of `go_on`: a second or two.
_BAND_CELLS = 2**28


def block_sizes(queries: int, keys: int, most: int) -> tuple[int, int]:
    """Return the rows and columns of a block for at most `most` blocks along each side.

    >>> block_sizes(480, 100, 128)
    (4, 1)
    """
    return max(1, -(-queries // most)), max(1, -(-keys // most))


def matrix_means(
    matrix: AttentionMatrix,
    head: int,
    sizes: tuple[int, int],
    go_on: Callable[[], bool] = lambda: True,
) -> Tensor:
    """Return the exact block means of one head: its matrix times the membership of keys in blocks.

    go_on: called now and then in a long pass; False stops it.
    Raises: InterruptedError: `go_on` returned False.
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
    """Return the block means of every head in one pass, (heads, blocks, blocks).

    Faster than `matrix_means` for many heads of a short text.
    """
    heads, queries, keys = matrix.shape
    rows, columns = sizes
    member = _member(keys, columns)
    total = torch.zeros(heads, -(-queries // rows), member.shape[1], dtype=torch.float64)
    total.index_add_(1, torch.arange(queries) // rows, (matrix @ member).double())
    counts = _sizes(queries, rows)[:, None] * _sizes(keys, columns)[None]
    return (total / counts).float()


def _member(keys: int, columns: int) -> Tensor:
    """Return the membership of keys in blocks as ones and zeros, (keys, blocks)."""
    return (torch.arange(keys)[:, None] // columns == torch.arange(-(-keys // columns))).float()


def edge_means(keys: Array, weights: Array, length: int, sizes: tuple[int, int]) -> Array:
    """Return the block means of kept edges; other edges count as 0.

    Args:
        keys: of the edges, (heads, queries, kept); -1: no edge.
        weights: of the edges.
        length: number of keys.
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
    """Return the number of positions of each block: the last may have fewer."""
    starts = torch.arange(0, length, size)
    return (length - starts).clamp(max=size).double()
