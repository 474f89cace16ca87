"""Graph attention layers with the parameters, names and results of PyTorch Geometric's.

    x'_i = sum_{j in N(i) and i} w_ij W h_j,    w_ij = softmax_j(score(i, j))

A state dict of `torch_geometric.nn.GATConv` or `GATv2Conv` loads, and gives the same output;
PyTorch Geometric need not be installed. On the CPU, scores, softmax and sums are one fused kernel:
see `headloom.mechanism.neighbours`.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Protocol

import torch
from torch import Tensor, nn

from headloom.errors import InputError, ShapeError
from headloom.mechanism.attention_layer import linear_maps
from headloom.mechanism.neighbour_call import Edges, NeighbourCall, NeighbourScore
from headloom.mechanism.neighbours import neighbour_attention, neighbour_weights
from headloom.mechanism.shapes import describe, finite_number, in_words, whole_number

#: Features of the nodes, (nodes, width); or those of the sources and those of the targets.
Nodes = Tensor | tuple[Tensor, Tensor]

#: Reductions from the features of a node's edges to those of its self-loop, and torch's names.
_COMBINED = {"add": "sum", "mean": "mean", "min": "amin", "max": "amax", "mul": "prod"}


class GraphLayer(nn.Module):
    """Base of `GATConv` and `GATv2Conv`: edges, self-loops, heads, residual and bias.

    observer: None, or called with this layer, each of its calls before dropout, and whether sources
    and targets are the same nodes.
    """

    def __init__(
        self, in_channels: int | tuple[int, int], out_channels: int, heads: int = 1,
        concat: bool = True, negative_slope: float = 0.2, dropout: float = 0.0,
        add_self_loops: bool = True, edge_dim: int | None = None, fill_value: float | str = "mean",
        bias: bool = True, residual: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        name = type(self).__name__
        both = (in_channels, in_channels) if isinstance(in_channels, int) else in_channels
        sources, targets = (whole_number(name, "in_channels", width, 1) for width in both)
        if not 0 <= finite_number(name, "dropout", dropout) <= 1:
            raise InputError(f"{name}: dropout={in_words(dropout)}; expected 0 to 1.")
        if isinstance(fill_value, str) and fill_value not in _COMBINED:
            raise InputError(
                f"{name}: fill_value={in_words(fill_value)}; expected a number or one of "
                f"{', '.join(_COMBINED)}."
            )
        self.heads = whole_number(name, "heads", heads, 1)
        self.out_channels = whole_number(name, "out_channels", out_channels, 1)
        self.in_channels, self.concat, self.dropout = in_channels, concat, dropout
        self.negative_slope = finite_number(name, "negative_slope", negative_slope)
        self.add_self_loops, self.edge_dim, self.fill_value = add_self_loops, edge_dim, fill_value
        self.widths, self.residual = (sources, targets), residual
        total = out_channels * (heads if concat else 1)
        self.lin_edge: nn.Linear | None = None
        if edge_dim is not None:
            width = whole_number(name, "edge_dim", edge_dim, 1)
            self.lin_edge = nn.Linear(width, heads * out_channels, bias=False)
        self.res = nn.Linear(targets, total, bias=False) if residual else None
        self.bias = nn.Parameter(torch.empty(total)) if bias else None
        self.observer: GraphObserver | None = None
        self._make(heads * out_channels)
        self.reset_parameters()

    @abstractmethod
    def _make(self, wide: int) -> None:
        """Add the learned matrices and vectors of this kind of layer."""

    @abstractmethod
    def _call(
        self, edges: Edges, sources: Tensor, targets: Tensor, features: Tensor | None
    ) -> NeighbourCall:
        """Return the attention call, without dropout; features: of the edges."""

    def __getstate__(self) -> dict[str, object]:
        """Return the state for copies and pickles: without an observer."""
        return {**self.__dict__, "observer": None}

    def reset_parameters(self) -> None:
        """Initialise matrices and vectors (Glorot and Bengio 2010, equation 16), biases to 0."""
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            else:
                bound = math.sqrt(6.0 / (parameter.shape[-2] + parameter.shape[-1]))
                nn.init.uniform_(parameter, -bound, bound)

    def _by_head(self, linear: nn.Linear, rows: Tensor) -> Tensor:
        """Apply a linear map to nodes or edges, (rows, heads, out_channels)."""
        (projected,) = linear_maps(rows, [linear])
        return projected.view(len(rows), self.heads, self.out_channels)

    def forward(
        self,
        x: Nodes,
        edge_index: Tensor,
        edge_attr: Tensor | None = None,
        return_attention_weights: bool | None = None,
    ) -> Tensor | tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return the nodes' new features.

        Args:
            x: (nodes, in_channels), or a pair: features of the sources and of the targets.
            edge_index: integers (2, edges), sources over targets.
            edge_attr: (edges, edge_dim), or (edges,).
            return_attention_weights: whether to return edges and weights too.

        Returns: (targets, heads * out_channels), or (targets, out_channels); with
            return_attention_weights also (edges, weights), weights (edges, heads) after dropout.

        Raises: InputError: an edge with a node that does not exist. ShapeError: features with
            another number of rows.
        """
        name = type(self).__name__
        of_sources, of_targets = (x, x) if isinstance(x, Tensor) else x
        check_features(name, "x", of_sources, self.widths[0])
        check_features(name, "x", of_targets, self.widths[1])
        edge_attr = self._checked_edges(edge_index, edge_attr)
        if self.add_self_loops:
            nodes = min(len(of_sources), len(of_targets))
            edge_index, edge_attr = _with_self_loops(edge_index, edge_attr, self.fill_value, nodes)
        edges = Edges.of_index(edge_index, len(of_targets), len(of_sources))
        call = self._call(edges, of_sources, of_targets, edge_attr)
        if (observer := self.observer) is not None:
            observer(self, call, of_sources is of_targets)
        call = call.with_dropout(self.dropout if self.training else 0.0)
        output = neighbour_attention(call)
        output = output.flatten(1) if self.concat else output.mean(1)
        if self.res is not None:
            output = output + linear_maps(of_targets, [self.res])[0]
        if self.bias is not None:
            output = output + self.bias
        return (
            (output, (edge_index, neighbour_weights(call))) if return_attention_weights else output
        )

    def _checked_edges(self, edge_index: Tensor, edge_attr: Tensor | None) -> Tensor | None:
        """Check the edges; return their features, (edges, features), or None."""
        name, kinds = type(self).__name__, (torch.int64, torch.int32)
        if (
            not isinstance(edge_index, Tensor)
            or edge_index.layout != torch.strided
            or (edge_index.ndim != 2 or len(edge_index) != 2 or edge_index.dtype not in kinds)
        ):
            raise InputError(
                f"{name}: the edge_index is {in_words(edge_index)}; expected a tensor of int64, "
                "(2, edges), sources over targets."
            )
        if self.edge_dim is None or edge_attr is None:
            return None
        edge_attr = edge_attr[:, None] if edge_attr.ndim == 1 else edge_attr
        check_features(name, "edge_attr", edge_attr, self.edge_dim)
        if len(edge_attr) != edge_index.shape[1]:
            raise ShapeError(
                f"{name}: edge_attr is {describe(edge_attr)}; there are {edge_index.shape[1]} "
                "edges. Give a row for each edge."
            )
        return edge_attr

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.in_channels}, {self.out_channels}, heads={self.heads})"


