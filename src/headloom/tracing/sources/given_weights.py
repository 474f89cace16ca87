"""Attention weights that are given as dense arrays: checked, and kept as edges."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from headloom.errors import InputError
from headloom.mechanism.backends.torch_blocks import strongest
from headloom.mechanism.graph import AttentionGraph, Top
from headloom.mechanism.masks import Mask
from headloom.tracing.recording.layer_call import LayerCall
from headloom.tracing.sources.tensors import check_numbers, first_place

__all__ = ["checked_weights", "graph_of_weights", "weights_call"]

#: How far from 1 the sum of a row may be: of numbers with the digits of float32, and of half
#: precision, in which each weight is rounded.
NEAR, NEAR_HALF = 1e-4, 2e-2


def checked_weights(label: str, weights: Tensor, *, partial: bool) -> Tensor:
    """Return weights in float32 after a check that they are some.

    Args:
        label: what errors call them.
        weights: (batch, heads, queries, keys).
        partial: whether rows may sum to less than 1. A row of zeros always may: its query may look
            nowhere.

    Raises: InputError: numbers below 0 or not finite; rows that do not sum to 1.
    """
    check_numbers(label, weights, ("input", "head", "query", "key"))
    lowest = float(weights.min()) if weights.numel() else 0.0
    if lowest < 0:
        raise InputError(
            f"{label}: {lowest:.3g} among them: these look like scores before the softmax, or "
            "logarithms; expected weights of 0 or more, as scores.softmax(-1)."
        )
    totals = weights.sum(-1, dtype=torch.float64)
    # Half precision that was saved in a wider type, as NumPy needs it, has its digits still.
    half = any(
        torch.equal(weights.to(dtype).to(weights.dtype), weights)
        for dtype in (torch.bfloat16, torch.float16)
    )
    near = NEAR_HALF if half else NEAR
    wrong = (totals > 1 + near) | ((totals < 1 - near) & (totals > 0) & (not partial))
    if not bool(totals.any()):
        raise InputError(f"{label}: every weight is 0; expected rows that sum to 1.")
    if bool(wrong.any()):
        _, head, query = first_place(wrong)
        raise InputError(
            f"{label}: head {head}, query {query}: the row sums to {float(totals[wrong][0]):.6g}, "
            f"and {int(wrong.sum()):,} of {wrong.numel():,} rows do not sum to 1. Give weights "
            "after the softmax, without dropout, queries before keys; where a sink or keys that "
            "are not here have the rest, partial=True."
        )
    return weights.float()


def graph_of_weights(
    label: str, weights: Tensor, keep: Top, mask: Mask | None, *, partial: bool
) -> AttentionGraph:
    """Return the graph of dense weights: their strongest edges as they are given.

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
        mask.check(*weights.shape)
        shown = mask.dense(*weights.shape[2:]).expand(weights.shape)
        hidden = allowed & ~shown
        if bool(hidden.any()):
            _, head, query, key = first_place(hidden)
            raise InputError(
                f"{label}: a weight at head {head}, query {query}, key {key}, where the mask hides "
                f"the key, and {int(hidden.sum()):,} such; expected 0. Give the model's own mask."
            )
        # A row of zeros is one of a query that looks nowhere, as padding.
        allowed = shown & allowed.any(-1, keepdim=True)
    # A key that may be looked at has a score, even where its weight is too small for float32.
    scores = weights.clamp(min=torch.finfo(torch.float32).smallest_normal).log()
    places = keep.places(weights.shape[-1])
    kept_scores, kept_keys = strongest(scores.masked_fill(~allowed, -torch.inf), places)
    empty = kept_scores == -torch.inf
    kept_weights = weights.gather(-1, kept_keys).masked_fill(empty, 0)
    looks = allowed.any(-1)
    mass = looks.double() if partial else weights.sum(-1, dtype=torch.float64)
    rest = mass - kept_weights.sum(-1, dtype=torch.float64)
    missing = (0, places - kept_keys.shape[-1])
    return AttentionGraph(
        keys=pad(kept_keys.masked_fill(empty, -1).int(), missing, value=-1),
        scores=pad(kept_scores, missing, value=-torch.inf),
        weights=pad(kept_weights, missing),
        lse=torch.where(looks, 0.0, -torch.inf),
        entropy=torch.special.entr(weights.double()).sum(-1).float(),
        rest=rest.clamp(min=0).float(),
        count=allowed.sum(-1).int(),
        length=weights.shape[-1],
    )


def weights_call(name: str, kind: str, graph: AttentionGraph, mask: Mask | None) -> LayerCall:
    """Return the call of a layer of which the graph alone is known, and perhaps the mask."""
    batch, heads, queries, keys = graph.shape
    nothing = graph.lse.new_zeros(batch, heads, keys, 1)
    rows = graph.lse.new_zeros(batch, heads, queries, 1)
    return LayerCall(
        name, kind, rows, nothing, nothing, scale=1.0, mask=mask, positions="bias",
        weights_only=True,
    )  # fmt: skip
