"""A layer's weights averaged over its heads, as a linear operator: exact, or of the kept edges.

    W = 1/heads sum_h P_h,    rows are queries, columns keys

Two operators with the same methods. `MeanOfMatrix` multiplies by the whole matrix, which is never
formed. `MeanOfEdges` has the kept edges alone: each of its cells is at most that of W, and row i
lacks a mass of ``missing[i]`` in all, or less beside a sink. Sums and products of such matrices are
lower bounds, and `missing` says how far below they can be.
"""

from __future__ import annotations

import warnings
from functools import cached_property

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from headloom.analysis.heads.pattern_mass import only_edges_exact
from headloom.analysis.interval import check_numbers, keeps_all, left_out
from headloom.analysis.tiles import row_tiles
from headloom.errors import InputError
from headloom.formats.trace import TraceLayer
from headloom.mechanism.graph import AttentionGraph
from headloom.mechanism.matrix.attention_matrix import AttentionMatrix

__all__ = [
    "Averaged",
    "MeanOfEdges",
    "MeanOfMatrix",
    "average_edges",
    "average_rows",
    "averaged",
    "rounding",
]


class MeanOfMatrix:
    """The mean over heads of an attention matrix; nothing is missing."""

    def __init__(self, matrix: AttentionMatrix, *, causal: bool = False) -> None:
        self.matrix, self._causal = matrix, causal
        #: Mass of each row that the operator lacks, (queries,).
        self.missing = torch.zeros(matrix.shape[1])
        #: What float32 rounds of a row in all, about.
        self.rounding = _of_a_row(matrix.lse)

    @property
    def shape(self) -> tuple[int, int]:
        """(queries, keys)."""
        return self.matrix.shape[1:]

    def __matmul__(self, vectors: Tensor) -> Tensor:
        """``W x``; vectors: (keys, columns). Returns: (queries, columns)."""
        return (self.matrix @ vectors).mean(0)

    def transposed(self, vectors: Tensor) -> Tensor:
        """``W^T y``; vectors: (queries, columns). Returns: (keys, columns)."""
        return (self.matrix.T @ vectors).mean(0)

    def dense(self) -> Tensor:
        """The cells, (queries, keys), formed some rows of one head at a time."""
        heads, queries, keys = self.matrix.shape
        mean = torch.zeros(queries, keys)
        for head in range(heads):
            for rows, columns, tile in row_tiles(self.matrix, head, causal=self._causal):
                mean[rows.start : rows.stop, : len(columns)] += tile
        return mean.div_(max(heads, 1))


class MeanOfEdges:
    """The mean over heads of the kept edges, sparse; `missing` is the mass of those left out.

    >>> import headloom
    >>> tokens = torch.eye(3)[None]                              # e^score is 2 or 1, of 4
    >>> _, graph = headloom.attend(tokens, tokens, tokens, scale=np.log(2), keep=headloom.Top(1))
    >>> kept = MeanOfEdges(graph)
    >>> kept @ torch.tensor([[4.0], [0.0], [0.0]]), kept.missing
    (tensor([[2.],
            [0.],
            [0.]]), tensor([0.5000, 0.5000, 0.5000]))
    """

    def __init__(self, graph: AttentionGraph) -> None:
        self.edges = average_edges(graph)
        self.missing = left_out(graph)[0].detach().float().cpu().mean(0)
        self.rounding = _of_a_row(graph.lse)

    @property
    def shape(self) -> tuple[int, int]:
        """(queries, keys)."""
        queries, keys = self.edges.shape
        return queries, keys

    def __matmul__(self, vectors: Tensor) -> Tensor:
        """``W x`` of the kept edges; vectors: (keys, columns). Returns: (queries, columns)."""
        if vectors.shape[1] >= 16 and self.edges.nnz:
            return self._torch @ vectors
        return torch.from_numpy(self.edges @ vectors.numpy())

    def transposed(self, vectors: Tensor) -> Tensor:
        """``W^T y`` of the kept edges; vectors: (queries, columns). Returns: (keys, columns)."""
        return torch.from_numpy(self.edges.T @ vectors.numpy())

    def dense(self) -> Tensor:
        """The cells, (queries, keys)."""
        return torch.from_numpy(self.edges.toarray())

    @cached_property
    def _torch(self) -> Tensor:
        """The same for torch, which is the faster one with many columns."""
        with warnings.catch_warnings():
            # That sparse matrices may change their interface.
            warnings.simplefilter("ignore", UserWarning)
            return torch.sparse_csr_tensor(
                torch.from_numpy(self.edges.indptr),
                torch.from_numpy(self.edges.indices),
                torch.from_numpy(self.edges.data),
                size=self.shape,
            )


Averaged = MeanOfMatrix | MeanOfEdges


def rounding(lse: Tensor) -> Tensor:
    """By what share of itself float32 rounds a weight, about: by what it rounds its score.

    A score that has weight is about as large as the row's log-sum-exp, and both are rounded.

    lse: (heads, queries). Returns: the same shape.
    """
    return 2.0**-24 * (1 + 2 * torch.where(lse.isfinite(), lse.abs(), 0).float())


def _of_a_row(lse: Tensor) -> float:
    """What is rounded of a row's weights in all, averaged over heads, at most."""
    rows = rounding(lse).mean(0)
    return float(rows.max()) if len(rows) else 0.0


def average_edges(graph: AttentionGraph, *, merged: bool = True) -> scipy.sparse.csr_array:
    """The kept weights of a graph without a batch, averaged over heads, (queries, keys).

    merged: whether the edges of several heads between the same positions become one, in order;
    products with vectors need no such thing, and making it takes most of the time.
    """
    return average_rows(graph.keys, graph.weights, graph.length, merged=merged)


def average_rows(
    of_keys: Tensor, of_weights: Tensor, length: int, *, merged: bool = True
) -> scipy.sparse.csr_array:
    """The same of some rows of a graph: its keys and weights, (heads, rows, places)."""
    heads, queries, places = of_keys.shape
    keys = of_keys.detach().cpu().transpose(0, 1).reshape(queries, heads * places)
    weights = of_weights.detach().float().cpu().transpose(0, 1).reshape(queries, heads * places)
    there = keys >= 0
    starts = np.zeros(queries + 1, np.int32)
    np.cumsum(there.sum(-1).numpy(), out=starts[1:])
    edges = scipy.sparse.csr_array(
        ((weights[there] / max(heads, 1)).numpy(), keys[there].int().numpy(), starts),
        shape=(queries, length),
    )
    if merged:
        edges.sum_duplicates()
    return edges


def averaged(layer: TraceLayer, exact: bool | None) -> Averaged:
    """A layer's weights averaged over heads.

    exact: True: all of them, from queries and keys, as rows that sum to 1 also where these were
    rounded; or from the kept edges, where these are all and there are no queries and keys, or
    rounded ones. False: those of the kept edges. None: all of them where the layer has them.

    Raises: InputError: exact is True and the layer has no `matrix`, nor every edge; weights that
    are not numbers.
    """
    matrix = None if exact is False or only_edges_exact(layer) else layer.normalised_matrix
    if matrix is not None:
        check_numbers(matrix, f"layer {layer.name}")
        return MeanOfMatrix(matrix, causal=layer.mask == "causal")
    graph = layer.graph
    if exact and not keeps_all(graph):
        raise InputError(
            f"layer {layer.name}: it has no exact weights: {layer.no_matrix}. Take the kept edges, "
            "exact=False."
        )
    check_numbers(graph, f"layer {layer.name}")
    return MeanOfEdges(graph)
