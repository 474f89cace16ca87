"""An attention call with queries and keys exchanged: masks and relative positions turned over."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from weft.mechanism.adjacency import Neighbours
from weft.mechanism.masks import Both, Either, Explicit, Mask, Padding, Window
from weft.mechanism.packed import Packed, Ranges
from weft.mechanism.positions import Relative, Shaw, distances

__all__ = ["ByDistance", "transposed_mask", "transposed_relative"]


@dataclass(frozen=True, eq=False)
class ByDistance(Relative):
    """A bias by distance: ``bias_ij = values[zero + j - i - offset]``, (heads or 1, sizes)."""

    values: Tensor
    zero: int
    offset: int = 0

    def bias(self, rows: range, keys: int, device: torch.device) -> Tensor:
        """See Relative.bias."""
        index = distances(rows, keys, self.offset, device) + self.zero
        return self.values.to(device)[:, index]


def transposed_relative(relative: Relative | None, queries: int, keys: int) -> Relative | None:
    """The bias of (j, i) for (i, j), in memory linear in the length. Not for Shaw's positions."""
    if relative is None:
        return None
    assert not isinstance(relative, Shaw), "Shaw's scores depend on more than the distance"
    # One query at position queries - 1 sees key n at distance n - (queries - 1).
    row = relative.bias(range(queries - 1, queries), queries + keys - 1, torch.device("cpu"))
    assert row is not None
    return ByDistance(row[:, 0].flip(1), keys - 1)


def transposed_mask(mask: Mask | None, queries: int, keys: int) -> Mask | None:
    """May key j be looked at by query i, as a mask with a row for each key.

    queries, keys: sizes of the call whose mask it is.
    """
    if mask is None:
        return None
    if isinstance(mask, Both | Either):
        one = transposed_mask(mask.first, queries, keys)
        other = transposed_mask(mask.second, queries, keys)
        assert one is not None and other is not None
        return one & other if isinstance(mask, Both) else one | other
    if isinstance(mask, Window):
        return Window(mask.right, mask.left, -mask.offset)
    if isinstance(mask, Packed):
        ends = mask.query_lengths.cumsum(0)
        both = torch.stack((ends - mask.query_lengths, ends))
        first, end = both.repeat_interleave(mask.key_lengths, dim=1)
        rest = keys - first.shape[0]
        first, end = (torch.nn.functional.pad(side, (0, rest)) for side in (first, end))
        return Ranges(first, end)
    if isinstance(mask, Padding):
        real = mask.block(range(queries), keys, torch.device("cpu"))[0, 0, 0]
        return Ranges(torch.zeros(keys, dtype=torch.int64), real.long() * queries)
    if isinstance(mask, Neighbours):
        return _transposed_neighbours(mask)
    allowed = mask.allowed if isinstance(mask, Explicit) else mask.dense(queries, keys)
    return Explicit(allowed.transpose(-2, -1))


def _transposed_neighbours(mask: Neighbours) -> Neighbours:
    queries = len(mask.row_starts) - 1
    rows = torch.repeat_interleave(torch.arange(queries), mask.row_starts.diff())
    order = torch.argsort(mask.columns, stable=True)
    counts = torch.bincount(mask.columns, minlength=mask.keys)
    starts = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
    return Neighbours(starts, rows[order], queries)
