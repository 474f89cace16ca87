"""Masks as torch's functions take them: who may look at whom, and what is added to the scores."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headloom.mechanism.masks import Mask, as_mask
from headloom.tracing.recording.score_terms import as_rule, ranges_of

__all__ = ["ScoreMask", "looks_ahead", "lowest_of", "score_mask", "without_hidden"]


@dataclass(frozen=True, eq=False)
class ScoreMask:
    """A mask in headloom's words.

    mask: who may look at whom; None: everybody at everything.
    bias: added to the scores, (batch or 1, heads or 1, queries, keys), or None.
    ahead: whether some query looks ahead; None: it cannot be said.
    """

    mask: Mask | None
    bias: Tensor | None
    ahead: bool | None


def lowest_of(dtype: torch.dtype) -> float | None:
    """The number at and below which a mask of a type hides a key; None: it is bool."""
    return None if dtype == torch.bool else torch.finfo(dtype).min / 2


def score_mask(cells: Tensor, queries: int, keys: int, lowest: float | None = None) -> ScoreMask:
    """Read a mask: a window, or a range of keys for each query, becomes a rule without a matrix.

    Args:
        cells: (batch or 1, heads or 1, queries or 1, keys or 1): bool, True = may look; or numbers
            that are added to the scores, minus infinity where a query may not look.
        lowest: a finite number at and below which a key is hidden too, but in a row that has
            nothing else: its softmax looks at every key alike. None: there is none.
    """
    # What is only expanded says the same everywhere.
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
    return ScoreMask(mask, bias, looks_ahead(mask, allowed, queries, keys))


def without_hidden(
    mask: Mask | None, bias: Tensor | None, shape: tuple[int, int, int, int]
) -> tuple[Mask | None, Tensor | None]:
    """A mask and a bias, where the mask also says whom a bias of minus infinity hides.

    As they are, where there is no such number, where the bias does not fit, or where the keys that
    are left are not side by side: of these a trace keeps the bias, and no mask.

    Args:
        mask: who may look at whom; None: everybody at everybody.
        bias: (batch or 1, heads or 1, queries or 1, keys or 1), or None.
        shape: of the scores, (batch, heads, queries, keys).

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


def looks_ahead(mask: Mask | None, allowed: Tensor, queries: int, keys: int) -> bool | None:
    """Whether some query may look at a key after it; None: it cannot be said."""
    if queries != keys or queries < 2:
        return None
    ranges = ranges_of(mask, queries, keys) if mask is None or len(allowed) == 1 else None
    if ranges is not None:
        return bool((ranges[1] > torch.arange(queries) + 1).any())
    return bool(allowed.triu(1).any()) if allowed.shape[-2] == queries else True