class GraphObserver(Protocol):
    """Protocol of an observer of graph layers."""

    def __call__(self, layer: GraphLayer, call: NeighbourCall, of_one: bool) -> None:
        """Receive one call of a layer; of_one: whether its sources are its targets."""


def check_features(name: str, what: str, features: object, width: int) -> None:
    """Raise an error unless features are floating-point rows of a width."""
    if not isinstance(features, Tensor) or not features.is_floating_point():
        raise InputError(
            f"{name}: {what} is {in_words(features)}; expected a tensor of real numbers, as from "
            f"{what}.float()."
        )
    if features.ndim != 2 or features.shape[1] != width:
        raise ShapeError(f"{name}: {what} is {describe(features)}; expected (rows, {width}).")


class GATConv(GraphLayer):
    """Graph attention layer with the parameters of `torch_geometric.nn.GATConv`.

        score(i, j) = LeakyReLU(a_dst . W h_i + a_src . W h_j + a_edge . W_e e_ij)

    Args:
        in_channels: width of the nodes' features; a pair (sources, targets) if these are two kinds
            of nodes.
        out_channels: depth of a head.
        heads: number of heads.
        concat: whether heads are concatenated, (nodes, heads * out_channels); otherwise averaged.
        negative_slope: slope of the LeakyReLU below 0.
        dropout: probability that a weight is set to 0 in training.
        add_self_loops: whether every node attends to itself too.
        edge_dim: width of the edges' features; None: edges have none, and edge_attr is not read.
        fill_value: features of the self-loops: a number, or the reduction of the features of a
            node's incoming edges: "add", "mean", "min", "max", "mul".
        bias: whether a learned bias is added to the output.
        residual: whether a learned projection of the targets is added to the output.

    Source: Velickovic et al. 2018, equations 1 to 6.

    >>> layer = GATConv(8, 4, heads=2)
    >>> layer(torch.randn(3, 8), torch.tensor([[0, 1], [1, 2]])).shape
    torch.Size([3, 8])
    """

    def _make(self, wide: int) -> None:
        self.lin: nn.Linear | None = None
        self.lin_src: nn.Linear | None = None
        self.lin_dst: nn.Linear | None = None
        if isinstance(self.in_channels, int):
            self.lin = nn.Linear(self.in_channels, wide, bias=False)
        else:
            self.lin_src, self.lin_dst = (nn.Linear(w, wide, bias=False) for w in self.widths)
        shape = (1, self.heads, self.out_channels)
        self.att_src = nn.Parameter(torch.empty(shape))
        self.att_dst = nn.Parameter(torch.empty(shape))
        self.att_edge = None if self.edge_dim is None else nn.Parameter(torch.empty(shape))

    def _call(
        self, edges: Edges, sources: Tensor, targets: Tensor, features: Tensor | None
    ) -> NeighbourCall:
        source_map, target_map = self.lin or self.lin_src, self.lin or self.lin_dst
        assert source_map is not None and target_map is not None
        values = queries = self._by_head(source_map, sources)
        if targets is not sources or target_map is not source_map:
            queries = self._by_head(target_map, targets)
        edge_terms = None
        if features is not None and self.lin_edge is not None and self.att_edge is not None:
            edge_terms = features @ (self.lin_edge.weight.T @ _blocks(self.att_edge))
        return NeighbourCall(
            edges, NeighbourScore.ADDITIVE, values,
            target_terms=queries.flatten(1) @ _blocks(self.att_dst),
            source_terms=values.flatten(1) @ _blocks(self.att_src), edge_terms=edge_terms,
            slope=self.negative_slope,
        )  # fmt: skip


