"""From the arguments of a caught call to the terms of a layer, cut to one input of its batch."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from weft.formats.terms import Terms
from weft.mechanism.masks import Both, Mask, Padding, Window
from weft.mechanism.packed import Ranges
from weft.mechanism.positions import ALiBi, Relative, Shaw
from weft.mechanism.transposed import ByDistance

__all__ = ["as_rule", "cut_terms", "ranges_of", "rule_of_ranges"]

#: Cells of a mask that are looked at together.
BLOCK_CELLS = 2**24


def ranges_of(mask: Mask | None, queries: int, keys: int, sample: int = 0) -> Tensor | None:
    """The first key of each query and the end of its keys, (2, queries), for one input of a batch.

    A query without keys has 0 and 0. None: some query sees keys that are not side by side, or
    heads differ.
    """
    if mask is None:
        return torch.tensor([[0], [keys]]).repeat(1, queries)
    if isinstance(mask, Both):
        one, other = (ranges_of(part, queries, keys, sample) for part in (mask.first, mask.second))
        if one is None or other is None:
            return None
        return _tidy(torch.maximum(one[0], other[0]), torch.minimum(one[1], other[1]))
    if isinstance(mask, Window):
        position = torch.arange(queries) + mask.offset
        zeros = torch.zeros_like(position)
        first = zeros if mask.left is None else (position - mask.left).clamp(0, keys)
        end = zeros + keys if mask.right is None else (position + mask.right + 1).clamp(0, keys)
        return _tidy(first, end)
    if isinstance(mask, Ranges):
        return _tidy(*mask.ranges(queries, keys)[:, 0].cpu())
    if isinstance(mask, Padding):
        row = _ranges_of_cells(_of_sample(mask, range(1), keys, sample))
        return None if row is None else row.repeat(1, queries)
    size = max(1, BLOCK_CELLS // max(1, keys))
    parts = []
    for start in range(0, queries, size):
        rows = range(start, min(start + size, queries))
        part = _ranges_of_cells(_of_sample(mask, rows, keys, sample))
        if part is None:
            return None
        parts.append(part.expand(-1, len(rows)))
    return torch.cat(parts, 1) if parts else torch.zeros(2, 0, dtype=torch.int64)


def _of_sample(mask: Mask, rows: range, keys: int, sample: int) -> Tensor:
    """Some rows of a mask for one input, (heads or 1, rows or 1, keys)."""
    cells = mask.block(rows, keys, torch.device("cpu"))
    cells = cells[min(sample, len(cells) - 1)]
    return cells.expand(*cells.shape[:2], keys)


def _ranges_of_cells(cells: Tensor) -> Tensor | None:
    """Cells (heads, rows, keys) as (2, rows)."""
    if len(cells) > 1 and bool((cells != cells[:1]).any()):
        return None
    rows = cells[0].to(torch.uint8)
    if not rows.shape[1]:
        return torch.zeros(2, len(rows), dtype=torch.int64)
    count = rows.sum(1)
    first = rows.argmax(1)
    last = rows.shape[1] - rows.flip(1).argmax(1)
    if bool(((count > 0) & (last - first != count)).any()):
        return None
    return _tidy(first, first + count)


def _tidy(first: Tensor, end: Tensor) -> Tensor:
    seen = (end > first).long()
    return torch.stack((first * seen, end * seen))


def rule_of_ranges(ranges: Tensor, keys: int) -> Mask | None:
    """Ranges as a rule: None where each query sees all keys, a `Window` where one gives them.

    >>> rule_of_ranges(torch.tensor([[0, 0, 1], [1, 2, 3]]), 3)
    Window(left=1, right=0, offset=0)
    """
    first, end = ranges
    position = torch.arange(ranges.shape[1])
    left = right = None
    if bool((first > 0).any()):
        row = int((first > 0).nonzero()[0])
        left = row - int(first[row])
    if bool((end < keys).any()):
        row = int((end < keys).nonzero()[0])
        right = int(end[row]) - 1 - row
    if left is None and right is None:
        return None
    # Sides are 0 or more; a window that lies elsewhere is moved.
    offset = 0
    if right is not None and right < 0:
        offset = right
    elif left is not None and left < 0:
        offset = -left
    left, right = (
        None if left is None else left + offset,
        None if right is None else right - offset,
    )
    if all(side is None or side >= 0 for side in (left, right)):
        window = Window(left, right, offset)
        again = ranges_of(window, len(position), keys)
        if again is not None and torch.equal(again, ranges):
            return window
    return Ranges(first, end)


def as_rule(mask: Mask | None, queries: int, keys: int, batch: int) -> Mask | None:
    """A mask as a rule that costs no matrix, where one says the same for every input of a batch."""
    if mask is None or isinstance(mask, Window):
        return mask
    found = [ranges_of(mask, queries, keys, sample) for sample in range(batch)]
    first = found[0] if found else None
    if first is None or any(other is None or not torch.equal(first, other) for other in found):
        return mask
    return rule_of_ranges(first, keys)


def cut_terms(
    ranges: Tensor | None,
    relative: Relative | None,
    bias: Tensor | None,
    sinks: Tensor | None,
    *,
    sample: int,
    rows: slice,
    columns: slice,
    limit: int,
) -> Terms:
    """The terms of a layer for one input.

    Args:
        ranges: of the mask of the call for the input, see `ranges_of`.
        relative, bias, sinks: of the call, with a batch.
        sample: which input.
        rows, columns: those of the input that are no padding.
        limit: numbers that a bias without a rule may have.
    """
    queries, keys = rows.stop - rows.start, columns.stop - columns.start
    missing = None
    rule: Mask | None = None
    if ranges is None:
        missing = "its mask shows queries keys that are not side by side, and is not kept"
    else:
        inside = (ranges[:, rows] - columns.start).clamp(0, keys)
        rule = rule_of_ranges(_tidy(*inside), keys)
    kept: Tensor | None = None
    turned = None if relative is None else _cut_relative(relative, rows.start - columns.start)
    if relative is not None and turned is None:
        missing = missing or f"its positions, {type(relative).__name__}, are not kept"
    if bias is not None:
        own = bias[min(sample, len(bias) - 1)].detach().cpu()
        own = own if own.shape[1] == 1 else own[:, rows]
        own = own if own.shape[2] == 1 else own[:, :, columns]
        by_distance = _by_distance(own, queries, keys)
        if by_distance is not None and turned is None:
            turned = by_distance
        elif own.numel() <= limit:
            kept = own.clone()
        else:
            missing = missing or "a bias that follows no rule is added to its scores"
    return Terms(rule, turned, kept, None if sinks is None else sinks.detach().cpu(), missing)


def _cut_relative(relative: Relative, moved: int) -> Relative | None:
    if isinstance(relative, Shaw):
        table = relative.key_table.detach().cpu().clone()
        return Shaw(table, None, relative.offset + moved)
    if isinstance(relative, ALiBi):
        return ALiBi(relative.slopes.detach().cpu().clone(), relative.offset + moved)
    if isinstance(relative, ByDistance):
        values = relative.values.detach().cpu().clone()
        return replace(relative, values=values, offset=relative.offset + moved)
    return None


def _by_distance(bias: Tensor, queries: int, keys: int) -> ByDistance | None:
    """A bias (heads, queries, keys) by distance, where it depends on nothing else."""
    if bias.shape[1:] != (queries, keys) or queries * keys <= 1:
        return None
    if not torch.equal(bias[:, 1:, 1:], bias[:, :-1, :-1]):
        return None
    values = torch.cat((bias[:, :, 0].flip(1), bias[:, 0, 1:]), 1)
    return ByDistance(values.clone(), queries - 1)
