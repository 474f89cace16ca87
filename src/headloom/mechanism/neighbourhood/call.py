"""One call of attention over the neighbours of a graph: its tensors, its score, its edges."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar

from torch import Tensor

from headloom.mechanism.neighbourhood.edges import Edges
from headloom.mechanism.parts import changed

__all__ = ["NeighbourCall", "NeighbourScore"]


class NeighbourScore(IntEnum):
    """How target i and source j match; the numbers are those of native/neighbours_call.h.

    ADDITIVE   ``LeakyReLU(a_i + b_j + t_ij)``: Velickovic et al. 2018, equation 3
    VECTOR     ``a . LeakyReLU(q_i + k_j + W e_ij) + t_ij``: Brody et al. 2022, equation 7
    DOT        ``scale * q_i . k_j + t_ij``: Vaswani et al. 2017
    """

    ADDITIVE = 0
    VECTOR = 1
    DOT = 2


@dataclass(frozen=True, eq=False)
class NeighbourCall:
    """The arguments of a call. Nodes come first, all heads of a node together.

    values           (sources, heads, value_depth)
    target_terms     a, (targets, heads), and
    source_terms     b, (sources, heads), of additive scores
    queries          q, (targets, heads, depth), and
    keys             k, (sources, heads, depth), of the other two
    vector           a, (heads, depth), of vector scores
    edge_terms       t, (edges, heads), in the order of the caller's edges
    edge_features    e, (edges, features), in the same order; of vector scores
    edge_matrix      W, (features, heads, depth)
    kept             bool, (edges, heads), by place: weights that dropout leaves; None: all
    kept_factor      what these are multiplied by
    """

    edges: Edges
    score: NeighbourScore
    values: Tensor
    target_terms: Tensor | None = None
    source_terms: Tensor | None = None
    queries: Tensor | None = None
    keys: Tensor | None = None
    vector: Tensor | None = None
    edge_terms: Tensor | None = None
    edge_features: Tensor | None = None
    edge_matrix: Tensor | None = None
    slope: float = 0.2
    scale: float = 1.0
    kept: Tensor | None = None
    kept_factor: float = 1.0

    #: What gradients may flow to.
    names: ClassVar = (
        *("values", "target_terms", "source_terms", "queries", "keys"),
        *("vector", "edge_terms", "edge_features", "edge_matrix"),
    )

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        """The tensors of these names."""
        return tuple(getattr(self, name) for name in self.names)

    @property
    def heads(self) -> int:
        """How many heads there are."""
        return self.values.shape[1]

    def with_tensors(self, tensors: tuple[Tensor | None, ...]) -> NeighbourCall:
        """The same call of other tensors, in the order of `tensors`."""
        return changed(self, **dict(zip(self.names, tensors, strict=True)))

    def bare(self) -> NeighbourCall:
        """The call without the tensors that gradients may flow to."""
        return self.with_tensors(
            tuple(None if tensor is None else tensor.new_empty(0) for tensor in self.tensors)
        )
