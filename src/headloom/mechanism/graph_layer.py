"""What graph attention layers share: edges and self-loops, heads, residual, bias, an observer."""

from __future__ import annotations

from abc import abstractmethod
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from headloom.errors import InputError, ShapeError
from headloom.mechanism.graph_inputs import (
    check_edges,
    check_features,
    check_numbers,
    check_size,
    checked_widths,
)
from headloom.mechanism.neighbourhood.call import NeighbourCall
from headloom.mechanism.neighbourhood.edges import Edges
from headloom.mechanism.neighbourhood.function import (
    neighbour_attention,
    neighbour_weights,
    with_dropout,
)
from headloom.mechanism.neighbourhood.loops import Fill, with_self_loops
from headloom.mechanism.neighbourhood.projection import glorot, projection
from headloom.mechanism.shapes import describe, in_words, whole_number

__all__ = ["Flow", "GraphLayer", "GraphObserver", "Nodes"]

#: Features of the nodes, (nodes, width); or those of the sources, and those of the targets or None.
Nodes = Tensor | tuple[Tensor, Tensor | None]
Flow = Literal["source_to_target", "target_to_source"]


class GraphLayer(nn.Module):
    """What `GATConv` and `GATv2Conv` share: edges, self-loops, heads, residual and bias.

    observer: normally None; while set, it is handed this layer, each of its calls before dropout,
    and whether one tensor gives the nodes that look and those looked at.
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
        self.in_channels = in_channels = checked_widths(self.name, in_channels)
        heads = whole_number(self.name, "heads", heads, 1, None)
        out_channels = whole_number(self.name, "out_channels", out_channels, 1, None)
        if edge_dim is not None:
            edge_dim = whole_number(self.name, "edge_dim", edge_dim, -1, None)
        check_numbers(self.name, dropout, negative_slope)
        if flow not in ("source_to_target", "target_to_source"):
            raise InputError(
                f'{self.name}: flow={in_words(flow)}; expected "source_to_target" or '
                '"target_to_source".'
            )
        self.out_channels, self.heads = out_channels, heads
        self.concat, self.negative_slope, self.dropout = concat, negative_slope, dropout
        self.add_self_loops, self.edge_dim, self.fill_value = add_self_loops, edge_dim, fill_value
        self.residual, self.flow = residual, flow
        total = out_channels * (heads if concat else 1)
        width = in_channels if isinstance(in_channels, int) else in_channels[1]
        self.lin_edge = None if edge_dim is None else projection(edge_dim, heads * out_channels)
        self.res = projection(width, total) if residual else None
        self.bias = nn.Parameter(torch.empty(total)) if bias else None
        self.observer: GraphObserver | None = None

    def __getstate__(self) -> dict[str, object]:
        """What a copy takes along, also a pickled one: nobody watches it."""
        return {**self.__dict__, "observer": None}

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
        check_size(self.name, size, sources, targets)
        index, features = self._index(edge_index, edge_attr, sources, targets, size)
        count = targets.shape[0] if targets is not None else (size or (0, len(sources)))[1]
        call = self.call(Edges.of_index(index, count, len(sources)), sources, targets, features)
        if self.observer is not None:
            self.observer(self, call, isinstance(x, Tensor) or x[0] is x[1])
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
        if isinstance(x, (tuple, list)) and self.flow == "target_to_source":
            raise InputError(
                f"{self.name}: x is a pair, sources and targets, and the layer has "
                'flow="target_to_source". Flip the edge_index, and make the layer without flow.'
            )
        pair = x if isinstance(x, (tuple, list)) else (x, x)
        if len(pair) != 2:
            raise InputError(
                f"{self.name}: x is {type(pair).__name__} of length {len(pair)}; expected the "
                "features of the nodes, or a pair, those of sources and of targets."
            )
        width = self.in_channels
        widths = width if isinstance(width, tuple) else (width, width)
        check_features(self.name, "x", pair[0], widths[0])
        if pair[1] is not None:
            check_features(self.name, "x", pair[1], widths[1])

    def _index(
        self,
        edge_index: Tensor,
        edge_attr: Tensor | None,
        sources: Tensor,
        targets: Tensor | None,
        size: tuple[int, int] | None,
    ) -> tuple[Tensor, Tensor | None]:
        """The edges as sources over targets, and their features; with self-loops if asked."""
        check_edges(self.name, edge_index)
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
        if edge_attr is not None and self.edge_dim is not None:
            flat = isinstance(edge_attr, Tensor) and edge_attr.ndim == 1
            rows = edge_attr[:, None] if flat else edge_attr
            check_features(self.name, "edge_attr", rows, self.edge_dim)
            if len(rows) != edge_index.shape[1]:
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


class GraphObserver(Protocol):
    """Who watches graph layers."""

    def __call__(self, layer: GraphLayer, call: NeighbourCall, of_one: bool) -> None:
        """Receive one call of a layer.

        of_one: whether the nodes that look are those that are looked at.
        """


def _as_given(index: Tensor, weights: Tensor, edge_index: Tensor, flow: Flow) -> Tensor:
    """The edges that weights are of, in the form in which edges were given."""
    if edge_index.layout == torch.strided:
        return index.flip(0) if flow == "target_to_source" else index
    size = (*edge_index.shape[:2], weights.shape[1])
    matrix = torch.sparse_coo_tensor(index.flip(0), weights, size, check_invariants=False)
    return matrix.coalesce()
