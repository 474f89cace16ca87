"""A layer's weights averaged over its heads, as a linear operator of SciPy.

W = 1/heads sum_h P_h,    rows are queries, columns keys
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator
from torch import Tensor

from headloom.analysis.weights import Source, row_tiles
from headloom.mechanism.graph import AttentionGraph

if TYPE_CHECKING:
    Operator = LinearOperator | scipy.sparse.csr_array

__all__ = ["average_edges", "dense_average", "mean_over_heads"]


def mean_over_heads(source: Source) -> Operator:
    """Return W: a sparse matrix of the kept edges, or products with all weights, never formed.

    >>> import headloom
    >>> tokens = torch.eye(3)[None]                              # e^score is 2 or 1, of 4
    >>> _, graph = headloom.attend(tokens, tokens, tokens, scale=np.log(2), keep=headloom.Top(1))
    >>> mean_over_heads(graph) @ np.array([4.0, 0.0, 0.0])
    array([2., 0., 0.])
    """
    if isinstance(source, AttentionGraph):
        return average_edges(source.keys, source.weights, source.length)
    matrix = source

    def product(vectors: NDArray[np.floating]) -> NDArray[np.floating]:
        return (matrix @ _columns(vectors, matrix.queries)).mean(0).cpu().numpy()

    def transposed(vectors: NDArray[np.floating]) -> NDArray[np.floating]:
        return (matrix.T @ _columns(vectors, matrix.queries)).mean(0).cpu().numpy()

    return LinearOperator(
        matrix.shape[1:],
        matvec=product,
        rmatvec=transposed,
        matmat=product,
        rmatmat=transposed,
        dtype=np.float32,
    )


def _columns(vectors: NDArray[np.floating], like: Tensor) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(vectors)).to(like)


def average_edges(keys: Tensor, weights: Tensor, length: int) -> scipy.sparse.csr_array:
    """Average kept edges over heads. keys, weights: (heads, rows, places); key -1: no edge."""
    heads, rows, places = keys.shape
    keys = keys.detach().cpu().transpose(0, 1).reshape(rows, heads * places)
    weights = weights.detach().float().cpu().transpose(0, 1).reshape(rows, heads * places)
    there = keys >= 0
    starts = np.concatenate(([0], there.sum(-1).cumsum(0).numpy())).astype(np.int32)
    edges = scipy.sparse.csr_array(
        ((weights[there] / max(heads, 1)).numpy(), keys[there].int().numpy(), starts),
        shape=(rows, length),
    )
    edges.sum_duplicates()
    return edges


def dense_average(source: Source, *, causal: bool = False) -> Tensor:
    """Return the cells of W, (queries, keys). causal: whether no query looks ahead."""
    if isinstance(source, AttentionGraph):
        return torch.from_numpy(average_edges(source.keys, source.weights, source.length).toarray())
    mean = torch.zeros(source.shape[1:])
    for rows, columns, tile in row_tiles(source, causal=causal):
        mean[rows.start : rows.stop, : len(columns)] = tile.mean(0)
    return mean
