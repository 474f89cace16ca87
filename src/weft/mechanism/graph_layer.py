"""What graph attention layers share: edges and self-loops, heads, residual, bias, an observer."""

from __future__ import annotations

from abc import abstractmethod
from typing import Literal

import torch
from torch import Tensor, nn

from weft.errors import InputError, ShapeError
from weft.mechanism.graph import AttentionGraph
from weft.mechanism.neighbourhood.call import NeighbourCall
from weft.mechanism.neighbourhood.edges import Edges
from weft.mechanism.neighbourhood.function import (
    neighbour_attention,
    neighbour_graph,
    neighbour_weights,
    with_dropout,
)
from weft.mechanism.neighbourhood.loops import Fill, with_self_loops
from weft.mechanism.neighbourhood.projection import glorot, projection
from weft.mechanism.shapes import describe

__all__ = ["Flow", "GraphConvolution", "GraphObserver", "Nodes"]

#: Features of the nodes, (nodes, width); or those of the sources, and those of the targets or None.
Nodes = Tensor | tuple[Tensor, Tensor | None]
Flow = Literal["source_to_target", "target_to_source"]


class GraphConvolution(nn.Module):
    """What `GATConv` and `GATv2Conv` share: edges, self-loops, heads, residual and bias.

    observer: normally None; while set, it is handed this layer and the `AttentionGraph` of each
    call, of which it keeps `observer.keep`.
    """

    #: What the layer is called in errors.
    name: str
    bias: nn.Parameter | None
    res: nn.Linear | None
    lin_edge: nn.Linear | None

    def __init__(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        heads: int,
        concat: bool,
        negative_slope: float,
        dropout: float,
        add_self_loops: bool,
        edge_dim: int | None,
        fill_value: Fill,
        bias: bool,
        residual: bool,
        flow: Flow,
    ) -> None:
        super().__init__()
        if heads < 1 or out_channels < 1:
            raise InputError(
                f"{self.name}: {heads} heads of {out_channels} channels; expected 1 or more."
            )
        if not 0 <= dropout <= 1:
            raise InputError(f"{self.name}: dropout={dropout}; expected a probability, 0 to 1.")
        if flow not in ("source_to_target", "target_to_source"):
            raise InputError(
                f'{self.name}: flow={flow!r}; expected "source_to_target" or "target_to_source".'
            )
        self.in_channels, self.out_channels, self.heads = in_channels, out_channels, heads
        self.concat, self.negative_slope, self.dropout = concat, negative_slope, dropout
        self.add_self_loops, self.edge_dim, self.fill_value = add_self_loops, edge_dim, fill_value
        self.residual, self.flow = residual, flow
        total = out_channels * (heads if concat else 1)
        width = in_channels if isinstance(in_channels, int) else in_channels[1]
        self.lin_edge = None if edge_dim is None else projection(edge_dim, heads * out_channels)
        self.res = projection(width, total) if residual else None
        self.bias = nn.Parameter(torch.empty(total)) if bias else None
        self.observer: GraphObserver | None = None

    def reset_parameters(self) -> None:
        """Draw every matrix and vector anew; the bias becomes 0."""
        for module in self.children():
            if isinstance(module, nn.Linear):
                module.reset_parameters()
        for name, parameter in self.named_parameters(recurse=False):
            if name == "bias":
                nn.init.zeros_(parameter)
            else:
                glorot(parameter)

    @abstractmethod
    def projected(self, x: Nodes) -> tuple[Tensor, Tensor | None]:
        """Sources and targets, (nodes, heads, out_channels) each; None: no targets were given."""

    @abstractmethod
    def call(
        self, edges: Edges, sources: Tensor, targets: Tensor | None, features: Tensor | None
    ) -> NeighbourCall:
        """The call of attention, without dropout."""

    def _run(
        self,
        x: Nodes,
        edge_index: Tensor,
        edge_attr: Tensor | None,
        size: tuple[int, int] | None,
        with_weights: bool,
    ) -> Tensor | tuple[Tensor, tuple[Tensor, Tensor]]:
        self._check(x)
        sources, targets = self.projected(x)
        index, features = self._index(edge_index, edge_attr, sources, targets, size)
        count = targets.shape[0] if targets is not None else (size or (0, len(sources)))[1]
        call = self.call(Edges.of_index(index, count, len(sources)), sources, targets, features)
        if self.observer is not None:
            self.observer(self, neighbour_graph(call, self.observer.places))
        call = with_dropout(call, self.dropout if self.training else 0.0)
        output = neighbour_attention(call)
        output = output.flatten(1) if self.concat else output.mean(1)
        last = x if isinstance(x, Tensor) else x[1]
        if self.res is not None and last is not None:
            output = output + self.res(last)
        if self.bias is not None:
            output = output + self.bias
        if not with_weights:
            return output
        weights = neighbour_weights(call)
        return output, (_as_given(index, weights, edge_index, self.flow), weights)

    def _check(self, x: Nodes) -> None:
        if not isinstance(x, Tensor) and self.flow == "target_to_source":
            raise InputError(
                f"{self.name}: x is a pair, sources and targets, and the layer has "
                'flow="target_to_source". Flip the edge_index, and make the layer without flow.'
            )
        for nodes in (x,) if isinstance(x, Tensor) else x:
            if nodes is not None and nodes.ndim != 2:
                raise ShapeError(
                    f"{self.name}: x is {describe(nodes)}; expected features (nodes, width)."
                )

    def _check_edges(self, edge_index: object) -> None:
        """Of what the caller gave: self-loops and flips come after."""
        got = type(edge_index).__name__
        if isinstance(edge_index, Tensor):
            got = f"{edge_index.dtype} of shape {describe(edge_index)}"
            if edge_index.layout != torch.strided:
                fits = edge_index.sparse_dim() == 2
            else:
                fits = edge_index.ndim == 2 and len(edge_index) == 2
                fits = fits and edge_index.dtype in (torch.int64, torch.int32)
            if fits:
                return
        raise InputError(
            f"{self.name}: the edge_index is {got}; expected a tensor of int64, (2, edges), "
            "sources over targets, or a sparse one, (targets, sources)."
        )

    def _index(
        self,
        edge_index: Tensor,
        edge_attr: Tensor | None,
        sources: Tensor,
        targets: Tensor | None,
        size: tuple[int, int] | None,
    ) -> tuple[Tensor, Tensor | None]:
        """The edges as sources over targets, and their features; with self-loops if asked."""
        self._check_edges(edge_index)
        if edge_index.layout != torch.strided:
            # A matrix of targets and sources, whose values may be the edges' features.
            matrix = edge_index.to_sparse(layout=torch.sparse_coo).coalesce()
            if edge_attr is None and matrix.values().ndim > 1:
                edge_attr = matrix.values()
            edge_index = matrix.indices().flip(0)
        elif self.flow == "target_to_source":
            edge_index = edge_index.flip(0)
        if self.lin_edge is None:
            edge_attr = None
        if edge_attr is not None and len(edge_attr) != edge_index.shape[1]:
            raise ShapeError(
                f"{self.name}: edge_attr is {describe(edge_attr)}, there are "
                f"{edge_index.shape[1]} edges. Give a row for each edge."
            )
        if self.add_self_loops:
            nodes = len(sources) if targets is None else min(len(sources), len(targets))
            nodes = nodes if size is None else min(size)
            edge_index, edge_attr = with_self_loops(edge_index, edge_attr, self.fill_value, nodes)
        if edge_attr is not None and edge_attr.ndim == 1:
            edge_attr = edge_attr[:, None]
        return edge_index, edge_attr

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.in_channels}, {self.out_channels}, heads={self.heads})"


class GraphObserver:
    """Who watches graph layers: keeps the graphs of the calls that it sees, in order.

    places: edges of each node that are kept; None: all.
    """

    def __init__(self, places: int | None = None) -> None:
        self.places = places
        self.calls: list[tuple[GraphConvolution, AttentionGraph]] = []

    def __call__(self, layer: GraphConvolution, graph: AttentionGraph) -> None:
        """Receive one call of a layer."""
        self.calls.append((layer, graph.detach()))


def _as_given(index: Tensor, weights: Tensor, edge_index: Tensor, flow: Flow) -> Tensor:
    """The edges that weights are of, in the form in which edges were given."""
    if edge_index.layout == torch.strided:
        return index.flip(0) if flow == "target_to_source" else index
    size = (*edge_index.shape[:2], weights.shape[1])
    return torch.sparse_coo_tensor(index.flip(0), weights, size).coalesce()
