"""How a tracer watches attention calls.

Each attention layer has an attribute `observer`, normally None. While one is set, the layer
computes with `weft.attend` and hands over what it caught. Nothing is global: what is watched is
visible on the model, and `watching` puts everything back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from torch import Tensor, nn

from weft.mechanism.graph import AttentionGraph, Keep

if TYPE_CHECKING:
    from weft.mechanism.multihead import MultiHeadAttention

__all__ = ["Observation", "Observer", "layers_of", "watching"]


@dataclass(frozen=True, eq=False)
class Observation:
    """One attention call of a layer.

    queries, keys: (batch, heads, queries, depth) and (batch, kv_heads, keys, depth), as scored:
    projected, and turned where positions are rotary.
    caught: the graph, or the dense weights, as the observer's `keep` asked.
    scale: the factor on the scores.
    """

    queries: Tensor
    keys: Tensor
    caught: AttentionGraph | Tensor
    scale: float


class Observer(Protocol):
    """Who watches."""

    #: What is kept of each call.
    keep: Keep

    def __call__(self, layer: MultiHeadAttention, observation: Observation) -> None:
        """Receive one call of a layer."""


def layers_of(model: nn.Module) -> list[tuple[str, MultiHeadAttention]]:
    """The attention layers of a model with their names, in the order of the model."""
    from weft.mechanism.multihead import MultiHeadAttention

    return [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, MultiHeadAttention)
    ]


@contextmanager
def watching(model: nn.Module, observer: Observer) -> Iterator[None]:
    """Let an observer see every attention call of a model; afterwards nobody does."""
    layers = [layer for _, layer in layers_of(model)]
    before = [layer.observer for layer in layers]
    try:
        for layer in layers:
            layer.observer = observer
        yield
    finally:
        for layer, observer_before in zip(layers, before, strict=True):
            layer.observer = observer_before
