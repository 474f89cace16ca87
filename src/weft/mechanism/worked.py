"""Multi-head attention worked through: every matrix from the inputs to the output, in float64.

    Q_h = X W_Q_h,  K_h = Y W_K_h,  V_h = Y W_V_h          for each head h
    Z_h = softmax(mask(Q_h K_h^T / sqrt(depth))) V_h
    output = [Z_0 ... Z_(heads-1)] W_O

`work` does so for all positions at once, with the functions of the reference; `row_of` does so for
one query of one head, number by number, and shares nothing with it but the inputs.

Source: Vaswani et al. 2017, equation 1 and section 3.2.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from weft.errors import InputError, ShapeError
from weft.mechanism.parts import with_tensors
from weft.mechanism.reference import attention as reference
from weft.mechanism.relative import Relative

__all__ = ["Projections", "Row", "Worked", "largest_difference", "row_of", "work"]

#: Scores above this are lowered by the row's largest before e^x, whose numbers would be too long
#: to read, and beyond e^709 more than float64 holds.
_LARGEST_POWER = 8.0


@dataclass(frozen=True, eq=False)
class Projections:
    """The learned matrices of a layer, in float64, as the paper has them.

    W_Q, W_K: (heads, width, depth); W_V: (heads, width, value_depth).
    W_O: (heads * value_depth, width of the output).
    b_Q, b_K, b_V: (heads, depth), added to each row of Q, K and V; None: no such bias. b_O:
    likewise of the output, (width of the output,).

    Raises: ShapeError: they do not fit each other; InputError: a number is not finite.
    """

    W_Q: Tensor
    W_K: Tensor
    W_V: Tensor
    W_O: Tensor
    b_Q: Tensor | None = None
    b_K: Tensor | None = None
    b_V: Tensor | None = None
    b_O: Tensor | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            matrix = getattr(self, field.name)
            if matrix is not None:
                object.__setattr__(self, field.name, _numbers(field.name, matrix))
        self._check()

    def _check(self) -> None:
        for name in ("W_Q", "W_K", "W_V"):
            matrix = getattr(self, name)
            if matrix.ndim != 3 or 0 in matrix.shape:
                raise ShapeError(
                    f"steps: {name} is {_shape(matrix)}; expected (heads, width, depth). "
                    "Give each head its own matrix."
                )
        if self.W_Q.shape[0::2] != self.W_K.shape[0::2] or len(self.W_V) != len(self.W_Q):
            raise ShapeError(
                f"steps: W_Q is {_shape(self.W_Q)}, W_K {_shape(self.W_K)}, W_V "
                f"{_shape(self.W_V)}; expected one number of heads, and one depth of "
                "queries and keys."
            )
        if self.W_K.shape[1] != self.W_V.shape[1]:
            raise ShapeError(
                f"steps: W_K is {_shape(self.W_K)} and W_V {_shape(self.W_V)}; expected one width, "
                "since keys and values are made from the same vectors."
            )
        joined = self.heads * self.W_V.shape[2]
        if self.W_O.ndim != 2 or self.W_O.shape[0] != joined:
            raise ShapeError(
                f"steps: W_O is {_shape(self.W_O)}; expected ({joined}, width): a row for "
                f"each of the {self.W_V.shape[2]} numbers of the {self.heads} heads."
            )
        expected = {"b_Q": self.W_Q, "b_K": self.W_K, "b_V": self.W_V}
        for name, matrix in expected.items():
            bias = getattr(self, name)
            if bias is not None and bias.shape != matrix.shape[0::2]:
                raise ShapeError(
                    f"steps: {name} is {_shape(bias)}; expected {_shape(matrix[:, 0])}."
                )
        if self.b_O is not None and self.b_O.shape != self.W_O.shape[1:]:
            raise ShapeError(f"steps: b_O is {_shape(self.b_O)}; expected {_shape(self.W_O[0])}.")

    @property
    def heads(self) -> int:
        """How many heads there are."""
        return self.W_Q.shape[0]

    @property
    def depth(self) -> int:
        """Numbers of a query and of a key."""
        return self.W_Q.shape[2]


@dataclass(frozen=True, eq=False)
class Worked:
    """Every matrix of one multi-head attention, in float64.

    X, Y            what queries, and what keys and values are made from, (positions, width)
    projections     W_Q, W_K, W_V, W_O and their biases
    Q, K, V         (heads, positions, depth)
    allowed         bool, (queries, keys), True = may look
    Q_turned, K_turned   with rotary positions: Q and K as they are scored; None: without
    content         Q K^T, (heads, queries, keys)
    by_position     with Shaw's positions: what they add to the raw scores; None: without
    scores          the raw scores: content + by_position
    scaled          scores / sqrt(depth)
    bias            with ALiBi or buckets: what they add to the scaled scores; None: without
    masked          scaled + bias, minus infinity where a query may not look
    weights         the softmax of each row
    values_by_position   with Shaw's positions: what they add to Z; None: without
    Z               weights V (+ values_by_position), (heads, queries, value_depth)
    joined          the heads side by side, (queries, heads * value_depth)
    output          joined W_O, (queries, width)
    relative        relative positions, as `weft.attention` takes them, or None
    """

    X: Tensor
    Y: Tensor
    projections: Projections
    Q: Tensor
    K: Tensor
    V: Tensor
    allowed: Tensor
    Q_turned: Tensor | None
    K_turned: Tensor | None
    content: Tensor
    by_position: Tensor | None
    scores: Tensor
    scaled: Tensor
    bias: Tensor | None
    masked: Tensor
    weights: Tensor
    values_by_position: Tensor | None
    Z: Tensor
    joined: Tensor
    output: Tensor
    relative: Relative | None = None


def work(
    queries_from: Tensor,
    keys_from: Tensor,
    projections: Projections,
    allowed: Tensor | None = None,
    *,
    relative: Relative | None = None,
    turn: Callable[[Tensor], Tensor] | None = None,
) -> Worked:
    """Work multi-head attention through, for all positions at once.

    Args:
        queries_from: X, (queries, width).
        keys_from: Y, (keys, width of W_K).
        projections: the matrices.
        allowed: bool, (queries, keys), True = may look; None: all.
        relative: relative positions in the scores.
        turn: of rotary positions: turns Q and K, (heads, positions, depth), as `weft.rotary`.

    Raises: ShapeError: inputs, matrices and mask do not fit; InputError: a number is not finite.

    W_Q = 0: every score is 0, every weight 1/2, and the output the mean of the values, 2 and 6:

    >>> zero, one = torch.zeros(1, 1, 1), torch.ones(1, 1, 1)
    >>> X = torch.tensor([[2.0], [6.0]])
    >>> work(X, X, Projections(zero, one, one, one[0])).output.tolist()
    [[4.0], [4.0]]
    """
    X, Y = _inputs("X", queries_from, projections.W_Q), _inputs("Y", keys_from, projections.W_K)
    everything = torch.ones(len(X), len(Y), dtype=torch.bool)
    seen = everything if allowed is None else allowed
    if seen.shape != everything.shape or seen.dtype != torch.bool:
        raise ShapeError(
            f"steps: the mask is {_shape(seen)} of {seen.dtype}; expected "
            f"{_shape(everything)} of bool: a row for each query, a column for each key."
        )
    Q, K, V = (
        _projected(inputs, matrix, bias)
        for inputs, matrix, bias in (
            (X, projections.W_Q, projections.b_Q),
            (Y, projections.W_K, projections.b_K),
            (Y, projections.W_V, projections.b_V),
        )
    )
    Q_turned, K_turned = (None, None) if turn is None else (turn(Q), turn(K))
    queries, keys = (Q, K) if Q_turned is None or K_turned is None else (Q_turned, K_turned)
    rows = range(len(X))
    positions = (
        None
        if relative is None
        else with_tensors(relative, lambda table: table.detach().cpu().double())
    )
    content = torch.stack([reference.score(q, k) for q, k in zip(queries, keys, strict=True)])
    added = None if positions is None else positions.key_scores(queries[None], rows, len(Y))
    by_position = None if added is None else added[0]
    scores = content if by_position is None else content + by_position
    scaled = reference.scale(scores, projections.depth)
    bias = None if positions is None else positions.bias(rows, len(Y), X.device)
    bias = None if bias is None else bias.expand(scores.shape)
    masked = reference.mask(scaled if bias is None else scaled + bias, seen)
    weights = reference.softmax(masked)
    Z = torch.stack([reference.weigh(w, v) for w, v in zip(weights, V, strict=True)])
    moved = None if positions is None else positions.value_output(weights[None], rows)
    values_by_position = None if moved is None else moved[0]
    if values_by_position is not None:
        Z = Z + values_by_position
    joined = Z.transpose(0, 1).flatten(1)
    output = joined @ projections.W_O
    if projections.b_O is not None:
        output = output + projections.b_O
    return Worked(
        X, Y, projections, Q, K, V, seen, Q_turned, K_turned, content, by_position, scores, scaled,
        bias, masked, weights, values_by_position, Z, joined, output, positions,
    )  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One query of one head, number by number; a number for each key, but for the last two.

    allowed: whether the key may be looked at; what follows is None or 0 where it may not.
    products: the numbers q_d k_jd that are added up to q . k_j.
    dots: q . k_j; with Shaw's positions q . (k_j + a_ij).
    scaled: dots / sqrt(depth), plus what ALiBi or buckets add.
    lowered: taken off every scaled score before e^x, since it would be too large; 0: nothing.
    exponentials: e^(scaled - lowered), and total: their sum.
    weights: exponentials / total.
    parts: weight times value, key by key; output: their sum, z.
    """

    head: int
    query: int
    allowed: tuple[bool, ...]
    products: tuple[tuple[float, ...], ...]
    dots: tuple[float, ...]
    scaled: tuple[float, ...]
    lowered: float
    exponentials: tuple[float, ...]
    total: float
    weights: tuple[float, ...]
    parts: tuple[tuple[float, ...], ...]
    output: tuple[float, ...]


