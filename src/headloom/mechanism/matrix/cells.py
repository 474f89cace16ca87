"""Cells of an attention matrix, recomputed from queries, keys and log-sum-exp.

    P_ij = e^(s_ij - lse_i)

A tile costs its own cells; what needs every cell goes through the matrix some rows at a time.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headloom.errors import InputError
from headloom.mechanism.autocast import in_own_types
from headloom.mechanism.matrix.calls import MatrixCall
from headloom.mechanism.shapes import in_words

__all__ = [
    "block_size_of",
    "blocks",
    "cells",
    "diagonal",
    "maxima_of_blocks",
    "places_of",
    "sizes_of_blocks",
    "tile",
]

#: Cells of a block of rows that is formed on the way: 64 MiB of float32.
BLOCK_CELLS = 2**24


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


def maxima_of_blocks(call: MatrixCall, lse: Tensor, size: int) -> Tensor:
    """Largest weights of blocks of size x size cells, (heads, blocks, blocks)."""
    heads, queries, keys = call.shape
    maxima = call.queries.new_zeros(heads, -(-queries // size), -(-keys // size))
    for rows, block in blocks(call, lse):
        padded = torch.nn.functional.pad(block, (0, -keys % size))
        columns = padded.reshape(heads, len(rows), -1, size).amax(3)
        index = torch.arange(rows.start, rows.stop, device=maxima.device) // size
        index = index[None, :, None]
        maxima.scatter_reduce_(1, index.expand_as(columns), columns, "amax")
    return maxima


def sizes_of_blocks(queries: int, keys: int, size: int) -> Tensor:
    """The number of cells of each block, (blocks, blocks): the last may be smaller."""
    down, across = (
        torch.full((-(-length // size),), size).cumsum(0).clamp(max=length).diff(prepend=zero)
        for length, zero in ((queries, torch.zeros(1).long()), (keys, torch.zeros(1).long()))
    )
    return down[:, None] * across[None, :]


def block_size_of(operation: str, size: int) -> int:
    """The side of a block as a number, or an InputError."""
    try:
        number = operator.index(size)
    except TypeError:
        number = 0
    if number < 1:
        raise InputError(
            f"{operation}: size={in_words(size)}; expected the side of a block, 1 or more."
        )
    return number


def _shown(index: object) -> str:
    """What stands between the brackets, on one line."""
    if not isinstance(index, tuple):
        return in_words(index)
    return ", ".join(repr(part) if isinstance(part, slice) else in_words(part) for part in index)


def tile(call: MatrixCall, lse: Tensor, rows: Sequence[int], columns: Sequence[int]) -> Tensor:
    """Weights of some rows and columns, wherever these are, (heads, rows, columns)."""
    span = range(min(columns), max(columns) + 1) if columns else range(0)
    parts = [cells(call, lse, run, span) for run in _runs(rows)]
    if not parts:
        return call.queries.new_zeros(call.shape[0], 0, len(columns))
    found = torch.cat(parts, 1)
    if len(columns) == len(span) and list(columns) == list(span):
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


def _numbers(parts: Any, size: int) -> list[int]:
    """Places as whole numbers; of as many flags as there are places, those that are true.

    A number that is no place stands for what is none.
    """
    flags = [isinstance(part, bool | np.bool_) or _is_flag(part) for part in parts]
    if any(flags):
        every = all(flags) and len(flags) == size
        return [place for place, part in enumerate(parts) if part] if every else [size]
    try:
        return [operator.index(part) for part in parts]
    except TypeError:
        return [size]


def _is_flag(part: object) -> bool:
    return isinstance(part, Tensor) and part.dtype == torch.bool


def places_of(
    index: Any, shape: tuple[int, int, int]
) -> tuple[Sequence[int], Sequence[int], Sequence[int], list[int]]:
    """``matrix[index]`` as heads, queries, keys, and which of the three were numbers.

    Raises: InputError: it is no heads, queries, keys, or one of them is not there.
    """
    if not (isinstance(index, tuple) and len(index) == 3):
        raise InputError(
            f"matrix[{_shown(index)}]: expected matrix[head, queries, keys], each a number, a "
            "slice or a list of numbers."
        )
    places: list[Sequence[int]] = []
    numbers = []
    for n, (part, size, name) in enumerate(
        zip(index, shape, ("head", "query", "key"), strict=True)
    ):
        if isinstance(part, slice):
            try:
                places.append(range(*part.indices(size)))
            except (TypeError, ValueError):
                raise InputError(
                    f"matrix[{_shown(index)}]: expected whole numbers as ends of the slice, and a "
                    "step that is not 0."
                ) from None
            continue
        several = isinstance(part, list | tuple | range | np.ndarray | Tensor)
        several = several and np.ndim(part) == 1
        chosen = _numbers(part if several else [part], size)
        if not all(-size <= number < size for number in chosen):
            raise InputError(
                f"matrix[{_shown(index)}]: no such {name}; expected a number below {size}, a slice "
                "or a list of numbers."
            )
        places.append([number % size for number in chosen])
        if not several:
            numbers.append(n)
    return places[0], places[1], places[2], numbers
