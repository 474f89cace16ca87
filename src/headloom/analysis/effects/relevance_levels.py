"""Relevance on its way down: how much of a prediction arrives at each token below each layer.

    h_L = e_i,    h_(l-1) = h_l + A_l^T h_l        a layer adds: h_l[i] A_l[i, j]

from the position i that a prediction is read from to the input, where h_0 is a row of R, the
relevance (`headloom.analysis.effects.relevance`). Nothing is lost on the way: what a position has
stays, and each layer adds to it.
Source: Chefer, Gur and Wolf 2021, equations 5 and 6, a row at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headloom.analysis.effects.gradient_weights import Weighted
from headloom.analysis.effects.relevance import Target, first_rows, weighted_layers
from headloom.errors import InputError
from headloom.tracing.arguments import Inputs

__all__ = ["RelevanceLevels", "relevance_levels"]


@dataclass(frozen=True, eq=False)
class RelevanceLevels:
    """levels: (layers + 1, positions), from the input up; layers: from the first."""

    levels: Tensor
    layers: Sequence[Weighted]

    def added(self) -> Iterator[Tensor]:
        """By layer, from the first, what it adds: from each position above to each below.

        Its columns sum to the level below less the level above.
        """
        for layer, above in zip(self.layers, self.levels[1:], strict=True):
            yield layer.dense().to(above) * above[:, None]


def relevance_levels(
    model: nn.Module,
    inputs: Inputs | Tensor,
    target: Target | None = None,
    *,
    position: int = -1,
    rows: int | Tensor | None = None,
    between: Callable[[], None] | None = None,
) -> RelevanceLevels:
    """Relevance as it arrives at each level. Takes what
    `headloom.analysis.effects.relevance.relevance` takes, but one row of R.

    It holds the queries, keys, values and gradients of all layers, and A of each.

    Args: between: is called before each module that runs and before each level, and ends all by
    raising an error, as where too much time has gone.

    Raises: InputError: as `relevance`; or an encoder-decoder, whose source and target have levels
    of their own.
    """
    with _calling(model, between):
        layers, asked = weighted_layers(model, inputs, target, position=position)
    if not layers:
        raise InputError("relevance: the prediction depends on no attention layer.")
    if any(layer.kind == "cross" for layer in layers):
        raise InputError(
            "relevance: an encoder-decoder has levels of its source and of its target, which no "
            "one diagram shows. headloom relevance gives each token's."
        )
    sizes = {size for layer in layers for size in layer.shape}
    if len(sizes) > 1:
        raise InputError(
            f"relevance: the layers have {', '.join(map(str, sorted(sizes)))} positions; expected "
            "one sequence. headloom relevance says more."
        )
    held = first_rows(asked if rows is None else rows, layers[-1].shape[0])
    levels = [held.to(layers[-1].values)]
    for layer in reversed(layers):
        if between is not None:
            between()
        levels.insert(0, levels[0] + layer.transposed(levels[0]))
    return RelevanceLevels(torch.cat(levels, 1).T, layers)


@contextmanager
def _calling(model: nn.Module, between: Callable[[], None] | None) -> Iterator[None]:
    """Call a function before each module of a model that runs, or runs again on the way back."""
    if between is None:
        yield
        return
    hooks = [module.register_forward_pre_hook(lambda *_: between()) for module in model.modules()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
