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
from headloom.mechanism.graph_layer import GraphLayer, Nodes
from headloom.mechanism.neighbourhood.call import Edges, NeighbourCall, NeighbourScore

__all__ = ["GATConv", "GATv2Conv"]


class GATConv(GraphLayer):
    """Graph attention, version 1, with the parameters of `torch_geometric.nn.GATConv`.

        score(i, j) = LeakyReLU(a_dst . W h_i + a_src . W h_j + a_edge . W_e e_ij)

    Args:
        in_channels: width of the nodes' features; of sources and targets where these are two kinds
            of nodes.
        out_channels: depth of a head.
        heads: how many.
        concat: whether heads are joined, (nodes, heads * out_channels); otherwise averaged.
        negative_slope: of the LeakyReLU.
        dropout: probability that a weight is set to 0 in training.
        add_self_loops: whether every node looks at itself too.
        edge_dim: width of the edges' features; None: edges have none, and edge_attr is not read.
        fill_value: features of the self-loops: a number, or how the features of the edges to a node
            are combined: "add", "mean", "min", "max", "mul".
        bias: whether one is added to the output.
        residual: whether a learned projection of the targets is added to the output.

    Source: Velickovic et al. 2018, equations 1 to 6.

    >>> layer = GATConv(8, 4, heads=2)
    >>> layer(torch.randn(3, 8), torch.tensor([[0, 1], [1, 2]])).shape
    torch.Size([3, 8])
    """

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
        fill_value: float | str = "mean",
        bias: bool = True,
        residual: bool = False,
    ) -> None:
        super().__init__(
            in_channels, out_channels, heads, concat, negative_slope, dropout, add_self_loops,
            edge_dim, fill_value, bias, residual,
        )  # fmt: skip
        wide = heads * out_channels
        self.lin: nn.Linear | None = None
        self.lin_src: nn.Linear | None = None
        self.lin_dst: nn.Linear | None = None
        if isinstance(in_channels, int):
            self.lin = nn.Linear(in_channels, wide, bias=False)
        else:
            self.lin_src, self.lin_dst = (nn.Linear(w, wide, bias=False) for w in self.widths)
        self.att_src = nn.Parameter(torch.empty(1, heads, out_channels))
        self.att_dst = nn.Parameter(torch.empty(1, heads, out_channels))
        edge = None if edge_dim is None else nn.Parameter(torch.empty(1, heads, out_channels))
        self.att_edge = edge
        self.reset_parameters()

    def forward(
        self,
        x: Nodes,
        edge_index: Tensor,
        edge_attr: Tensor | None = None,
        return_attention_weights: bool | None = None,
    ) -> Tensor | tuple[Tensor, tuple[Tensor, Tensor]]:
        """The nodes' new features.

        Args:
            x: (nodes, in_channels), or those of sources and of targets.
            edge_index: integers (2, edges), sources over targets.
            edge_attr: (edges, edge_dim), or (edges,).
            return_attention_weights: whether edges and weights are wanted too.

        Returns: (targets, heads * out_channels), or (targets, out_channels); and, if asked,
            (edges, weights), with weights (edges, heads) after dropout.

        Raises: InputError: an edge to a node that is not there. ShapeError: features of another
            number of rows.
        """
        return self._run(x, edge_index, edge_attr, bool(return_attention_weights))

    def _projected(self, sources: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        of_sources, of_targets = self.lin or self.lin_src, self.lin or self.lin_dst
        assert of_sources is not None and of_targets is not None
        projected = self._heads_of(of_sources, sources)
        if targets is sources and of_targets is of_sources:
            return projected, projected
        return projected, self._heads_of(of_targets, targets)

    def _call(
        self, edges: Edges, sources: Tensor, targets: Tensor, features: Tensor | None
    ) -> NeighbourCall:
        edge_terms = None
        if features is not None and self.lin_edge is not None and self.att_edge is not None:
            edge_terms = features @ (self.lin_edge.weight.T @ _by_head(self.att_edge))
        return NeighbourCall(
            edges,
            NeighbourScore.ADDITIVE,
            sources,
            target_terms=targets.flatten(1) @ _by_head(self.att_dst),
            source_terms=sources.flatten(1) @ _by_head(self.att_src),
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
        fill_value: float | str = "mean",
        bias: bool = True,
        share_weights: bool = False,
        residual: bool = False,
    ) -> None:
        super().__init__(
            in_channels, out_channels, heads, concat, negative_slope, dropout, add_self_loops,
            edge_dim, fill_value, bias, residual,
        )  # fmt: skip
        self.share_weights, wide = share_weights, heads * out_channels
        self.lin_l = nn.Linear(self.widths[0], wide, bias)
        self.lin_r = self.lin_l if share_weights else nn.Linear(self.widths[1], wide, bias)
        self.att = nn.Parameter(torch.empty(1, heads, out_channels))
        self.reset_parameters()

    def forward(
        self,
        x: Nodes,
        edge_index: Tensor,
        edge_attr: Tensor | None = None,
        return_attention_weights: bool | None = None,
    ) -> Tensor | tuple[Tensor, tuple[Tensor, Tensor]]:
        """The nodes' new features; see `GATConv.forward`."""
        if edge_attr is not None and self.lin_edge is None:
            raise InputError(
                "GATv2Conv: edge_attr is given to a layer of edges without features. Give "
                "edge_dim= when the layer is made."
            )
        return self._run(x, edge_index, edge_attr, bool(return_attention_weights))

    def _projected(self, sources: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        projected = self._heads_of(self.lin_l, sources)
        if targets is sources and self.share_weights:
            return projected, projected
        return projected, self._heads_of(self.lin_r, targets)

    def _call(
        self, edges: Edges, sources: Tensor, targets: Tensor, features: Tensor | None
    ) -> NeighbourCall:
        rows = None
        if features is not None and self.lin_edge is not None:
            rows = self._heads_of(self.lin_edge, features)
        return NeighbourCall(
            edges,
            NeighbourScore.VECTOR,
            sources,
            queries=targets,
            keys=sources,
            vector=self.att[0],
            edge_rows=rows,
            slope=self.negative_slope,
        )


def _by_head(vector: Tensor) -> Tensor:
    """A vector for each head, (1, heads, depth), as a matrix (heads * depth, heads)."""
    heads = vector.shape[1]
    return (vector[0, :, :, None] * torch.eye(heads).to(vector)[:, None]).flatten(0, 1)
