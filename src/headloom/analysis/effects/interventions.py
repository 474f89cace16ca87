"""Changing what heads give while a model runs: for experiments on what they are needed for.

    with intervening(model, [Intervention("decoder.1.self_attention", 3, "zero")]):
        outputs = model(tokens)

Heads are reached before W_O, by `headloom.analysis.effects.head_outputs`, in headloom's own models
and in unmodified ones of Transformers. The weights of a model are never touched, and whatever
happens in the block, the model is afterwards as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from headloom.analysis.effects.head_outputs import reaching
from headloom.errors import InputError, ShapeError
from headloom.mechanism.attention_layer import HeadOutputs
from headloom.mechanism.function import attention
from headloom.mechanism.shapes import describe, place_of
from headloom.tracing.model_state import evaluation_mode

__all__ = [
    "Intervention",
    "Kind",
    "editing_heads",
    "intervening",
    "uniform",
]

Kind = Literal["zero", "mean", "uniform", "patch"]


@dataclass(frozen=True, eq=False)
class Intervention:
    """What one head gives instead of its own output.

        zero      nothing
        mean      `output`, (value_depth,), at every position: its mean over some inputs
        uniform   the mean of the values that each query may look at: its weights made uniform
        patch     `output`, (batch, queries, value_depth): what it gave on another input

    layer: the path of the attention layer in the model; head: from 0.
    positions: of the queries where it does; None: at all.
    """

    layer: str
    head: int
    kind: Kind = "zero"
    output: Tensor | None = None
    positions: Sequence[int] | None = None

    def apply(self, heads: HeadOutputs, output: Tensor) -> None:
        """Write it into the output of the layer, (batch, heads, queries, value_depth).

        Raises: InputError: no such head or position, or an output that is missing or does not fit.
        """
        if not 0 <= self.head < output.shape[1]:
            raise InputError(
                f"intervening: no head {self.head} in {self.layer}, which has 0 to "
                f"{output.shape[1] - 1}."
            )
        place = output[:, self.head]
        if self.positions is None:
            place.copy_(self._given(heads, place))
            return
        count = place.shape[1]
        chosen = [place_of("input", "intervening", "position", at, count) for at in self.positions]
        place[:, chosen] = self._given(heads, place)[:, chosen]

    def _given(self, heads: HeadOutputs, place: Tensor) -> Tensor:
        """What stands in the place of the head's output, (batch, queries, value_depth)."""
        if self.kind == "zero":
            return torch.zeros_like(place)
        if self.kind == "uniform":
            return uniform(heads)[:, self.head]
        if self.output is None:
            raise InputError(
                f"intervening: a {self.kind} of {self.layer}, head {self.head}, without an "
                "output. Give output=."
            )
        given = self.output.to(place)
        wanted = place.shape[-1:] if self.kind == "mean" else place.shape
        if given.shape != wanted:
            raise ShapeError(
                f"intervening: a {self.kind} of {self.layer}, head {self.head}, is "
                f"{describe(given)}; expected ({', '.join(map(str, wanted))}). Inputs that are "
                "patched into each other need as many tokens."
            )
        return given.expand_as(place)


def uniform(heads: HeadOutputs) -> Tensor:
    """What the heads would give if each query looked at all its keys alike."""
    batch, count, queries, _ = heads.output.shape
    kv_heads, keys = heads.keys.shape[1:3]
    return attention(
        heads.output.new_zeros(batch, count, queries, 1),
        heads.output.new_zeros(batch, kv_heads, keys, 1),
        heads.values,
        mask=heads.mask,
    )


@contextmanager
def intervening(model: nn.Module, interventions: Sequence[Intervention]) -> Iterator[None]:
    """Let some heads give something else in every run of the model within the block.

    Raises: InputError: no such layer or head; a model whose heads cannot be reached.
    """
    of_layer: dict[str, list[Intervention]] = {}
    for one in interventions:
        of_layer.setdefault(one.layer, []).append(one)
    seen: set[str] = set()

    def edit(path: str, heads: HeadOutputs) -> Tensor:
        seen.add(path)
        if path not in of_layer:
            return heads.output
        output = heads.output.clone()
        for one in of_layer[path]:
            one.apply(heads, output)
        return output

    with editing_heads(model, edit):
        yield
    missing = [path for path in of_layer if path not in seen]
    if missing and seen:
        raise InputError(
            f"intervening: the model ran no attention layer {missing[0]!r}; it has "
            f"{', '.join(sorted(seen))}."
        )


@contextmanager
def editing_heads(model: nn.Module, edit: Callable[[str, HeadOutputs], Tensor]) -> Iterator[None]:
    """Send what the heads of every attention layer give through a function.

    Within the block the model is in evaluation mode and computes no gradients.

    Args:
        model: of headloom's attention layers, or of Transformers.
        edit: from the path of a layer and its heads to the output the layer goes on with.

    Raises: InputError: a model whose heads cannot be reached.
    """
    with (
        evaluation_mode(model),
        torch.no_grad(),
        reaching(model, lambda one: edit(one.path, one.heads), operation="intervening"),
    ):
        yield
