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

from headloom.mechanism.autocast import in_own_types
from headloom.mechanism.mask import KeyRanges
from headloom.mechanism.matrix.calls import MatrixCall
from headloom.mechanism.matrix.cells import cells

__all__ = ["reduced", "summaries_of_blocks"]

#: Rows and columns that are formed at a time: 1 MiB of float32.
_ROWS, _COLUMNS = 128, 2048


@in_own_types
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
    ranges = _seen(call)
    for start in range(rows.start, rows.stop, tall):
        some = range(start, min(start + tall, rows.stop))
        seen = None if ranges is None else ranges[:, start : some.stop]
        for across, part in _parts(call, lse, seen, some, columns, wide, size):
            into = _blocks_of(some, rows, size), _blocks_of(across, columns, size)
            largest[into], sums[into] = reduced(part, size)
    return largest, sums


def _seen(call: MatrixCall) -> Tensor | None:
    """First key and end for each query, (2, queries); None where only cells say the mask."""
    _, queries, keys = call.shape
    bounds = KeyRanges() if call.mask is None else call.mask.bounds(queries, keys)
    return bounds.of_sample(queries, keys, 0) if bounds.rest is None else None


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
    call: MatrixCall,
    lse: Tensor,
    seen: Tensor | None,
    rows: range,
    every: range,
    wide: int,
    size: int,
) -> Iterator[tuple[range, Tensor]]:
    """The weights of some rows, a range of columns at a time; what is hidden is left out.

    seen: first key and end for each of the rows, (2, rows), where that is the mask; see
        Mask.ranges. None: cells decide.
    """
    if (
        seen is None
        or call.relative is not None
        or call.bias is not None
        or call.softcap is not None
        or not call.of_products
    ):
        for columns in _tiles(every, seen, wide, size):
            yield columns, cells(call, lse, rows, columns)[0]
        return
    scaled = call.queries[0, rows.start : rows.stop] * call.scale
    keys = call.keys[0]
    # A row that sees nothing has lse = -inf and weights 0.
    blind = lse[0, rows.start : rows.stop]
    less = (-blind).masked_fill(blind == -math.inf, -math.inf).to(scaled.dtype)[:, None]
    first, end = seen[..., None].to(scaled.device)
    for columns in _tiles(every, seen, wide, size):
        part = torch.addmm(less, scaled, keys[columns.start : columns.stop].T)
        if int(first.max()) > columns.start or int(end.min()) < columns.stop:
            key = torch.arange(columns.start, columns.stop, device=part.device)
            part.masked_fill_((key < first) | (key >= end), -math.inf)
        yield columns, part.exp_()


def _tiles(every: range, seen: Tensor | None, wide: int, size: int) -> Iterator[range]:
    """The columns that some row sees, so many at a time, from the start of a block on."""
    start, stop = every.start, every.stop
    if seen is not None:
        some = seen[:, seen[1] > seen[0]]
        if not some.numel():
            return
        start += max(int(some[0].min()) - start, 0) // size * size
        stop = min(stop, int(some[1].max()))
    for first in range(start, stop, wide):
        yield range(first, min(first + wide, stop))
