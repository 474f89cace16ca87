"""What an observer of attention calls receives, and what an editor of them does.

Each attention layer has an attribute `observer`, normally None. While one is set, the layer
computes with `headloom.attend` and hands over what it caught. Likewise `editor`: while one is set,
it gets the output of every head, and the layer goes on with what it gives back. Nothing is global:
what is watched or edited is visible on the model; `headloom.mechanism.watching` sets them and puts
them back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from headloom.mechanism.graph import AttentionGraph, Keep
from headloom.mechanism.grid import Grid
from headloom.mechanism.masks import Mask
from headloom.mechanism.positions import Relative

if TYPE_CHECKING:
    from headloom.mechanism.attention_layer import AttentionLayer

__all__ = [
    "Editor",
    "HeadOutputs",
    "Observation",
    "Observer",
]


@dataclass(frozen=True, eq=False)
class Observation:
    """One attention call of a layer.

    queries, keys: (batch, heads, queries, depth) and (batch, kv_heads, keys, depth), as scored:
    projected, and turned where positions are rotary.
    values: (batch, kv_heads, keys, value_depth).
    caught: the graph, or the dense weights, as the observer's `keep` asked.
    scale: the factor on the scores.
    mask, relative, softcap, sinks: as the call took them.
    grids: where queries and keys lie, if they are places of an image.
    """

    queries: Tensor
    keys: Tensor
    values: Tensor
    caught: AttentionGraph | Tensor
    scale: float
    mask: Mask | None
    relative: Relative | None
    grids: tuple[Grid, Grid] | None = None
    softcap: float | None = None
    sinks: Tensor | None = None


class Observer(Protocol):
    """Who watches."""

    #: What is kept of each call.
    keep: Keep

    def __call__(self, layer: AttentionLayer, observation: Observation) -> None:
        """Receive one call of a layer."""


@dataclass(frozen=True, eq=False)
class HeadOutputs:
    """What the heads of one attention call give, and what they gave it from.

    output: (batch, heads, queries, value_depth), before W_O.
    queries, keys, values: as for `headloom.attention`; mask: who may look at whom.
    """

    output: Tensor
    queries: Tensor
    keys: Tensor
    values: Tensor
    mask: Mask | Tensor | None


class Editor(Protocol):
    """Who changes what comes out of heads."""

    def __call__(self, layer: AttentionLayer, heads: HeadOutputs) -> Tensor:
        """The output that the layer goes on with, of the shape of ``heads.output``."""
