"""Score functions: one class for each formula.

A score function maps queries (batch, heads, queries, depth) and keys (batch, heads, keys, depth) to
raw scores (batch, heads, queries, keys): any real numbers, before mask and softmax. The formulas
for one pair of vectors, as in the papers, are in `headloom.mechanism.reference.scores`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from headloom.errors import InputError, ShapeError
from headloom.mechanism.parts import with_tensors
from headloom.mechanism.shapes import describe, finite_number


def node_terms(nodes: Tensor, vector: Tensor) -> Tensor:
    """Return the term ``a . W h_i`` of nodes (..., nodes, depth); a: (depth,) or (heads, depth)."""
    return (nodes * vector[..., None, :]).sum(-1)


def _check_vector(operation: str, name: str, vector: Tensor, nodes: Tensor) -> None:
    if vector.ndim not in (1, 2) or vector.shape[-1] != nodes.shape[-1]:
        raise ShapeError(
            f"{operation}: {name} is {describe(vector)}, nodes have depth {nodes.shape[-1]}. "
            "It must be (depth,) or (heads, depth)."
        )


class Score(ABC):
    """Score function with its parameters, for `headloom.attention`; subclass it to write your own.

        scores = score(queries, keys) * scale

    `__call__` gets a block of rows of the queries, (batch, heads, rows, depth), and the keys
    (batch, heads, keys, depth), and returns (batch, heads, rows, keys); each score depends only on
    its query and its key. Tensors among the attributes are trained; they have the dtype of the
    queries, and `tensors` lists the required ones. Computed by torch, a block of rows at a time.

    >>> from torch.nn.functional import normalize
    >>> class Cosine(Score):
    ...     def __call__(self, queries, keys):
    ...         return normalize(queries, dim=-1) @ normalize(keys, dim=-1).mT
    >>> import headloom
    >>> queries, keys = torch.tensor([[[3., 4.]]]), torch.tensor([[[30., 40.], [-4., 3.]]])
    >>> matrix = headloom.AttentionMatrix(queries, keys, score=Cosine(), scale=math.log(3))
    >>> matrix.to_dense()                                   # cosines 1 and 0: e^score is 3 and 1
    tensor([[[0.7500, 0.2500]]])

    A score with parameters for each head has a tensor whose first dimension is heads, and sets
    `by_head` to the number of dimensions of such a tensor; tensors with another number of
    dimensions are shared by all heads. `of_head` uses it to select one head, and `check` to compare
    the number of heads.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True, eq=False)
    ... class Sharpened(Score):
    ...     sharpness: Tensor                            # (heads, 1, 1)
    ...     tensors = ("sharpness",)
    ...     by_head = 3
    ...     def __call__(self, queries, keys):
    ...         return self.sharpness * (queries @ keys.mT)
    >>> score = Sharpened(torch.tensor([[[0.]], [[math.log(3)]]]))
    >>> queries, keys = torch.ones(2, 1, 1), torch.tensor([[[1.], [0.]]]).expand(2, 2, 1)
    >>> headloom.AttentionMatrix(queries, keys, score=score).to_dense()[:, 0]
    tensor([[0.5000, 0.5000],
            [0.7500, 0.2500]])
    >>> score.of_head(1).sharpness.shape
    torch.Size([1, 1, 1])
    """

    #: Names of the required tensors.
    tensors: ClassVar[tuple[str, ...]] = ()
    #: Whether queries and keys must have the same depth.
    same_depth: bool = True
    #: Whether score(q, k) = score(k, q).
    symmetric: bool = False
    #: Number of dimensions of a tensor by head, (heads, ...); None: all are shared.
    by_head: int | None = None

    @abstractmethod
    def __call__(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Return raw scores, (batch, heads, queries, keys), before the scale."""

    def of_head(self, head: int) -> Score:
        """Return the score function of one head."""
        return with_tensors(
            self,
            lambda tensor: (
                tensor[head : head + 1]
                if tensor.ndim == self.by_head and len(tensor) > 1
                else tensor
            ),
        )

    def default_scale(self, depth: int) -> float:
        """Return the factor on the scores if the caller gives none."""
        return 1.0

    def check(self, queries: Tensor, keys: Tensor) -> None:
        """Raise an error if a parameter does not fit queries and keys, (batch, heads, ...)."""
        heads, dtype = queries.shape[1], queries.dtype
        allowed = {dtype}
        if dtype in (torch.float16, torch.bfloat16):  # computed in float32
            allowed |= {torch.float16, torch.bfloat16, torch.float32}
        present = (name for name, part in vars(self).items() if isinstance(part, Tensor))
        for field in dict.fromkeys((*self.tensors, *present)):
            name, tensor = f"{type(self).__name__}: {field}", getattr(self, field)
            if not isinstance(tensor, Tensor) or tensor.dtype not in allowed:
                kind = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
                raise InputError(
                    f"{name} is {kind}, the queries are {dtype}. Give a tensor of their type."
                )
            if tensor.device != queries.device:
                raise InputError(
                    f"{name} is on {tensor.device}, the queries on {queries.device}. Move both to "
                    "one device."
                )
            if tensor.ndim == self.by_head and tensor.shape[0] not in (1, heads):
                raise ShapeError(
                    f"{name} is {describe(tensor)}; expected one for all heads, or one for each of "
                    f"{heads} heads."
                )

    def cells_per_score(self, depth: int) -> int:
        """Return how many numbers of memory one score takes while it is computed."""
        return 1


