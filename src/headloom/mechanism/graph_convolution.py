"""Graph attention layers with the parameters, names and results of PyTorch Geometric's.

    x'_i = sum_{j in N(i) and i} w_ij W h_j,    w_ij = softmax_j(score(i, j))

A state dict of `torch_geometric.nn.GATConv` or `GATv2Conv` loads, and gives the same output;
headloom does not need PyTorch Geometric for it. On the CPU, scores, softmax and sums are one fused
kernel: see `headloom.mechanism.neighbourhood`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headloom.errors import InputError
from headloom.mechanism.graph_layer import Flow, GraphLayer, Nodes
from headloom.mechanism.neighbourhood.call import NeighbourCall, NeighbourScore
from headloom.mechanism.neighbourhood.edges import Edges
from headloom.mechanism.neighbourhood.loops import Fill
from headloom.mechanism.neighbourhood.projection import projection

__all__ = ["GATConv", "GATv2Conv"]


def _heads(projected: Tensor, heads: int) -> Tensor:
    return projected.reshape(len(projected), heads, projected.shape[1] // heads)


def _by_head(vector: Tensor) -> Tensor:
    """A vector for each head, (1, heads, depth), as a matrix (heads * depth, heads)."""
    heads = vector.shape[1]
    return (vector[0, :, :, None] * torch.eye(heads).to(vector)[:, None]).flatten(0, 1)


class GATConv(GraphLayer):
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
        in_channels, heads, out_channels = self.in_channels, self.heads, self.out_channels
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
        """See GraphLayer.projected."""
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
        """See GraphLayer.call."""
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


class GATv2Conv(GraphLayer):
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
        in_channels, heads, out_channels = self.in_channels, self.heads, self.out_channels
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
        """See GraphLayer.projected."""
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
        """See GraphLayer.call."""
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
