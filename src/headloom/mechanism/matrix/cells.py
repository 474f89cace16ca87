"""Cells of an attention matrix, recomputed from queries, keys and log-sum-exp.

    P_ij = e^(s_ij - lse_i)

A tile costs its own cells; what needs every cell goes through the matrix some rows at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from headloom.errors import InputError
from headloom.mechanism.mask import KeyRanges
from headloom.mechanism.matrix.calls import MatrixCall
from headloom.mechanism.modes import in_own_types
from headloom.mechanism.shapes import in_words

__all__ = ["blocks", "cells", "diagonal", "places_of", "summaries_of_blocks", "tile"]

#: Cells of a block of rows that is formed on the way: 64 MiB of float32.
BLOCK_CELLS = 2**24
#: Rows and columns that are summarised at a time, so that cells stay in the cache: 1 MiB.
_ROWS, _COLUMNS = 128, 2048


def cells(call: MatrixCall, lse: Tensor, rows: range, columns: range) -> Tensor:
    """Weights of some rows and columns, (heads, rows, columns)."""
    scores = call.scores(rows, columns)
    lse = lse[:, rows.start : rows.stop, None].to(scores.dtype)
    return (scores - lse.masked_fill(lse == -math.inf, 0)).exp()


def blocks(call: MatrixCall, lse: Tensor) -> Iterator[tuple[range, Tensor]]:
    """The matrix, some rows at a time, with which rows these are."""
    heads, queries, keys = call.shape
    size = max(1, BLOCK_CELLS // max(1, heads * keys))
    for start in range(0, queries, size):
        rows = range(start, min(start + size, queries))
        yield rows, cells(call, lse, rows, range(keys))


@in_own_types
def diagonal(call: MatrixCall, lse: Tensor, offset: int) -> Tensor:
    """``P_{i, i + offset}``, 0 where there is no such key, (heads, queries)."""
    _, queries, keys = call.shape
    weights = call.queries.new_zeros(call.shape[:2])
    size = 256
    for start in range(0, queries, size):
        first = max(start, -offset)
        end = min(start + size, queries, keys - offset)
        if first < end:
            tile = cells(call, lse, range(first, end), range(first + offset, end + offset))
            weights[:, first:end] = tile.diagonal(dim1=1, dim2=2)
    return weights


def tile(call: MatrixCall, lse: Tensor, rows: Sequence[int], columns: Sequence[int]) -> Tensor:
    """Weights of some rows and columns, wherever these are, (heads, rows, columns)."""
    span = range(min(columns), max(columns) + 1) if columns else range(0)
    parts = [cells(call, lse, run, span) for run in _runs(rows)]
    if not parts:
        return call.queries.new_zeros(call.shape[0], 0, len(columns))
    found = torch.cat(parts, 1)
    if list(columns) == list(span):
        return found
    return found[:, :, [column - span.start for column in columns]]


def _runs(places: Sequence[int]) -> Iterator[range]:
    """Places as ranges of those that follow each other.

    >>> list(_runs([3, 4, 5, 9, 1]))
    [range(3, 6), range(9, 10), range(1, 2)]
    """
    start = 0
    for end in range(1, len(places) + 1):
        if end == len(places) or places[end] != places[end - 1] + 1:
            yield range(places[start], places[end - 1] + 1)
            start = end


def places_of(
    index: object, shape: tuple[int, int, int]
) -> tuple[Sequence[int], Sequence[int], Sequence[int], list[int]]:
    """``matrix[index]`` as heads, queries, keys, and which of the three were numbers.

    Raises: InputError: it is no heads, queries, keys, or one of them is not there.
    """
    parts = index if isinstance(index, tuple) else (index,)
    shown = ", ".join(repr(part) if isinstance(part, slice) else in_words(part) for part in parts)
    if len(parts) != 3:
        raise InputError(
            f"matrix[{shown}]: expected matrix[head, queries, keys], each a number, a slice or a "
            "list of numbers."
        )
    places: list[Sequence[int]] = []
    numbers = []
    for n, (part, size) in enumerate(zip(parts, shape, strict=True)):
        try:
            if isinstance(part, slice):
                places.append(range(*part.indices(size)))
                continue
            # As NumPy chooses: by numbers, also from the end, or by flags.
            which = np.asarray(part)
            chosen = np.arange(size)[which if which.size else which.astype(int)]
        except (IndexError, TypeError, ValueError):
            chosen = np.zeros((1, 1))
        if chosen.ndim > 1:
            raise InputError(
                f"matrix[{shown}]: no such {('head', 'query', 'key')[n]}; expected a number below "
                f"{size}, a slice or a list of numbers."
            )
        places.append(chosen.reshape(-1).tolist())
        if not chosen.ndim:
            numbers.append(n)
    return places[0], places[1], places[2], numbers


@in_own_types
def summaries_of_blocks(
    call: MatrixCall, lse: Tensor, size: int, rows: range, columns: range
) -> tuple[Tensor, Tensor]:
    """The largest weight and the sum of each block of some rows and columns of one head.

        largest_BC = max over i in B, j in C of P_ij        sum_BC = sum over them of P_ij

    Blocks that the mask hides are skipped.

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
    _, queries, keys = call.shape
    bounds = KeyRanges() if call.mask is None else call.mask.bounds(queries, keys)
    ranges = bounds.of_sample(queries, keys, 0) if bounds.rest is None else None
    for start in range(rows.start, rows.stop, tall):
        some = range(start, min(start + tall, rows.stop))
        seen = None if ranges is None else ranges[:, start : some.stop]
        for across, part in _parts(call, lse, seen, some, columns, wide, size):
            into = _blocks_of(some, rows, size), _blocks_of(across, columns, size)
            largest[into], sums[into] = _reduced(part, size)
    return largest, sums


def _blocks_of(some: range, every: range, size: int) -> slice:
    return slice((some.start - every.start) // size, -(-(some.stop - every.start) // size))


def _reduced(part: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The largest number and the sum of each block of size x size of a matrix of weights."""
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

    seen: first key and end for each of the rows, (2, rows), where that is the mask. None: cells
        decide.
    """
    start, stop = every.start, every.stop
    if seen is not None:
        some = seen[:, seen[1] > seen[0]]
        if not some.numel():
            return
        # From the start of a block on.
        start += max(int(some[0].min()) - start, 0) // size * size
        stop = min(stop, int(some[1].max()))
    tiles = (range(first, min(first + wide, stop)) for first in range(start, stop, wide))
    added = call.relative is not None or call.bias is not None or call.softcap is not None
    if seen is None or added or not call.of_products:
        for columns in tiles:
            yield columns, cells(call, lse, rows, columns)[0]
        return
    scaled = call.queries[0, rows.start : rows.stop] * call.scale
    # A row that sees nothing has lse = -inf and weights 0.
    blind = lse[0, rows.start : rows.stop]
    less = (-blind).masked_fill(blind == -math.inf, -math.inf).to(scaled.dtype)[:, None]
    first, end = seen[..., None].to(scaled.device)
    for columns in tiles:
        part = torch.addmm(less, scaled, call.keys[0, columns.start : columns.stop].T)
        if int(first.max()) > columns.start or int(end.min()) < columns.stop:
            key = torch.arange(columns.start, columns.stop, device=part.device)
            part.masked_fill_((key < first) | (key >= end), -math.inf)
        yield columns, part.exp_()
