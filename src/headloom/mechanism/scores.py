"""Scores: how well a query and a key match, before the softmax. One function a formula.

All take queries (batch, heads, queries, depth) and keys (batch, heads, keys, depth) and return
raw scores (batch, heads, queries, keys): any real number, before the mask. Leading dimensions may
be left out. The classes carry a score's parameters into `headloom.attention`.
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
from headloom.mechanism.shapes import describe, finite_number, real_tensor

__all__ = [
    "Additive",
    "Bilinear",
    "Dot",
    "GraphAttention",
    "GraphAttentionV2",
    "ScaledDot",
    "Score",
    "additive",
    "bilinear",
    "check_per_head",
    "dot",
    "graph_attention",
    "graph_attention_v2",
    "node_terms",
    "scaled_dot",
    "symmetrised",
]


def _check_kinds(operation: str, queries: object, keys: object, **parameters: object) -> None:
    """Raise an InputError, or a ShapeError, where a formula is given anything but tensors."""
    for name, given in (("queries", queries), ("keys", keys)):
        tensor = real_tensor(operation, f"the tensor of {name}", given)
        if tensor.ndim < 2:
            raise ShapeError(
                f"{operation}: {name} are {describe(tensor)}; expected (..., positions, depth)."
            )
    for name, given in parameters.items():
        real_tensor(operation, name, given)


def _check_one_depth(operation: str, queries: Tensor, keys: Tensor) -> None:
    _check_kinds(operation, queries, keys)
    if queries.shape[-1] != keys.shape[-1]:
        raise ShapeError(
            f"{operation}: queries have depth {queries.shape[-1]}, keys {keys.shape[-1]}, from "
            f"{describe(queries)} and {describe(keys)}. Project both to one depth."
        )


def dot(queries: Tensor, keys: Tensor) -> Tensor:
    """Score by the dot product.

        score(q, k) = q . k

    Source: Luong et al. 2015, section 3.1.

    >>> dot(torch.tensor([[1., 2.]]), torch.tensor([[3., 4.], [0., 1.]]))
    tensor([[11.,  2.]])
    """
    _check_one_depth("dot", queries, keys)
    return queries @ keys.transpose(-2, -1)


def scaled_dot(queries: Tensor, keys: Tensor, scale: float | None = None) -> Tensor:
    """Score by the dot product, scaled so that its variance does not grow with the depth.

        score(q, k) = q . k / sqrt(depth)

    scale: the factor, instead of 1 / sqrt(depth).
    Source: Vaswani et al. 2017, equation 1.

    >>> scaled_dot(torch.tensor([[1., 2., 0., 0.]]), torch.tensor([[3., 4., 5., 6.]]))
    tensor([[5.5000]])
    """
    _check_one_depth("scaled_dot", queries, keys)
    factor = 1 / math.sqrt(queries.shape[-1]) if scale is None else scale
    return (queries * factor) @ keys.transpose(-2, -1)


def bilinear(queries: Tensor, keys: Tensor, matrix: Tensor) -> Tensor:
    """Score by a bilinear form.

        score(q, k) = q^T A k

    With A symmetric and queries = keys, the score matrix is symmetric: an undirected graph.

    Args:
        queries: (..., queries, query_depth).
        keys: (..., keys, key_depth).
        matrix: A, (query_depth, key_depth) or (heads, query_depth, key_depth).

    Raises: ShapeError: A does not fit between queries and keys.
    Source: Luong et al. 2015, section 3.1 ("general").

    >>> A = torch.tensor([[0., 1.], [0., 0.]])
    >>> bilinear(torch.tensor([[1., 2.]]), torch.tensor([[3., 4.]]), A)
    tensor([[4.]])
    """
    _check_kinds("bilinear", queries, keys, A=matrix)
    if matrix.ndim not in (2, 3) or matrix.shape[-2:] != (queries.shape[-1], keys.shape[-1]):
        raise ShapeError(
            f"bilinear: A is {describe(matrix)}, queries have depth {queries.shape[-1]}, keys "
            f"{keys.shape[-1]}. A must be (query depth, key depth), alone or one for each head."
        )
    return queries @ matrix @ keys.transpose(-2, -1)


def symmetrised(matrix: Tensor) -> Tensor:
    """The symmetric part of a square matrix, ``(A + A^T) / 2``.

    >>> symmetrised(torch.tensor([[0., 1.], [0., 0.]]))
    tensor([[0.0000, 0.5000],
            [0.5000, 0.0000]])
    """
    return (matrix + matrix.transpose(-2, -1)) / 2


def additive(
    queries: Tensor, keys: Tensor, query_matrix: Tensor, key_matrix: Tensor, vector: Tensor
) -> Tensor:
    """Score by a one-layer network (additive attention).

        score(q, k) = v . tanh(W q + U k)

    Args:
        queries: (..., queries, query_depth).
        keys: (..., keys, key_depth).
        query_matrix: W, (hidden, query_depth).
        key_matrix: U, (hidden, key_depth).
        vector: v, (hidden,).

    Raises: ShapeError: the matrices do not fit.
    Source: Bahdanau et al. 2015, appendix A.1.2.
    """
    _check_kinds("additive", queries, keys, W=query_matrix, U=key_matrix, v=vector)
    hidden = vector.shape[-1] if vector.ndim else 0
    if (
        vector.ndim != 1
        or query_matrix.shape != (hidden, queries.shape[-1])
        or key_matrix.shape != (hidden, keys.shape[-1])
    ):
        raise ShapeError(
            f"additive: W is {describe(query_matrix)}, U {describe(key_matrix)}, v "
            f"{describe(vector)}, for queries of depth {queries.shape[-1]} and keys of depth "
            f"{keys.shape[-1]}. They must be (hidden, query depth), (hidden, key depth) and "
            "(hidden,)."
        )
    from_query = queries @ query_matrix.T
    from_key = keys @ key_matrix.T
    return torch.tanh(from_query[..., :, None, :] + from_key[..., None, :, :]) @ vector


def check_per_head(operation: str, name: str, vector: Tensor, tensor: Tensor) -> None:
    """Raise a ShapeError where a vector is none for the depth of nodes, (..., nodes, depth)."""
    if vector.ndim not in (1, 2) or vector.shape[-1] != tensor.shape[-1]:
        raise ShapeError(
            f"{operation}: {name} is {describe(vector)}, nodes have depth {tensor.shape[-1]}. "
            "It must be (depth,) or (heads, depth)."
        )


def node_terms(name: str, nodes: Tensor, vector: Tensor) -> Tensor:
    """What a score of two terms reads of each node, ``a . W h_i``, (..., nodes).

    Args: nodes: (..., nodes, depth); vector: (depth,) or (heads, depth), and its name in errors.
    """
    check_per_head("graph_attention", name, vector, nodes)
    return (nodes * vector[..., None, :]).sum(-1)


def graph_attention(
    queries: Tensor, keys: Tensor, query_vector: Tensor, key_vector: Tensor, slope: float = 0.2
) -> Tensor:
    """Score of a graph attention network.

        score(i, j) = LeakyReLU(a^T [W h_i, W h_j]) = LeakyReLU(a_1 . W h_i + a_2 . W h_j)

    Args:
        queries: W h, (..., queries, depth).
        keys: W h, (..., keys, depth).
        query_vector: a_1, the half of a for the looking node, (depth,) or (heads, depth).
        key_vector: a_2, the half of a for the node looked at.
        slope: of the LeakyReLU below 0.

    Source: Velickovic et al. 2018, equation 3.
    """
    _check_kinds("graph_attention", queries, keys, a_1=query_vector, a_2=key_vector)
    from_query = node_terms("the query vector", queries, query_vector)
    from_key = node_terms("the key vector", keys, key_vector)
    return leaky_relu(from_query[..., :, None] + from_key[..., None, :], slope)


def graph_attention_v2(queries: Tensor, keys: Tensor, vector: Tensor, slope: float = 0.2) -> Tensor:
    """Score of a graph attention network, version 2, which can rank keys differently per query.

        score(i, j) = a . LeakyReLU(W_r h_i + W_l h_j)

    W_r and W_l are the halves of the paper's W, by the names of PyTorch Geometric: r is the target
    of an edge, which looks, l its source, which is looked at.

    Args:
        queries: W_r h, (..., queries, depth).
        keys: W_l h, (..., keys, depth).
        vector: a, (depth,) or (heads, depth).
        slope: of the LeakyReLU below 0.

    Source: Brody et al. 2022, equation 7.
    """
    _check_one_depth("graph_attention_v2", queries, keys)
    real_tensor("graph_attention_v2", "the vector", vector)
    check_per_head("graph_attention_v2", "the vector", vector, queries)
    summed = queries[..., :, None, :] + keys[..., None, :, :]
    return (leaky_relu(summed, slope) * vector[..., None, None, :]).sum(-1)


class Score(ABC):
    """A score function with its parameters, as `headloom.attention` takes it. Subclass it for your
    own.

        scores = score(queries, keys) * scale

    A call gets some rows of the queries, (batch, heads, rows, depth), and the keys (batch, heads,
    keys, depth), one head for each of the queries', and gives (batch, heads, rows, keys), which
    depend on nothing but the query and the key. Tensors that the object holds are trained with the
    rest; they have the type of the queries, and `tensors` names those that must be there. Computed
    by torch, some rows at a time.

    >>> from torch.nn.functional import normalize
    >>> class Cosine(Score):
    ...     def __call__(self, queries, keys):
    ...         return normalize(queries, dim=-1) @ normalize(keys, dim=-1).mT
    >>> import headloom
    >>> queries, keys = torch.tensor([[[3., 4.]]]), torch.tensor([[[30., 40.], [-4., 3.]]])
    >>> matrix = headloom.AttentionMatrix(queries, keys, score=Cosine(), scale=math.log(3))
    >>> matrix.dense()                                   # cosines 1 and 0: e^score is 3 and 1
    tensor([[[0.7500, 0.2500]]])

    A score with numbers for each head holds a tensor whose first dimension counts heads, and says
    in `by_head` how many dimensions such a tensor has; those of another number are for all heads.
    By that, `of_head` has the score of one head, which is asked for where one head is computed, and
    a tensor for another number of heads is an error.

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
    >>> headloom.AttentionMatrix(queries, keys, score=score).dense()[:, 0]
    tensor([[0.5000, 0.5000],
            [0.7500, 0.2500]])
    >>> score.of_head(1).sharpness.shape
    torch.Size([1, 1, 1])
    """

    #: Its parameters that are tensors, by name.
    tensors: ClassVar[tuple[str, ...]] = ()
    #: Whether queries and keys must have one depth.
    same_depth: bool = True
    #: Whether exchanging a query and a key leaves the score unchanged.
    symmetric: bool = False

    #: Dimensions of a tensor that has numbers for each head, heads first; None: none has.
    by_head: int | None = None

    def __init__(self, *given: object, **named: object) -> None:
        if given or named:
            name = type(self).__name__
            raise InputError(
                f"{name}: it takes no arguments. Write {name}.__init__, or put @dataclass above "
                "the class."
            )

    @abstractmethod
    def __call__(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Raw scores, (batch, heads, queries, keys), before the scale."""

    def of_head(self, head: int) -> Score:
        """The same for one head alone."""
        return with_tensors(
            self,
            lambda tensor: (
                tensor[head : head + 1]
                if tensor.ndim == self.by_head and len(tensor) > 1
                else tensor
            ),
        )

    def default_scale(self, depth: int) -> float:
        """The factor on the scores where the caller names none."""
        return 1.0

    def check(self, queries: Tensor) -> None:
        """Raise an InputError where a parameter does not fit queries (batch, heads, ...)."""
        heads, dtype = queries.shape[1], queries.dtype
        taken = {dtype}
        if dtype in (torch.float16, torch.bfloat16):  # computed in float32
            taken |= {torch.float16, torch.bfloat16, torch.float32}
        held = (name for name, part in vars(self).items() if isinstance(part, Tensor))
        for field in dict.fromkeys((*self.tensors, *held)):
            name, tensor = f"{type(self).__name__}: {field}", getattr(self, field)
            if not isinstance(tensor, Tensor) or tensor.dtype not in taken:
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
                    f"{heads}."
                )

    def cells_per_score(self, depth: int) -> int:
        """How many numbers in memory one score costs on the way."""
        return 1