def row_of(worked: Worked, head: int, query: int) -> Row:
    """One query of one head in vector form, from Q, K and V by Python's own arithmetic.

        z = sum_j ( e^{q . k_j / sqrt(depth)} / sum_l e^{q . k_l / sqrt(depth)} ) v_j

    over the keys j and l that may be looked at. Source: Vaswani et al. 2017, equation 1, written
    out; with relative positions Shaw et al. 2018, equations 3 and 4.
    """
    Q = worked.Q if worked.Q_turned is None else worked.Q_turned
    K = worked.K if worked.K_turned is None else worked.K_turned
    q: list[float] = Q[head, query].tolist()
    keys, values = list(_keys(worked, K, head, query)), list(_values(worked, head, query))
    products = tuple(tuple(a * b for a, b in zip(q, key, strict=True)) for key in keys)
    dots = tuple(map(math.fsum, products))
    added = [0.0] * len(keys) if worked.bias is None else worked.bias[head, query].tolist()
    root = math.sqrt(len(q))
    scaled = tuple(dot / root + more for dot, more in zip(dots, added, strict=True))
    allowed = tuple(worked.allowed[query].tolist())
    visible = [score for score, may in zip(scaled, allowed, strict=True) if may]
    largest = max(visible, key=abs, default=0.0)
    lowered = max(visible) if abs(largest) > _LARGEST_POWER else 0.0
    exponentials = tuple(
        math.exp(score - lowered) if may else 0.0
        for score, may in zip(scaled, allowed, strict=True)
    )
    total = math.fsum(exponentials)
    weights = tuple(number / total if total else 0.0 for number in exponentials)
    parts = tuple(
        tuple(weight * number for number in value)
        for weight, value in zip(weights, values, strict=True)
    )
    output = tuple(map(math.fsum, zip(*parts, strict=True)))
    return Row(
        head, query, allowed, products, dots, scaled, lowered, exponentials, total, weights, parts,
        output,
    )  # fmt: skip


