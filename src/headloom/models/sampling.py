"""From logits to one drawn token: the temperature, and which tokens may be drawn."""

from __future__ import annotations

import torch
from torch import Tensor

from headloom.errors import InputError
from headloom.mechanism.parts import in_float64

__all__ = ["draw", "nucleus"]


def draw(
    logits: Tensor,
    *,
    temperature: float,
    top: int | None,
    top_p: float | None,
    generator: torch.Generator | None,
) -> Tensor:
    """Draw a token of each row from softmax(logits / temperature), cut to the likeliest.

    Args:
        logits: (batch, vocabulary).
        temperature: 0 takes the likeliest.
        top: of the so many likeliest; None: all.
        top_p: see `nucleus`, of what the two others leave; None: all.
        generator: of the random numbers.

    Returns: ids, (batch, 1).
    Source: Fan et al. 2018, "Hierarchical Neural Story Generation", for top.
    """
    if temperature < 1e-6:  # 0, or too small to divide by
        return logits.argmax(-1, keepdim=True)
    if top is not None and top < logits.shape[-1]:
        likeliest, places = logits.topk(top)
        logits = torch.full_like(logits, -torch.inf).scatter(-1, places, likeliest)
    # As a number of the logits' type: a logit of -infinity by an infinite one is none.
    logits = logits / min(temperature, torch.finfo(logits.dtype).max)
    if top_p is not None:
        logits = nucleus(logits, top_p)
    return torch.multinomial(logits.softmax(-1), 1, generator=generator)


def nucleus(logits: Tensor, share: float) -> Tensor:
    """The logits of each row's nucleus; those of all other tokens are -infinity.

    The nucleus V is the smallest set of likeliest tokens that holds a share p of the probability:

        sum of P(v) over v in V >= p;  P'(v) = P(v) / (sum over V) in V, 0 elsewhere

    where P = softmax(logits); P' is the softmax of what is returned. Of tokens that are equally
    likely the one with the lower id comes first. The likeliest is always in V.

    Args:
        logits: (..., vocabulary).
        share: p, above 0 and 1 at most.

    Raises: InputError: no such share.
    Source: Holtzman et al. 2020, "The Curious Case of Neural Text Degeneration", equations 2, 3.

    >>> nucleus(torch.tensor([0.5, 0.3, 0.15, 0.05]).log(), 0.7).softmax(-1)
    tensor([0.6250, 0.3750, 0.0000, 0.0000])
    """
    if not 0 < share <= 1:
        raise InputError(f"nucleus: share is {share}; expected a number above 0, 1 at most.")
    if share == 1:  # what rounding leaves of the sum must not cut off the rarest
        return logits
    ordered, places = in_float64(logits).softmax(-1).sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(-1) - ordered
    kept = torch.zeros_like(before, dtype=torch.bool).scatter(-1, places, before < share)
    return logits.masked_fill(~kept.to(logits.device), -torch.inf)
