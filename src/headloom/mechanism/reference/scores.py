"""Score functions of the literature, pair by pair.

Tensors are (positions, depth): without batch and head dimensions, as in the papers.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def _each_pair(queries: Tensor, keys: Tensor, pair: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    rows = [[pair(query, key) for key in keys] for query in queries]
    if not rows or not rows[0]:
        return queries.new_zeros(len(queries), len(keys))
    return torch.stack([torch.stack(row) for row in rows])


def dot(queries: Tensor, keys: Tensor) -> Tensor:
    """Return ``score(q, k) = q . k``, (queries, keys).

    Source: Luong et al. 2015, section 3.1.

    >>> dot(torch.tensor([[1., 2.]]), torch.tensor([[3., 4.], [0., 1.]]))
    tensor([[11.,  2.]])
    """
    return _each_pair(queries, keys, lambda q, k: (q * k).sum())


def bilinear(queries: Tensor, keys: Tensor, A: Tensor) -> Tensor:
    """Return ``score(q, k) = q^T A k``, (queries, keys). A: (query_depth, key_depth).

    Source: Luong et al. 2015, section 3.1 ("general").

    >>> A = torch.tensor([[0., 1.], [0., 0.]])
    >>> bilinear(torch.tensor([[1., 2.]]), torch.tensor([[3., 4.]]), A)
    tensor([[4.]])
    """
    return torch.einsum("ia,ab,jb->ij", queries, A, keys)


def symmetric_bilinear(queries: Tensor, keys: Tensor, A: Tensor) -> Tensor:
    """Return ``score(x, y) = (x^T A y + y^T A x) / 2``, symmetric for one sequence.

    A: (depth, depth); only its symmetric part counts. Returns: (queries, keys).
    Source: ours; a symmetric A makes attention an undirected graph.

    >>> x = torch.tensor([[1., 0.], [0., 1.]])
    >>> symmetric_bilinear(x, x, torch.tensor([[0., 4.], [0., 0.]]))
    tensor([[0., 2.],
            [2., 0.]])
    """
    return _each_pair(queries, keys, lambda x, y: (x @ (A @ y) + y @ (A @ x)) / 2)


def additive(queries: Tensor, keys: Tensor, W: Tensor, U: Tensor, v: Tensor) -> Tensor:
    """Return ``score(q, k) = v . tanh(W q + U k)``, (queries, keys).

    W: (hidden, query_depth); U: (hidden, key_depth); v: (hidden,).
    Source: Bahdanau et al. 2015, appendix A.1.2.

    >>> one = torch.ones(1, 1)
    >>> additive(torch.tensor([[1.]]), torch.tensor([[-1.]]), one, one, torch.tensor([5.]))
    tensor([[0.]])
    """
    return _each_pair(queries, keys, lambda q, k: v @ torch.tanh(W @ q + U @ k))


def _leaky_relu(x: Tensor, slope: float) -> Tensor:
    return torch.where(x > 0, x, slope * x)


def graph_attention(queries: Tensor, keys: Tensor, a: Tensor, *, slope: float = 0.2) -> Tensor:
    """Return ``score(i, j) = LeakyReLU(a^T [W h_i || W h_j])``, (queries, keys).

    queries: W h_i, (queries, depth); keys: W h_j, (keys, depth); a: (2 depth,).
    Source: Velickovic et al. 2018, equation 3.

    >>> graph_attention(torch.tensor([[1.]]), torch.tensor([[2.], [-6.]]), torch.tensor([1., 1.]))
    tensor([[ 3., -1.]])
    """
    return _each_pair(queries, keys, lambda q, k: _leaky_relu(a @ torch.cat((q, k)), slope))


def graph_attention_v2(queries: Tensor, keys: Tensor, a: Tensor, *, slope: float = 0.2) -> Tensor:
    """Return ``score(i, j) = a^T LeakyReLU(W_r h_i + W_l h_j)``, (queries, keys).

    queries: W_r h_i, (queries, depth); keys: W_l h_j; a: (depth,).
    Source: Brody et al. 2022, equation 7.

    >>> graph_attention_v2(torch.tensor([[1.]]), torch.tensor([[2.], [-6.]]), torch.tensor([2.]))
    tensor([[ 6., -2.]])
    """
    return _each_pair(queries, keys, lambda q, k: a @ _leaky_relu(q + k, slope))
