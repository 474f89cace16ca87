"""The weight matrix of one head seen from afar: the largest weight and the sum of every block.

    largest_BC = max over i in B, j in C of P_ij        sum_BC = sum over them of P_ij

in one pass over the matrix, some thousand columns at a time, so that cells never leave the cache.
Blocks that the mask hides are skipped.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from weft.mechanism.masks import Window
from weft.mechanism.matrix.calls import MatrixCall
from weft.mechanism.matrix.cells import cells

__all__ = ["reduced", "summaries_of_blocks"]

#: Rows and columns that are formed at a time: 1 MiB of float32.
_ROWS, _COLUMNS = 128, 2048


def summaries_of_blocks(
    call: MatrixCall, lse: Tensor, size: int, rows: range, columns: range
) -> tuple[Tensor, Tensor]:
    """The largest weight and the sum of each block of some rows and columns of one head.

    Args:
        call: of one head.
        lse: (1, queries), of each row.
        size: the side of a block.
        rows, columns: which; blocks are counted from their starts.

    Returns: two of (blocks of queries, blocks of keys).
    """
    shape = (-(-len(rows) // size), -(-len(columns) // size))
    largest, sums = call.queries.new_zeros(shape), call.queries.new_zeros(shape)
    tall = max(_ROWS // size, 1) * size
    wide = max(_COLUMNS // size, 1) * size
    for start in range(rows.start, rows.stop, tall):
        some = range(start, min(start + tall, rows.stop))
        for across, part in _parts(call, lse, some, columns, wide, size):
            into = _blocks_of(some, rows, size), _blocks_of(across, columns, size)
            largest[into], sums[into] = reduced(part, size)
    return largest, sums


def _blocks_of(some: range, every: range, size: int) -> slice:
    return slice((some.start - every.start) // size, -(-(some.stop - every.start) // size))


def reduced(part: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The largest number and the sum of each block of size x size of a matrix of weights."""
    if size == 1:
        return part, part
    rows, columns = part.shape
    if rows % size or columns % size:
        part = torch.nn.functional.pad(part, (0, -columns % size, 0, -rows % size))
    # Rows first: whole lines are compared at a time.
    lines = part.reshape(-(-rows // size), size, -1)
    largest = lines.amax(1).reshape(len(lines), -1, size).amax(2)
    return largest, lines.sum(1).reshape(len(lines), -1, size).sum(2)


def _parts(
    call: MatrixCall, lse: Tensor, rows: range, every: range, wide: int, size: int
) -> Iterator[tuple[range, Tensor]]:
    """The weights of some rows, a range of columns at a time; what is hidden is left out."""
    window = call.mask if isinstance(call.mask, Window) else None
    first, last = every.start, every.stop
    if window is not None and window.left is not None:
        seen = max(first, rows.start + window.offset - window.left)
        first += (min(seen, last) - first) // size * size
    if window is not None and window.right is not None:
        last = max(first, min(last, rows.stop + window.offset + window.right))
    plain = (
        call.relative is None
        and call.bias is None
        and call.softcap is None
        and (call.mask is None or window is not None)
    )
    if not plain:
        for start in range(first, last, wide):
            columns = range(start, min(start + wide, last))
            yield columns, cells(call, lse, rows, columns)[0]
        return
    scaled = call.queries[0, rows.start : rows.stop] * call.scale
    keys = call.keys[0]
    # A row that sees nothing has lse = -inf and weights 0.
    blind = lse[0, rows.start : rows.stop]
    less = (-blind).masked_fill(blind == -math.inf, -math.inf).to(scaled.dtype)[:, None]
    for start in range(first, last, wide):
        columns = range(start, min(start + wide, last))
        part = torch.addmm(less, scaled, keys[columns.start : columns.stop].T)
        if window is not None and _straddles(window, rows, columns):
            allowed = window.block(rows, columns.stop, part.device)[0, 0, :, columns.start :]
            part.masked_fill_(~allowed, -math.inf)
        yield columns, part.exp_()


def _straddles(window: Window, rows: range, columns: range) -> bool:
    """Whether a window hides some cells of a tile."""
    low, high = rows.start + window.offset, rows.stop - 1 + window.offset
    past = window.right is not None and columns.stop - 1 > low + window.right
    before = window.left is not None and columns.start < high - window.left
    return past or before
