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
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property

import torch
from torch import Tensor

from headloom.errors import InputError, ShapeError
from headloom.mechanism.parts import with_tensors
from headloom.mechanism.reference import attention as reference
from headloom.mechanism.relative import Relative

__all__ = ["Projections", "Row", "Worked", "row_of", "work"]

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
        for name in ("W_Q", "W_V"):
            matrix = getattr(self, name)
            if matrix.ndim != 3 or 0 in matrix.shape:
                raise ShapeError(
                    f"steps: {name} is {_shape(matrix)}; expected (heads, width, depth). "
                    "Give each head its own matrix."
                )
        heads, _, depth = self.W_Q.shape
        _, width, value_depth = self.W_V.shape
        last = self.W_O.shape[-1:]
        expected = {
            "W_K": (heads, width, depth), "W_V": (heads, width, value_depth),
            "W_O": (heads * value_depth, *last), "b_Q": (heads, depth), "b_K": (heads, depth),
            "b_V": (heads, value_depth), "b_O": last,
        }  # fmt: skip
        for name, shape in expected.items():
            matrix = getattr(self, name)
            if matrix is not None and matrix.shape != shape:
                raise ShapeError(
                    f"steps: {name} is {_shape(matrix)}; expected {tuple(shape)}, to fit W_Q "
                    f"{_shape(self.W_Q)}, W_V {_shape(self.W_V)} and W_O {_shape(self.W_O)}."
                )

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
    scores          Q K^T, (heads, queries, keys)
    scaled          scores / sqrt(depth)
    bias            with ALiBi or buckets: what they add to the scaled scores; None: without
    masked          scaled + bias, minus infinity where a query may not look
    weights         the softmax of each row
    Z               weights V, (heads, queries, value_depth)
    joined          the heads side by side, (queries, heads * value_depth)
    output          joined W_O, (queries, width)
    relative        relative positions, as `headloom.attention` takes them, or None
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
    scores: Tensor
    scaled: Tensor
    bias: Tensor | None
    masked: Tensor
    weights: Tensor
    Z: Tensor
    joined: Tensor
    output: Tensor
    relative: Relative | None

    @property
    def scored(self) -> tuple[Tensor, Tensor]:
        """Queries and keys as they are multiplied: turned, where rotary positions turn them."""
        if self.Q_turned is None or self.K_turned is None:
            return self.Q, self.K
        return self.Q_turned, self.K_turned

    @cached_property
    def difference(self) -> float:
        """The largest difference of a number of Z, by `work` and by `row_of`, over all rows."""
        heads, queries, _ = self.Z.shape
        rows = [[row_of(self, head, query).output for query in range(queries)]
                for head in range(heads)]  # fmt: skip
        return float((self.Z - torch.tensor(rows, dtype=torch.float64)).abs().max())


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
        relative: relative positions that add a bias by distance to the scores.
        turn: of rotary positions: turns Q and K, (heads, positions, depth), as `headloom.rotary`.

    Raises: ShapeError: inputs, matrices and mask do not fit; InputError: a number is not finite,
        or positions add something else than a bias, as Shaw's do.

    W_Q = 0: every score is 0, every weight 1/2, and the output the mean of the values, 2 and 6:

    >>> zero, one = torch.zeros(1, 1, 1), torch.ones(1, 1, 1)
    >>> X = torch.tensor([[2.0], [6.0]])
    >>> work(X, X, Projections(zero, one, one, one[0])).output.tolist()
    [[4.0], [4.0]]
    """
    X, Y = _inputs("X", queries_from, projections.W_Q), _inputs("Y", keys_from, projections.W_K)
    everything = torch.ones(len(X), len(Y), dtype=torch.bool)
    allowed = everything if allowed is None else allowed
    if allowed.shape != everything.shape or allowed.dtype != torch.bool:
        raise ShapeError(
            f"steps: the mask is {_shape(allowed)} of {allowed.dtype}; expected "
            f"{_shape(everything)} of bool: a row for each query, a column for each key."
        )
    if relative is not None and not relative.only_bias:
        raise InputError(
            f"steps: {type(relative).__name__} positions add vectors to keys or values. Take "
            "positions that add a bias to scores, or rotary ones."
        )
    Q = _projected(X, projections.W_Q, projections.b_Q)
    K = _projected(Y, projections.W_K, projections.b_K)
    V = _projected(Y, projections.W_V, projections.b_V)
    Q_turned, K_turned = (None, None) if turn is None else (turn(Q), turn(K))
    queries, keys = (Q, K) if Q_turned is None or K_turned is None else (Q_turned, K_turned)
    scores = torch.stack([reference.score(q, k) for q, k in zip(queries, keys, strict=True)])
    scaled = reference.scale(scores, projections.depth)
    bias = None
    if relative is not None:
        relative = with_tensors(relative, lambda table: table.detach().cpu().double())
        bias = relative.bias(range(len(X)), len(Y), X.device)
        bias = None if bias is None else bias.expand(scores.shape)
    masked = reference.mask(scaled if bias is None else scaled + bias, allowed)
    weights = reference.softmax(masked)
    Z = torch.stack([reference.weigh(w, v) for w, v in zip(weights, V, strict=True)])
    joined = Z.transpose(0, 1).flatten(1)
    output = joined @ projections.W_O
    if projections.b_O is not None:
        output = output + projections.b_O
    return Worked(
        X, Y, projections, Q, K, V, allowed, Q_turned, K_turned, scores, scaled, bias, masked,
        weights, Z, joined, output, relative,
    )  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One query of one head, number by number; a number for each key, but for the last two.

    allowed: whether the key may be looked at; what follows is None or 0 where it may not.
    dots: q . k_j.
    scaled: dots / sqrt(depth), plus what ALiBi or buckets add.
    lowered: taken off every scaled score before e^x, since it would be too large; 0: nothing.
    exponentials: e^(scaled - lowered), and total: their sum.
    weights: exponentials / total.
    parts: weight times value, key by key; output: their sum, z.
    """

    allowed: tuple[bool, ...]
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
    out.
    """
    Q, K = worked.scored
    q: list[float] = Q[head, query].tolist()
    keys, values = K[head].tolist(), worked.V[head].tolist()
    dots = tuple(math.fsum(a * b for a, b in zip(q, key, strict=True)) for key in keys)
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
    return Row(allowed, dots, scaled, lowered, exponentials, total, weights, parts, output)


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
    return str(tuple(matrix.shape))
