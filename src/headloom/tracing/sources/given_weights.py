"""Attention weights that are given as dense arrays: held against what weights are, and kept."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from headloom.errors import InputError, ShapeError
from headloom.mechanism.backends.torch_ops import strongest
from headloom.mechanism.graph import AttentionGraph, Top
from headloom.mechanism.masks import Mask
from headloom.mechanism.shapes import describe
from headloom.tracing.recording.layer_call import LayerCall
from headloom.tracing.sources.tensors import check_numbers, first_place, in_words

__all__ = ["Sums", "checked_weights", "graph_of_weights", "weights_call"]

#: How far from 1 the sum of a row may be: of numbers with the digits of float32, and of half
#: precision, in which each weight is rounded.
NEAR, NEAR_HALF = 1e-4, 2e-2

#: The dimensions after the batch.
_NAMES = ("head", "query", "key")

#: What a row of weights may sum to: "one"; "less", where something else takes the rest; or
#: "normalise" for anything, by which it is then divided.
Sums = str


def checked_weights(label: str, weights: Tensor, sums: Sums) -> Tensor:
    """Weights that can be weights, (batch, heads, queries, keys), in float32.

    Args:
        label: what errors call them.
        weights: as given.
        sums: what their rows may sum to, see `Sums`. A row of zeros is one of a query that may
            look nowhere.

    Raises: InputError: what else they are, as scores before the softmax, with where it shows.
    """
    if not all(weights.shape[-3:]):
        raise ShapeError(
            f"{label}: an array {describe(weights)}; expected heads, queries and keys, 1 or more "
            "of each."
        )
    near = _near(weights)
    _check_not_scores(label, weights, near)
    check_numbers(label, weights, _NAMES)
    totals = weights.sum(-1, dtype=torch.float64)
    if not bool(totals.any()):
        raise InputError(f"{label}: every weight is 0; expected rows that sum to 1.")
    if sums == "normalise":
        whole = torch.where(totals > 0, totals, 1.0)
        return (weights.double() / whole[..., None]).float()
    over = totals - 1 > near
    under = (1 - totals > near) & (totals > 0)
    wrong = over if sums == "less" else over | under
    if bool(wrong.any()):
        raise _not_one(label, weights, totals, wrong, near)
    return weights.float()


def _where(place: tuple[int, ...], weights: Tensor) -> str:
    return in_words(place, _NAMES, len(weights))


def _near(weights: Tensor) -> float:
    """How far the sum of a row may be from 1, by the digits that the numbers have."""
    half = weights.dtype in (torch.float16, torch.bfloat16)
    for dtype in (torch.bfloat16, torch.float16):
        # Half precision that was saved in a wider type, as NumPy needs it.
        half = half or torch.equal(weights.to(dtype).to(weights.dtype), weights)
    return NEAR_HALF if half else NEAR


def _check_not_scores(label: str, weights: Tensor, near: float) -> None:
    """Raise an InputError where a number is negative: most often, these are scores."""
    negative = weights < 0
    if not bool(negative.any()):
        return
    if bool((weights.nan_to_num(nan=0.0) <= 0).all()):
        totals = weights.double().exp().sum(-1)
        if bool(((totals - 1).abs() <= near).all()):
            raise InputError(
                f"{label}: these are logarithms of weights: rows of their exponentials sum to 1. "
                "Give their exponentials."
            )
    place = first_place(negative)
    where = _where(place, weights)
    finite = weights[weights.isfinite()]
    lowest, highest = (float(finite.min()), float(finite.max())) if finite.numel() else (0.0, 0.0)
    tiny = lowest >= -near and highest <= 1 + near and bool(weights.isfinite().all())
    if tiny:
        raise InputError(
            f"{label}: {float(weights[place]):.3g} at {where}; expected weights of 0 or more."
        )
    raise InputError(
        f"{label}: numbers from {lowest:.3g} to {highest:.3g}, below 0 at {where}: these "
        "look like scores before the softmax. Give them after it, as scores.softmax(-1); or give "
        "queries and keys."
    )


def _not_one(label: str, weights: Tensor, totals: Tensor, wrong: Tensor, near: float) -> InputError:
    """The error for rows that do not sum to 1, with what is likeliest meant."""
    place = first_place(wrong)
    total = float(totals[place])
    begin = (
        f"{label}: {_where(place, weights)}: the row sums to {total:.6g}, and "
        f"{int(wrong.sum()):,} of {wrong.numel():,} rows do not sum to 1"
    )
    columns = weights.sum(-2, dtype=torch.float64)
    if bool(((columns - 1).abs() <= near).all()):
        return InputError(
            f"{begin}; their columns do. Rows are queries: exchange the last two dimensions."
        )
    if float(weights.max()) > 1 + near:
        return InputError(
            f"{begin}; the largest number is {float(weights.max()):.3g}: these look like scores "
            "before the softmax. Give them after it, as scores.softmax(-1)."
        )
    return InputError(
        f"{begin}. Weights with dropout: run the model in evaluation mode. Where a sink or keys "
        "that are not here have the rest, give partial=True; normalise=True divides each row by "
        "its sum."
    )


def graph_of_weights(
    label: str, weights: Tensor, keep: Top, mask: Mask | None = None, *, partial: bool = False
) -> AttentionGraph:
    """The graph of dense weights: their strongest edges as they are given.

        score = log weight;  lse = 0;  rest = mass of the row - mass of the kept edges

    Args:
        label: what errors call them.
        weights: (batch, heads, queries, keys), checked.
        keep: edges of each query.
        mask: who may look at whom; None: at every key whose weight is not 0.
        partial: whether what a row lacks of 1 is mass that is elsewhere.

    Raises: InputError: a weight where the mask hides its key.
    """
    allowed = weights > 0
    if mask is not None:
        allowed = _allowed(label, weights, mask)
    # A head at a time: what is computed on the way takes several times the memory.
    parts = [
        _columns_of_graph(weights[:, head, None], allowed[:, head, None], keep, partial)
        for head in range(weights.shape[1])
    ]

    def joined(name: str) -> Tensor:
        return torch.cat([part[name] for part in parts], 1)

    return AttentionGraph(
        joined("keys"),
        joined("scores"),
        joined("weights"),
        joined("lse"),
        joined("entropy"),
        joined("rest"),
        joined("count"),
        length=weights.shape[-1],
    )


def _columns_of_graph(
    weights: Tensor, allowed: Tensor, keep: Top, partial: bool
) -> dict[str, Tensor]:
    """The tensors of the graph of some heads, by their names."""
    # A key that may be looked at has a score, even where its weight is too small for float32.
    scores = weights.clamp(min=torch.finfo(torch.float32).smallest_normal).log()
    scores = scores.masked_fill(~allowed, -torch.inf)
    places = keep.places(weights.shape[-1])
    kept_scores, kept_keys = strongest(scores, places)
    empty = kept_scores == -torch.inf
    kept_weights = weights.gather(-1, kept_keys).masked_fill(empty, 0)
    logarithms = torch.where(weights > 0, weights, 1).double().log()
    entropy = 0 - (weights.double() * logarithms).sum(-1)
    looks = allowed.any(-1)
    mass = looks.double() if partial else weights.sum(-1, dtype=torch.float64)
    rest = mass - kept_weights.sum(-1, dtype=torch.float64)
    missing = (0, places - kept_keys.shape[-1])
    return {
        "keys": pad(kept_keys.masked_fill(empty, -1).int(), missing, value=-1),
        "scores": pad(kept_scores, missing, value=-torch.inf),
        "weights": pad(kept_weights, missing),
        "lse": torch.where(looks, 0.0, -torch.inf),
        "entropy": entropy.float(),
        "rest": rest.clamp(min=0).float(),
        "count": allowed.sum(-1).int(),
    }


def _allowed(label: str, weights: Tensor, mask: Mask) -> Tensor:
    """Which keys each query may look at, as the weights', which lie nowhere else."""
    mask.check(*weights.shape)
    shown = mask.dense(*weights.shape[2:]).expand(weights.shape)
    hidden = (weights > 0) & ~shown
    if bool(hidden.any()):
        place = first_place(hidden)
        raise InputError(
            f"{label}: a weight of {float(weights[place]):.3g} at {_where(place, weights)}, where "
            f"the mask hides the key, and {int(hidden.sum()):,} such weights in all; expected 0. "
            "Give the mask that the model has, or none."
        )
    # A row of zeros is one of a query that looks nowhere, as padding.
    return shown & (weights > 0).any(-1, keepdim=True)


def weights_call(name: str, kind: str, weights: Tensor, mask: Mask | None = None) -> LayerCall:
    """The call of a layer of which the weights alone are known, and perhaps the mask."""
    batch, heads, queries, keys = weights.shape
    nothing = weights.new_zeros(batch, heads, keys, 1)
    return LayerCall(
        path=name,
        kind=kind,
        queries=weights.new_zeros(batch, heads, queries, 1),
        keys=nothing,
        values=nothing,
        scale=1.0,
        mask=mask,
        positions="bias",
        weights_only=True,
    )
