"""Masks and biases of a call, as rules, and cut to the terms of one input of its batch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headloom.formats.terms import POSITIONS, Terms
from headloom.mechanism.mask import without_empty
from headloom.mechanism.masks import Mask, Ranges, Window, as_mask
from headloom.mechanism.parts import with_tensors
from headloom.mechanism.positions import ByDistance, Relative


def ranges_of(mask: Mask | None, queries: int, keys: int, sample: int = 0) -> Tensor | None:
    """Return each query's first key and the end of its keys, (2, queries), for one input.

    None: some query sees keys that are not contiguous, or heads differ.
    """
    if mask is None:
        return torch.tensor([[0], [keys]]).repeat(1, queries)
    return mask.ranges(queries, keys, sample)


def rule_of_ranges(ranges: Tensor, keys: int) -> Mask | None:
    """Return ranges as a mask: None if each query sees all keys, a `Window` if one fits.

    >>> rule_of_ranges(torch.tensor([[0, 0, 1], [1, 2, 3]]), 3)
    Window(left=1, right=0, offset=0)
    """
    first, end = ranges
    left = right = None
    if bool((first > 0).any()):
        row = int((first > 0).nonzero()[0])
        left = row - int(first[row])
    if bool((end < keys).any()):
        row = int((end < keys).nonzero()[0])
        right = int(end[row]) - 1 - row
    if left is None and right is None:
        return None
    # Both sides must be 0 or more; an offset moves the window.
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
        again = window.ranges(ranges.shape[1], keys)
        if again is not None and torch.equal(again, ranges):
            return window
    return Ranges(first, end)


def as_rule(mask: Mask | None, queries: int, keys: int, batch: int) -> Mask | None:
    """Return a mask as a rule without a matrix, if it is the same for every input of a batch."""
    if mask is None or isinstance(mask, Window):
        return mask
    ranges = [ranges_of(mask, queries, keys, sample) for sample in range(batch)]
    first = ranges[0] if ranges else None
    if first is None or any(other is None or not torch.equal(first, other) for other in ranges):
        return mask
    return rule_of_ranges(first, keys)


def cut_terms(
    ranges: Tensor | None, relative: Relative | None, bias: Tensor | None, sinks: Tensor | None, *,
    sample: int, rows: slice, columns: slice, limit: int,
) -> Terms:  # fmt: skip
    """Return the terms of a layer for one input, between rows and columns without padding.

    ranges: of the mask, see `ranges_of`. limit: most numbers of a bias without a rule.
    """
    queries, keys = rows.stop - rows.start, columns.stop - columns.start
    missing = None
    rule: Mask | None = None
    if ranges is None:
        missing = "its mask shows keys that are not contiguous, and is not kept"
    else:
        rule = mask_terms(ranges, rows, columns).mask
    kept: Tensor | None = None
    positions = None if relative is None else relative.in_scores().moved(rows.start - columns.start)
    if positions is not None and type(positions) not in POSITIONS:
        positions = positions.by_distance(queries, keys)
    if positions is not None:
        positions = with_tensors(positions, lambda tensor: tensor.detach().cpu().clone())
    elif relative is not None:
        missing = missing or f"its positions, {type(relative).__name__}, are not kept"
    if bias is not None:
        part = bias[min(sample, len(bias) - 1)].detach().cpu()
        part = part if part.shape[1] == 1 else part[:, rows]
        part = part if part.shape[2] == 1 else part[:, :, columns]
        by_distance = _by_distance(part, queries, keys)
        if not bool(part.any()):
            kept = None  # it was added to padding only
        elif by_distance is not None and positions is None:
            positions = by_distance
        elif part.numel() <= limit:
            kept = part.clone()
        else:
            missing = missing or "a bias that follows no rule is added to its scores"
    sinks = None if sinks is None else sinks.detach().cpu()
    return Terms(rule, positions, kept, sinks, missing, mask_known=ranges is not None)


def mask_terms(ranges: Tensor, rows: slice, columns: slice) -> Terms:
    """Return the terms of a layer with a known mask only: see `cut_terms`."""
    keys = columns.stop - columns.start
    inside = (ranges[:, rows] - columns.start).clamp(0, keys)
    return Terms(rule_of_ranges(without_empty(inside), keys))


def _by_distance(bias: Tensor, queries: int, keys: int) -> ByDistance | None:
    """Return a bias (heads, queries, keys) by distance, if it depends on that only."""
    if bias.shape[1:] != (queries, keys) or queries * keys <= 1:
        return None
    if not torch.equal(bias[:, 1:, 1:], bias[:, :-1, :-1]):
        return None
    values = torch.cat((bias[:, :, 0].flip(1), bias[:, 0, 1:]), 1)
    return ByDistance(values.clone(), queries - 1)


@dataclass(frozen=True, eq=False)
class ScoreMask:
    """Mask of visible keys, and bias on the scores.

    ahead: whether some query sees a later key; None: unknown.
    """

    mask: Mask | None
    bias: Tensor | None
    ahead: bool | None


def lowest_of(dtype: torch.dtype) -> float | None:
    """Return the number at and below which a mask of a type hides a key; None: a bool mask."""
    return None if dtype == torch.bool else torch.finfo(dtype).min / 2


def score_mask(cells: Tensor, queries: int, keys: int, lowest: float | None = None) -> ScoreMask:
    """Read a mask; a window, or a range of keys for each query, becomes a rule without a matrix.

    cells: (batch or 1, heads or 1, queries or 1, keys or 1): bool, True = visible; or numbers added
    to the scores, minus infinity = hidden. lowest: a finite number at and below which a key is
    hidden too, except in a row without any other key, where the softmax gives equal weights.
    """
    # Expanded dimensions have equal cells.
    for axis in (0, 1):
        if cells.shape[axis] > 1 and cells.stride(axis) == 0:
            cells = cells.narrow(axis, 0, 1)
    if cells.shape[-1] != keys:
        cells = cells.expand(-1, -1, -1, keys)
    if cells.dtype == torch.bool:
        allowed, bias = cells, None
    else:
        allowed = cells > (-torch.inf if lowest is None else lowest)
        if lowest is not None:
            allowed |= ~allowed.any(-1, keepdim=True) & (cells > -torch.inf)
        rest = cells.masked_fill(~allowed, 0)
        bias = rest if bool(rest.any()) else None
    mask = as_rule(as_mask(allowed), queries, keys, len(allowed))
    return ScoreMask(mask, bias, _looks_ahead(mask, allowed, queries, keys))


def without_hidden(
    mask: Mask | None, bias: Tensor | None, shape: tuple[int, int, int, int]
) -> tuple[Mask | None, Tensor | None]:
    """Move the minus infinities of a bias to the mask; return both.

    Both are unchanged if the bias does not fit, or if the visible keys are not contiguous. shape:
    of the scores.

    >>> hidden = torch.full((1, 1, 2, 2), -torch.inf).triu(1)
    >>> without_hidden(None, hidden, (1, 1, 2, 2))
    (Window(left=None, right=0, offset=0), None)
    """
    if bias is None or any(
        size not in (1, whole) for size, whole in zip(bias.shape, shape, strict=True)
    ):
        return mask, bias
    inputs, _, queries, keys = shape
    if not bool(bias.isneginf().any()) or bool(bias.isnan().any()):
        return mask, bias
    read = score_mask(bias, queries, keys)
    both = read.mask if mask is None or read.mask is None else mask & read.mask
    both = as_rule(both, queries, keys, inputs)
    if any(ranges_of(both, queries, keys, sample) is None for sample in range(inputs)):
        return mask, bias
    return both, read.bias


def _looks_ahead(mask: Mask | None, allowed: Tensor, queries: int, keys: int) -> bool | None:
    """Return whether some query sees a later key; None: unknown."""
    if queries != keys or queries < 2:
        return None
    ranges = ranges_of(mask, queries, keys) if mask is None or len(allowed) == 1 else None
    if ranges is not None:
        return bool((ranges[1] > torch.arange(queries) + 1).any())
    return bool(allowed.triu(1).any()) if allowed.shape[-2] == queries else True
