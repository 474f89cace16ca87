"""The cells of a pattern: pairs of a query and a key, one by one, in blocks, or row by row."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from headloom.analysis.heads.patterns import Classes, Diagonals, HeadKeys, Pattern

__all__ = ["SMALL_CLASS", "cells_of", "members"]

#: Cells of a class up to which each is a product of its own, not part of a block.
SMALL_CLASS = 64

Cells = tuple[Tensor, Tensor]


def cells_of(pattern: Classes) -> tuple[Cells, list[Cells]]:
    """The cells of each class that has queries and keys.

    Returns: of small classes, the query and the key of each cell; of each large one, its queries
    and its keys.
    """
    rows, columns = pattern.of_queries.argsort(stable=True), pattern.of_keys.argsort(stable=True)
    row_classes, column_classes = pattern.of_queries[rows], pattern.of_keys[columns]
    classes = torch.unique(column_classes[column_classes >= 0])
    edges = [
        torch.searchsorted(sorted_classes, classes, right=right)
        for sorted_classes in (row_classes, column_classes)
        for right in (False, True)
    ]
    first_row, end_row, first_column, end_column = edges
    wide = end_column - first_column
    sizes = (end_row - first_row) * wide
    is_large = sizes > SMALL_CLASS
    blocks = [
        (rows[first:end], columns[left:right])
        for first, end, left, right in torch.stack(edges, 1)[is_large].tolist()
    ]
    # All cells of all small classes at once: a text has thousands of them.
    sizes = sizes.masked_fill(is_large, 0)
    owner = torch.arange(len(classes)).repeat_interleave(sizes)
    cell = torch.arange(len(owner)) - (sizes.cumsum(0) - sizes)[owner]
    row = first_row[owner] + cell // wide[owner]
    column = first_column[owner] + cell % wide[owner]
    return (rows[row], columns[column]), blocks


def members(pattern: Pattern, rows: range, keys: int, heads: int) -> Iterator[Tensor]:
    """For each head, whether each key is in the set of each of some queries, (rows, keys)."""
    i, j = torch.arange(rows.start, rows.stop)[:, None], torch.arange(keys)[None, :]
    if isinstance(pattern, HeadKeys):
        for of_head in pattern.member:
            yield of_head & pattern.rows[rows.start : rows.stop, None]
        return
    if isinstance(pattern, Diagonals):
        inside = (j - i >= pattern.lowest) & (j - i <= pattern.highest)
    else:
        wanted = pattern.of_queries[rows.start : rows.stop, None]
        inside = (pattern.of_keys[None, :] == wanted) & (wanted >= 0)
        inside = inside if pattern.without is None else inside & (j != i + pattern.without)
    for _ in range(heads):
        yield inside