@dataclass(frozen=True)
class Dot(Score):
    """``q . k``. See `dot`."""

    symmetric = True

    def __call__(self, queries: Tensor, keys: Tensor) -> Tensor:
        return dot(queries, keys)


@dataclass(frozen=True)
class ScaledDot(Score):
    """``q . k / sqrt(depth)``. See `scaled_dot`."""

    symmetric = True

    def __call__(self, queries: Tensor, keys: Tensor) -> Tensor:
        return dot(queries, keys)

    def default_scale(self, depth: int) -> float:
        """One over the square root of the depth (1 where the depth is 0)."""
        return 1 / math.sqrt(depth or 1)


@dataclass(frozen=True, eq=False)
class Bilinear(Score):
    """Score by a bilinear form.

        score(q, k) = q^T A k

    Queries and keys may have different depths; scores are not scaled where no `scale` is given.

    Args:
        matrix: A, (query_depth, key_depth); or one for each head, (heads, query_depth, key_depth).
        symmetric: whether ``(A + A^T) / 2`` is used in its place, so that score(q, k) is
            score(k, q): of tokens that look at themselves, an undirected graph. A must be square.

    Raises: ShapeError, in a call: A does not fit between queries and keys.
    Source: Luong et al. 2015, section 3.1 ("general"). Without the object: `bilinear`.

    >>> import headloom
    >>> A = torch.tensor([[0., 1.], [0., 0.]])           # score(q, k) = q_1 k_2
    >>> queries, keys = torch.tensor([[[1., 2.]]]), torch.tensor([[[3., math.log(3)], [4., 0.]]])
    >>> headloom.AttentionMatrix(queries, keys, score=Bilinear(A)).dense()
    tensor([[[0.7500, 0.2500]]])
    """

    matrix: Tensor
    symmetric: bool = False
    tensors = ("matrix",)
    same_depth = False
    by_head = 3

    def check(self, queries: Tensor) -> None:
        """See Score.check."""
        super().check(queries)
        if self.symmetric and self.matrix.shape[-1:] != self.matrix.shape[-2:-1]:
            raise ShapeError(
                f"Bilinear: matrix is {describe(self.matrix)}; expected a square one for "
                "symmetric=True."
            )

    def form(self) -> Tensor:
        """A, or its symmetric part, whichever makes the scores."""
        return symmetrised(self.matrix) if self.symmetric else self.matrix

    def __call__(self, queries: Tensor, keys: Tensor) -> Tensor:
        return bilinear(queries, keys, self.form())


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
    Source: Bahdanau et al. 2015, appendix A.1.2. Without the object: `additive`.

    >>> import headloom
    >>> W, U, v = torch.zeros(1, 2), torch.tensor([[9., 0., 0.]]), torch.tensor([math.log(3)])
    >>> queries, keys = torch.ones(1, 1, 2), torch.eye(3)[None, :2]      # tanh is 1 and 0
    >>> headloom.AttentionMatrix(queries, keys, score=Additive(W, U, v)).dense()
    tensor([[[0.7500, 0.2500]]])
    """

    query_matrix: Tensor
    key_matrix: Tensor
    vector: Tensor
    tensors = ("query_matrix", "key_matrix", "vector")
    same_depth = False

    def __call__(self, queries: Tensor, keys: Tensor) -> Tensor:
        return additive(queries, keys, self.query_matrix, self.key_matrix, self.vector)

    def cells_per_score(self, depth: int) -> int:
        """The hidden size: each pair has its own hidden vector."""
        return self.vector.numel()


@dataclass(frozen=True, eq=False)
class GraphAttention(Score):
    """Score of a graph attention network.

        score(i, j) = LeakyReLU(a_1 . q_i + a_2 . k_j)

    The paper's q_i and k_j are both W h, the node after the layer's matrix; they may have different
    depths here. All queries rank the keys alike, where the slope is above 0: see
    `GraphAttentionV2`.

    Args:
        query_vector: a_1, the half of a for the node that looks, (query_depth,); or one for each
            head, (heads, query_depth).
        key_vector: a_2, the half for the node looked at, (key_depth,) or (heads, key_depth).
        slope: of the LeakyReLU below 0.

    Raises: InputError: the slope is no finite number; ShapeError, in a call: a vector does not fit.
    Source: Velickovic et al. 2018, equation 3. Without the object: `graph_attention`.

    >>> import headloom
    >>> a_1, a_2 = torch.tensor([1.]), torch.tensor([math.log(3)])
    >>> queries, keys = torch.tensor([[[0.]]]), torch.tensor([[[1.], [0.]]])
    >>> headloom.AttentionMatrix(queries, keys, score=GraphAttention(a_1, a_2)).dense()
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

    def __call__(self, queries: Tensor, keys: Tensor) -> Tensor:
        return graph_attention(queries, keys, self.query_vector, self.key_vector, self.slope)


@dataclass(frozen=True, eq=False)
class GraphAttentionV2(Score):
    """Score of a graph attention network, version 2, which can rank keys differently per query.

        score(i, j) = a . LeakyReLU(q_i + k_j)

    q_i is W_r h_i and k_j is W_l h_j, by the names of `headloom.GATv2Conv` and of PyTorch
    Geometric. Queries and keys have one depth. Each pair has a vector of its own, so this takes
    `depth` times the memory of `GraphAttention` on the way.

    Args:
        vector: a, (depth,); or one for each head, (heads, depth).
        slope: of the LeakyReLU below 0.

    Raises: InputError: the slope is no finite number; ShapeError, in a call: a does not fit.
    Source: Brody et al. 2022, equation 7. Without the object: `graph_attention_v2`.

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

    def __call__(self, queries: Tensor, keys: Tensor) -> Tensor:
        return graph_attention_v2(queries, keys, self.vector, self.slope)

    def cells_per_score(self, depth: int) -> int:
        """The depth: each pair has its own sum."""
        return depth