class GATv2Conv(GraphLayer):
    """Graph attention layer, version 2, with the parameters of `torch_geometric.nn.GATv2Conv`.

        score(i, j) = a . LeakyReLU(W_r h_i + W_l h_j + W_e e_ij)

    Args: as for `GATConv`, and
        share_weights: whether W_r is W_l. (W_l and W_r have a bias if the layer has one.)

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
        self.share_weights = share_weights
        super().__init__(
            in_channels, out_channels, heads, concat, negative_slope, dropout, add_self_loops,
            edge_dim, fill_value, bias, residual,
        )  # fmt: skip

    def _make(self, wide: int) -> None:
        bias = self.bias is not None
        self.lin_l = nn.Linear(self.widths[0], wide, bias)
        self.lin_r = self.lin_l if self.share_weights else nn.Linear(self.widths[1], wide, bias)
        self.att = nn.Parameter(torch.empty(1, self.heads, self.out_channels))

    def _call(
        self, edges: Edges, sources: Tensor, targets: Tensor, features: Tensor | None
    ) -> NeighbourCall:
        values = queries = self._by_head(self.lin_l, sources)
        if targets is not sources or not self.share_weights:
            queries = self._by_head(self.lin_r, targets)
        rows = None
        if features is not None and self.lin_edge is not None:
            rows = self._by_head(self.lin_edge, features)
        return NeighbourCall(
            edges, NeighbourScore.VECTOR, values, queries=queries, keys=values, vector=self.att[0],
            edge_rows=rows, slope=self.negative_slope,
        )  # fmt: skip


def _blocks(vector: Tensor) -> Tensor:
    """Write a vector for each head, (1, heads, depth), as a matrix (heads * depth, heads)."""
    heads = vector.shape[1]
    return (vector[0, :, :, None] * torch.eye(heads).to(vector)[:, None]).flatten(0, 1)


def _with_self_loops(
    edge_index: Tensor, features: Tensor | None, fill: float | str, nodes: int
) -> tuple[Tensor, Tensor | None]:
    """Replace self-loops by one for each of the first `nodes` nodes, after all other edges."""
    no_loops = edge_index[0] != edge_index[1]
    edge_index = edge_index[:, no_loops]
    loops = torch.arange(nodes, dtype=edge_index.dtype, device=edge_index.device).expand(2, -1)
    joined = torch.cat((edge_index, loops), 1)
    if features is None:
        return joined, None
    features = features[no_loops]
    # The empty product is 1, every other empty reduction 0.
    empty = float(fill == "mul") if isinstance(fill, str) else fill
    filled = features.new_full((nodes, features.shape[1]), empty)
    if isinstance(fill, str):
        inside = edge_index[1] < nodes
        places = edge_index[1][inside].long()[:, None].expand(-1, features.shape[1])
        reduction = _COMBINED[fill]
        filled = filled.scatter_reduce(0, places, features[inside], reduction, include_self=False)
    return joined, torch.cat((features, filled))
