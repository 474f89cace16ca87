"""Graph attention layers with the parameters, names and results of PyTorch Geometric's.

    x'_i = sum_{j in N(i) and i} w_ij W h_j,    w_ij = softmax_j(score(i, j))

A state dict of `torch_geometric.nn.GATConv` or `GATv2Conv` loads, and gives the same output; weft
does not need PyTorch Geometric for it. On the CPU, scores, softmax and sums are one fused kernel:
see `weft.mechanism.neighbourhood`.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Literal

import torch
from torch import Tensor, nn

from weft.errors import InputError, ShapeError
from weft.mechanism.graph import AttentionGraph
from weft.mechanism.neighbourhood.call import NeighbourCall, NeighbourScore
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

__all__ = ["GATConv", "GATv2Conv", "GraphConvolution"]

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

    def _index(
        self,
        edge_index: Tensor,
        edge_attr: Tensor | None,
        sources: Tensor,
        targets: Tensor | None,
        size: tuple[int, int] | None,
    ) -> tuple[Tensor, Tensor | None]:
        """The edges as sources over targets, and their features; with self-loops if asked."""
        if edge_index.layout != torch.strided:
            # A matrix of targets and sources, whose values may be the edges' features.
            matrix = edge_index.to_sparse(layout=torch.sparse_coo).coalesce()
            if edge_attr is None and matrix.values().ndim > 1:
                edge_attr = matrix.values()
            edge_index = matrix.indices().flip(0)
        elif self.flow == "target_to_source":
            edge_index = edge_index.flip(0)
        if edge_index.ndim != 2 or len(edge_index) != 2:
            raise InputError(
                f"{self.name}: the edge_index is {describe(edge_index)}; expected (2, edges), "
                "sources over targets."
            )
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


def _heads(projected: Tensor, heads: int) -> Tensor:
    return projected.reshape(len(projected), heads, projected.shape[1] // heads)


def _by_head(vector: Tensor) -> Tensor:
    """A vector for each head, (1, heads, depth), as a matrix (heads * depth, heads)."""
    heads = vector.shape[1]
    return (vector[0, :, :, None] * torch.eye(heads).to(vector)[:, None]).flatten(0, 1)


class GATConv(GraphConvolution):
    """Graph attention, version 1, with the parameters of `torch_geometric.nn.GATConv`.

        score(i, j) = LeakyReLU(a_dst . W h_i + a_src . W h_j + a_edge . W_e e_ij)

    Args:
        in_channels: width of the nodes' features; of sources and targets where these are two kinds
            of nodes. -1: the first call tells.
        out_channels: depth of a head.
        heads: how many.
        concat: whether heads are joined, (nodes, heads * out_channels); otherwise averaged.
        negative_slope: of the LeakyReLU.
        dropout: probability that a weight is set to 0 in training.
        add_self_loops: whether every node looks at itself too.
        edge_dim: width of the edges' features; None: edges have none, and edge_attr is not read.
        fill_value: features of the self-loops: a number, a tensor, or how the features of the edges
            to a node are combined: "add", "mean", "min", "max", "mul".
        bias: whether one is added to the output.
        residual: whether a learned projection of the targets is added to the output.
        flow: whether row 0 of an edge_index holds sources, or row 1.

    Source: Velickovic et al. 2018, equations 1 to 6.

    >>> layer = GATConv(8, 4, heads=2)
    >>> layer(torch.randn(3, 8), torch.tensor([[0, 1], [1, 2]])).shape
    torch.Size([3, 8])
    """

    name = "GATConv"
    att_edge: nn.Parameter | None

    def __init__(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        heads: int = 1,
        concat: bool = True,
        negative_slope: float = 0.2,
        dropout: float = 0.0,
        add_self_loops: bool = True,
        edge_dim: int | None = None,
        fill_value: Fill = "mean",
        bias: bool = True,
        residual: bool = False,
        flow: Flow = "source_to_target",
    ) -> None:
        super().__init__(
            in_channels, out_channels, heads, concat, negative_slope, dropout, add_self_loops,
            edge_dim, fill_value, bias, residual, flow,
        )  # fmt: skip
        wide = heads * out_channels
        self.lin = self.lin_src = self.lin_dst = None
        if isinstance(in_channels, int):
            self.lin = projection(in_channels, wide)
            self.projections = (self.lin, self.lin)  # of sources and of targets
        else:
            self.lin_src, self.lin_dst = (projection(width, wide) for width in in_channels)
            self.projections = (self.lin_src, self.lin_dst)
        self.att_src = nn.Parameter(torch.empty(1, heads, out_channels))
        self.att_dst = nn.Parameter(torch.empty(1, heads, out_channels))
        has_edges = edge_dim is not None
        self.att_edge = nn.Parameter(torch.empty(1, heads, out_channels)) if has_edges else None
        self.reset_parameters()

    def forward(
        self,
        x: Nodes,
        edge_index: Tensor,
        edge_attr: Tensor | None = None,
        size: tuple[int, int] | None = None,
        return_attention_weights: bool | None = None,
    ) -> Tensor | tuple[Tensor, tuple[Tensor, Tensor]]:
        """The nodes' new features.

        Args:
            x: (nodes, in_channels), or those of sources and of targets (or None).
            edge_index: integers (2, edges), sources over targets; or a sparse tensor (targets,
                sources).
            edge_attr: (edges, edge_dim), or (edges,).
            size: numbers of sources and targets, where x does not tell.
            return_attention_weights: whether edges and weights are wanted too.

        Returns: (targets, heads * out_channels), or (targets, out_channels); and, if asked,
            (edges, weights), with weights (edges, heads) after dropout.

        Raises: InputError: an edge to a node that is not there. ShapeError: features of another
            number of rows.
        """
        return self._run(x, edge_index, edge_attr, size, bool(return_attention_weights))

    def projected(self, x: Nodes) -> tuple[Tensor, Tensor | None]:
        """See GraphConvolution.projected."""
        sources, targets = (x, x) if isinstance(x, Tensor) else x
        for_sources, for_targets = self.projections
        projected = _heads(for_sources(sources), self.heads)
        if targets is None:
            return projected, None
        if targets is sources and for_targets is for_sources:
            return projected, projected
        return projected, _heads(for_targets(targets), self.heads)

    def call(
        self, edges: Edges, sources: Tensor, targets: Tensor | None, features: Tensor | None
    ) -> NeighbourCall:
        """See GraphConvolution.call."""
        by_source, by_target = _by_head(self.att_src), _by_head(self.att_dst)
        if targets is sources:
            terms = sources.flatten(1) @ torch.cat((by_target, by_source), 1)
            target_terms, source_terms = terms[:, : self.heads], terms[:, self.heads :]
        else:
            source_terms = sources.flatten(1) @ by_source
            target_terms = source_terms.new_zeros(edges.targets, self.heads)
            if targets is not None:
                target_terms = targets.flatten(1) @ by_target
        edge_terms = None
        if features is not None and self.lin_edge is not None and self.att_edge is not None:
            edge_terms = features @ (self.lin_edge.weight.T @ _by_head(self.att_edge))
        return NeighbourCall(
            edges,
            NeighbourScore.ADDITIVE,
            sources,
            target_terms=target_terms,
            source_terms=source_terms,
            edge_terms=edge_terms,
            slope=self.negative_slope,
        )


class GATv2Conv(GraphConvolution):
    """Graph attention, version 2, with the parameters of `torch_geometric.nn.GATv2Conv`.

        score(i, j) = a . LeakyReLU(W_r h_i + W_l h_j + W_e e_ij)

    Args: as for `GATConv`, and
        share_weights: whether W_r is W_l. (W_l and W_r have a bias where the layer has one.)

    Source: Brody et al. 2022, equation 7.
    """

    name = "GATv2Conv"

    def __init__(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        heads: int = 1,
        concat: bool = True,
        negative_slope: float = 0.2,
        dropout: float = 0.0,
        add_self_loops: bool = True,
        edge_dim: int | None = None,
        fill_value: Fill = "mean",
        bias: bool = True,
        share_weights: bool = False,
        residual: bool = False,
        flow: Flow = "source_to_target",
    ) -> None:
        super().__init__(
            in_channels, out_channels, heads, concat, negative_slope, dropout, add_self_loops,
            edge_dim, fill_value, bias, residual, flow,
        )  # fmt: skip
        self.share_weights = share_weights
        wide = heads * out_channels
        widths = (in_channels, in_channels) if isinstance(in_channels, int) else in_channels
        self.lin_l = projection(widths[0], wide, bias)
        self.lin_r = self.lin_l if share_weights else projection(widths[1], wide, bias)
        self.att = nn.Parameter(torch.empty(1, heads, out_channels))
        self.reset_parameters()

    def forward(
        self,
        x: Nodes,
        edge_index: Tensor,
        edge_attr: Tensor | None = None,
        return_attention_weights: bool | None = None,
    ) -> Tensor | tuple[Tensor, tuple[Tensor, Tensor]]:
        """The nodes' new features; see `GATConv.forward`. Targets must be given."""
        if edge_attr is not None and self.lin_edge is None:
            raise InputError(
                "GATv2Conv: edge_attr is given to a layer of edges without features. Give "
                "edge_dim= when the layer is made."
            )
        return self._run(x, edge_index, edge_attr, None, bool(return_attention_weights))

    def projected(self, x: Nodes) -> tuple[Tensor, Tensor | None]:
        """See GraphConvolution.projected."""
        sources, targets = (x, x) if isinstance(x, Tensor) else x
        if targets is None:
            raise InputError("GATv2Conv: x has no targets; its scores need them. Give (x, x_t).")
        projected = _heads(self.lin_l(sources), self.heads)
        if targets is sources and self.share_weights:
            return projected, projected
        return projected, _heads(self.lin_r(targets), self.heads)

    def call(
        self, edges: Edges, sources: Tensor, targets: Tensor | None, features: Tensor | None
    ) -> NeighbourCall:
        """See GraphConvolution.call."""
        matrix = None
        if features is not None and self.lin_edge is not None:
            matrix = _heads(self.lin_edge.weight.T.contiguous(), self.heads)
        return NeighbourCall(
            edges,
            NeighbourScore.VECTOR,
            sources,
            queries=targets,
            keys=sources,
            vector=self.att[0],
            edge_features=features,
            edge_matrix=matrix,
            slope=self.negative_slope,
        )
