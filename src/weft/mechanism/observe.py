"""How a tracer watches attention calls, and how an experiment changes what comes out of them.

Each attention layer has an attribute `observer`, normally None. While one is set, the layer
computes with `weft.attend` and hands over what it caught. Likewise `editor`: while one is set, it
gets the output of every head, and the layer goes on with what it gives back. Nothing is global:
what is watched or edited is visible on the model; `watching` and `editing` put everything back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from torch import Tensor, nn

from weft.mechanism.graph import AttentionGraph, Keep
from weft.mechanism.masks import Mask
from weft.mechanism.positions import Relative

if TYPE_CHECKING:
    from weft.mechanism.multihead import MultiHeadAttention

__all__ = [
    "Editor",
    "HeadOutputs",
    "Observation",
    "Observer",
    "Recorder",
    "editing",
    "layers_of",
    "watching",
]


@dataclass(frozen=True, eq=False)
class Observation:
    """One attention call of a layer.

    queries, keys: (batch, heads, queries, depth) and (batch, kv_heads, keys, depth), as scored:
    projected, and turned where positions are rotary.
    values: (batch, kv_heads, keys, value_depth).
    caught: the graph, or the dense weights, as the observer's `keep` asked.
    scale: the factor on the scores.
    mask, relative: as the call took them.
    """

    queries: Tensor
    keys: Tensor
    values: Tensor
    caught: AttentionGraph | Tensor
    scale: float
    mask: Mask | None
    relative: Relative | None


class Observer(Protocol):
    """Who watches."""

    #: What is kept of each call.
    keep: Keep

    def __call__(self, layer: MultiHeadAttention, observation: Observation) -> None:
        """Receive one call of a layer."""


@dataclass(frozen=True, eq=False)
class HeadOutputs:
    """What the heads of one attention call give, and what they gave it from.

    output: (batch, heads, queries, value_depth), before W_O.
    queries, keys, values: as for `weft.attention`; mask: who may look at whom.
    """

    output: Tensor
    queries: Tensor
    keys: Tensor
    values: Tensor
    mask: Mask | Tensor | None


class Editor(Protocol):
    """Who changes what comes out of heads."""

    def __call__(self, layer: MultiHeadAttention, heads: HeadOutputs) -> Tensor:
        """The output that the layer goes on with, of the shape of ``heads.output``."""


def layers_of(model: nn.Module) -> list[tuple[str, MultiHeadAttention]]:
    """The attention layers of a model with their names, in the order of the model."""
    from weft.mechanism.multihead import MultiHeadAttention

    return [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, MultiHeadAttention)
    ]


class Recorder:
    """An observer that keeps what it sees: name, layer and observation of each call, in order.

    Names are the layers' paths in the model. Everything is cut off from autograd.
    """

    def __init__(self, model: nn.Module, keep: Keep) -> None:
        self.keep = keep
        self.calls: list[tuple[str, MultiHeadAttention, Observation]] = []
        self._names = {id(layer): name for name, layer in layers_of(model)}

    def __call__(self, layer: MultiHeadAttention, observation: Observation) -> None:
        caught = observation.caught.detach()
        detached = replace(
            observation,
            queries=observation.queries.detach(),
            keys=observation.keys.detach(),
            values=observation.values.detach(),
            caught=caught,
        )
        self.calls.append((self._names[id(layer)], layer, detached))


@contextmanager
def watching(model: nn.Module, observer: Observer | None) -> Iterator[None]:
    """Let an observer, or nobody, see every attention call of a model; afterwards who did."""
    layers = [layer for _, layer in layers_of(model)]
    before = [layer.observer for layer in layers]
    try:
        for layer in layers:
            layer.observer = observer
        yield
    finally:
        for layer, observer_before in zip(layers, before, strict=True):
            layer.observer = observer_before


@contextmanager
def editing(model: nn.Module, editor: Editor) -> Iterator[None]:
    """Let an editor change the output of every attention call; afterwards nobody does."""
    layers = [layer for _, layer in layers_of(model)]
    before = [layer.editor for layer in layers]
    try:
        for layer in layers:
            layer.editor = editor
        yield
    finally:
        for layer, editor_before in zip(layers, before, strict=True):
            layer.editor = editor_before