@dataclass(frozen=True)
class Dot(Score):
    """Score by the dot product.

        score(q, k) = q . k

    Source: Luong et al. 2015, section 3.1.

    >>> Dot()(torch.tensor([[1., 2.]]), torch.tensor([[3., 4.], [0., 1.]]))
    tensor([[11.,  2.]])
    """

    symmetric = True

    def __call__(self, queries: Tensor, keys: Tensor) -> Tensor:
        return queries @ keys.transpose(-2, -1)


@dataclass(frozen=True)
class ScaledDot(Dot):
    """Score by the dot product, scaled so that its variance does not grow with the depth.

        score(q, k) = q . k / sqrt(depth)

    `__call__` returns the dot product; attention multiplies it by ``default_scale``.
    Source: Vaswani et al. 2017, equation 1.

    >>> ScaledDot().default_scale(64)
    0.125
    """

    def default_scale(self, depth: int) -> float:
        """Return 1 / sqrt(depth), 1 for depth 0."""
        return 1 / math.sqrt(depth or 1)


@dataclass(frozen=True, eq=False)
class Bilinear(Score):
    """Score by a bilinear form.

        score(q, k) = q^T A k

    Queries and keys may have different depths; without `scale=` scores are not scaled.

    Args:
        matrix: A, (query_depth, key_depth); or one for each head, (heads, query_depth, key_depth).
        symmetric: whether to use ``(A + A^T) / 2`` instead, so that score(q, k) = score(k, q): an
            undirected graph in self-attention. A must be square.

    Raises: ShapeError, in a call: A does not fit between queries and keys.
    Source: Luong et al. 2015, section 3.1 ("general").

    >>> import headloom
    >>> A = torch.tensor([[0., 1.], [0., 0.]])           # score(q, k) = q_1 k_2
    >>> queries, keys = torch.tensor([[[1., 2.]]]), torch.tensor([[[3., math.log(3)], [4., 0.]]])
    >>> headloom.AttentionMatrix(queries, keys, score=Bilinear(A)).to_dense()
    tensor([[[0.7500, 0.2500]]])
    """

    matrix: Tensor
    symmetric: bool = False
    tensors = ("matrix",)
    same_depth = False
    by_head = 3

    def check(self, queries: Tensor, keys: Tensor) -> None:
        super().check(queries, keys)
        if self.symmetric and self.matrix.shape[-1:] != self.matrix.shape[-2:-1]:
            raise ShapeError(
                f"Bilinear: matrix is {describe(self.matrix)}; expected a square one for "
                "symmetric=True."
            )
        depths = queries.shape[-1], keys.shape[-1]
        if self.matrix.ndim not in (2, 3) or self.matrix.shape[-2:] != depths:
            raise ShapeError(
                f"Bilinear: A is {describe(self.matrix)}, queries have depth {depths[0]}, keys "
                f"{depths[1]}. A must be (query depth, key depth), alone or one for each head."
            )

    def form(self) -> Tensor:
        """Return the matrix of the scores: A or its symmetric part."""
        matrix = self.matrix
        return (matrix + matrix.transpose(-2, -1)) / 2 if self.symmetric else matrix

    def __call__(self, queries: Tensor, keys: Tensor) -> Tensor:
        return queries @ self.form() @ keys.transpose(-2, -1)


@dataclass(frozen=True, eq=False)
class Additive(Score):
    """Score by a one-layer network (additive attention).

        score(q, k) = v . tanh(W q + U k)

    Queries and keys may have different depths; W, U and v are the same for all heads.

    Args:
        query_matrix: W, (hidden, query_depth).
        key_matrix: U, (hidden, key_depth).
        vector: v, (hidden,).

    Raises: ShapeError, in a call: W, U and v do not fit.
    Source: Bahdanau et al. 2015, appendix A.1.2.

    >>> import headloom
    >>> W, U, v = torch.zeros(1, 2), torch.tensor([[9., 0., 0.]]), torch.tensor([math.log(3)])
    >>> queries, keys = torch.ones(1, 1, 2), torch.eye(3)[None, :2]      # tanh is 1 and 0
    >>> headloom.AttentionMatrix(queries, keys, score=Additive(W, U, v)).to_dense()
    tensor([[[0.7500, 0.2500]]])
    """

    query_matrix: Tensor
    key_matrix: Tensor
    vector: Tensor
    tensors = ("query_matrix", "key_matrix", "vector")
    same_depth = False

    def check(self, queries: Tensor, keys: Tensor) -> None:
        super().check(queries, keys)
        W, U, v = self.query_matrix, self.key_matrix, self.vector
        hidden = v.shape[-1] if v.ndim else 0
        shapes = (hidden,), (hidden, queries.shape[-1]), (hidden, keys.shape[-1])
        if (v.shape, W.shape, U.shape) != shapes:
            raise ShapeError(
                f"Additive: W is {describe(W)}, U {describe(U)}, v {describe(v)}, for queries of "
                f"depth {queries.shape[-1]} and keys of depth {keys.shape[-1]}. They must be "
                "(hidden, query depth), (hidden, key depth) and (hidden,)."
            )

    def __call__(self, queries: Tensor, keys: Tensor) -> Tensor:
        from_query = queries @ self.query_matrix.T
        from_key = keys @ self.key_matrix.T
        return torch.tanh(from_query[..., :, None, :] + from_key[..., None, :, :]) @ self.vector

    def cells_per_score(self, depth: int) -> int:
        """Return the hidden size: each pair has its own hidden vector."""
        return self.vector.numel()


