"""`LayerData`: where the numbers of a traced layer are, on disk or in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from headloom.formats.terms import Terms
from headloom.mechanism.graph import AttentionGraph

__all__ = ["LayerData", "LayerInMemory"]


class LayerData(Protocol):
    """Where the numbers of a layer are."""

    @property
    def has_matrix(self) -> bool:
        """Whether all that the weights are made of was kept; without reading it."""

    @property
    def has_value_norms(self) -> bool:
        """Whether the norms of the values were kept; without reading them."""

    @property
    def keeps_every_edge(self) -> bool:
        """Whether no edge was left out, as far as that is known without reading them."""

    @property
    def symmetric(self) -> bool:
        """Whether score(i, j) = score(j, i) by construction; without reading the edges."""

    def graph(self) -> AttentionGraph:
        """The graph."""

    def lse(self) -> Tensor:
        """The log-sum-exp of each row, (heads, queries)."""

    def queries_keys(self) -> tuple[Tensor, Tensor] | None:
        """(heads, queries, depth) and (kv_heads, keys, depth), or None where they were not kept."""

    def terms(self) -> Terms | None:
        """What enters the weights besides queries and keys, or None where it is not known."""

    def value_norms(self) -> Tensor | None:
        """(kv_heads, keys), or None where they were not kept."""


@dataclass(frozen=True, eq=False)
class LayerInMemory:
    """The numbers of a layer, in memory."""

    attention_graph: AttentionGraph
    tensors: tuple[Tensor, Tensor] | None = None
    known_terms: Terms | None = None
    norms: Tensor | None = None

    @property
    def has_matrix(self) -> bool:
        """See LayerData."""
        terms = self.known_terms
        return self.tensors is not None and terms is not None and not terms.missing

    @property
    def has_value_norms(self) -> bool:
        """See LayerData."""
        return self.norms is not None

    @property
    def keeps_every_edge(self) -> bool:
        """See LayerData."""
        graph = self.attention_graph
        return bool((graph.count <= (graph.keys >= 0).sum(-1)).all())

    @property
    def symmetric(self) -> bool:
        """See LayerData."""
        return self.attention_graph.symmetric

    def graph(self) -> AttentionGraph:
        """See LayerData."""
        return self.attention_graph

    def lse(self) -> Tensor:
        """See LayerData."""
        return self.attention_graph.lse

    def queries_keys(self) -> tuple[Tensor, Tensor] | None:
        """See LayerData."""
        return self.tensors

    def terms(self) -> Terms | None:
        """See LayerData."""
        return self.known_terms

    def value_norms(self) -> Tensor | None:
        """See LayerData."""
        return self.norms