def largest_difference(worked: Worked) -> float:
    """The largest difference of a number of Z, by `work` and by `row_of`: every head and query."""
    differences = [
        abs(number - other)
        for head in range(len(worked.Z))
        for query, row in enumerate(worked.Z[head].tolist())
        for number, other in zip(row, row_of(worked, head, query).output, strict=True)
    ]
    return max(differences, default=0.0)


def _keys(worked: Worked, K: Tensor, head: int, query: int) -> Iterator[list[float]]:
    """The keys that a query is multiplied with: k_j, or k_j + a^K_ij."""
    tables = None if worked.relative is None else worked.relative.tables()
    return _moved(worked, K[head], None if tables is None else tables.keys, head, query)


def _values(worked: Worked, head: int, query: int) -> Iterator[list[float]]:
    tables = None if worked.relative is None else worked.relative.tables()
    return _moved(worked, worked.V[head], None if tables is None else tables.values, head, query)


def _moved(
    worked: Worked, rows: Tensor, table: Tensor | None, head: int, query: int
) -> Iterator[list[float]]:
    """Each row, plus the embedding of its distance from the query where there is a table."""
    if table is None or worked.relative is None:
        yield from rows.tolist()
        return
    embeddings = table[head % len(table)] if table.ndim == 3 else table
    clip = (len(embeddings) - 1) // 2
    for place, row in enumerate(rows):
        distance = min(max(place - query - worked.relative.offset, -clip), clip)
        yield (row + embeddings[distance + clip]).tolist()


def _projected(inputs: Tensor, matrices: Tensor, biases: Tensor | None) -> Tensor:
    made = torch.stack([reference.project(inputs, matrix) for matrix in matrices])
    return made if biases is None else made + biases[:, None]


def _inputs(name: str, inputs: Tensor, matrix: Tensor) -> Tensor:
    numbers = _numbers(name, inputs)
    if numbers.ndim != 2 or not len(numbers) or numbers.shape[1] != matrix.shape[1]:
        raise ShapeError(
            f"steps: the inputs {name} are {_shape(numbers)}; expected (positions, "
            f"{matrix.shape[1]}), since the matrices are {_shape(matrix)}. Give vectors "
            f"of width {matrix.shape[1]}."
        )
    return numbers


def _numbers(name: str, matrix: Tensor) -> Tensor:
    numbers = matrix.detach().cpu().double()
    if not bool(torch.isfinite(numbers).all()):
        raise InputError(f"steps: {name} holds a number that is not finite. Give finite numbers.")
    return numbers


def _shape(matrix: Tensor) -> str:
    """A shape as a person writes it.

    >>> _shape(torch.zeros(2, 3))
    '(2, 3)'
    """
    return str(tuple(matrix.shape))