@dataclass(frozen=True, eq=False)
class GraphAttention(Score):
    """Score of a graph attention network.

        score(i, j) = LeakyReLU(a_1 . q_i + a_2 . k_j)

    In the paper q_i and k_j are both W h, a node times the layer's matrix; here their depths may
    differ. With a slope above 0 all queries rank the keys in the same order; see
    `GraphAttentionV2`.

    Args:
        query_vector: a_1, the half of a for the queries, (query_depth,); or one for each head,
            (heads, query_depth).
        key_vector: a_2, the half of a for the keys, (key_depth,) or (heads, key_depth).
        slope: slope of the LeakyReLU below 0.

    Raises: InputError: the slope is no finite number; ShapeError, in a call: a vector does not fit.
    Source: Velickovic et al. 2018, equation 3.

    >>> import headloom
    >>> a_1, a_2 = torch.tensor([1.]), torch.tensor([math.log(3)])
    >>> queries, keys = torch.tensor([[[0.]]]), torch.tensor([[[1.], [0.]]])
    >>> headloom.AttentionMatrix(queries, keys, score=GraphAttention(a_1, a_2)).to_dense()
    tensor([[[0.7500, 0.2500]]])
    """

    query_vector: Tensor
    key_vector: Tensor
    slope: float = 0.2
    tensors = ("query_vector", "key_vector")
    same_depth = False
    by_head = 2

    def __post_init__(self) -> None:
        finite_number("GraphAttention", "slope", self.slope)

    def check(self, queries: Tensor, keys: Tensor) -> None:
        super().check(queries, keys)
        _check_vector("GraphAttention", "the query vector", self.query_vector, queries)
        _check_vector("GraphAttention", "the key vector", self.key_vector, keys)

    def __call__(self, queries: Tensor, keys: Tensor) -> Tensor:
        from_query = node_terms(queries, self.query_vector)
        from_key = node_terms(keys, self.key_vector)
        return leaky_relu(from_query[..., :, None] + from_key[..., None, :], self.slope)


@dataclass(frozen=True, eq=False)
class GraphAttentionV2(Score):
    """Score of a graph attention network, version 2, which can rank keys differently per query.

        score(i, j) = a . LeakyReLU(q_i + k_j)

    q_i is W_r h_i and k_j is W_l h_j, the halves of the paper's W, with the names of
    `headloom.GATv2Conv` and PyTorch Geometric: r for the target of an edge (query), l for its
    source (key). Queries and keys have the same depth. Each pair has its own vector, so the
    computation takes `depth` times the memory of `GraphAttention`.

    Args:
        vector: a, (depth,); or one for each head, (heads, depth).
        slope: slope of the LeakyReLU below 0.

    Raises: InputError: the slope is no finite number; ShapeError, in a call: a does not fit.
    Source: Brody et al. 2022, equation 7.

    >>> import headloom
    >>> queries, keys = torch.tensor([[[1.], [-1.]]]), torch.tensor([[[1.], [-1.]]])
    >>> score = GraphAttentionV2(torch.tensor([math.log(3)]), slope=0.5)
    >>> score(queries, keys) / math.log(3)               # LeakyReLU of 2, 0 and -2
    tensor([[[ 2.,  0.],
             [ 0., -1.]]])
    """

    vector: Tensor
    slope: float = 0.2
    tensors = ("vector",)
    by_head = 2

    def __post_init__(self) -> None:
        finite_number("GraphAttentionV2", "slope", self.slope)

    def check(self, queries: Tensor, keys: Tensor) -> None:
        super().check(queries, keys)
        _check_vector("GraphAttentionV2", "the vector", self.vector, queries)

    def __call__(self, queries: Tensor, keys: Tensor) -> Tensor:
        summed = queries[..., :, None, :] + keys[..., None, :, :]
        return (leaky_relu(summed, self.slope) * self.vector[..., None, None, :]).sum(-1)

    def cells_per_score(self, depth: int) -> int:
        """Return the depth: each pair has its own sum."""
        return depth
