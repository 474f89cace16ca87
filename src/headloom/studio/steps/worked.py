"""Multi-head attention, forward and backward: every matrix of it, in float64.

    Q_h = X W_Q_h,  K_h = Y W_K_h,  V_h = Y W_V_h          for each head h
    Z_h = softmax(mask(Q_h K_h^T / sqrt(depth))) V_h
    output = [Z_0 ... Z_(heads-1)] W_O

`work` computes all positions at once; `row_of` one query of one head, number by number, and shares
with it only Q, K and V. `work_back` computes the gradients, `learn` descends along them.

Source: Vaswani et al. 2017, equation 1 and section 3.2.2; Rumelhart, Hinton and Williams 1986.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from headloom.errors import InputError
from headloom.mechanism.reference import attention as reference

#: The learned matrices of a layer by name, in float64: W_Q and W_K (heads, width, depth),
#: W_V (heads, width, value_depth), W_O (heads * value_depth, width of the output); and, where they
#: are added, b_Q and b_K (heads, depth), b_V (heads, value_depth), b_O (width of the output,).
Projections = dict[str, Tensor]

#: With scores above this, the row's largest is subtracted before e^x, for readable numbers; e^709
#: overflows float64.
_LARGEST_POWER = 8.0


@dataclass(frozen=True, eq=False)
class Worked:
    """Matrices of one multi-head attention, in float64.

    X, Y            inputs of the queries, and of the keys and values, (positions, width)
    projections     W_Q, W_K, W_V, W_O and biases, by their names
    Q, K, V         (heads, positions, depth)
    allowed         bool, (queries, keys), True = visible
    scores          Q K^T, (heads, queries, keys)
    scaled          scores / sqrt(depth)
    masked          scaled, minus infinity where a key is masked
    weights         the softmax of each row
    Z               weights V, (heads, queries, value_depth)
    joined          the heads side by side, (queries, heads * value_depth)
    output          joined W_O, (queries, width)
    """

    X: Tensor
    Y: Tensor
    projections: Projections
    Q: Tensor
    K: Tensor
    V: Tensor
    allowed: Tensor
    scores: Tensor
    scaled: Tensor
    masked: Tensor
    weights: Tensor
    Z: Tensor
    joined: Tensor
    output: Tensor

    @cached_property
    def difference(self) -> float:
        """Largest difference between Z by `work` and by `row_of`, over all rows."""
        heads, queries, _ = self.Z.shape
        rows = [[row_of(self, head, query).output for query in range(queries)]
                for head in range(heads)]  # fmt: skip
        return float((self.Z - torch.tensor(rows, dtype=torch.float64)).abs().max())


def work(X: Tensor, Y: Tensor, projections: Projections, allowed: Tensor | None = None) -> Worked:
    """Compute multi-head attention for all positions at once.

    Args:
        X: input of the queries, (queries, width).
        Y: input of the keys and values, (keys, width of W_K).
        projections: the matrices.
        allowed: bool, (queries, keys), True = visible; None: all.

    W_Q = 0: every score is 0, every weight 1/2, and the output the mean of the values, 2 and 6:

    >>> zero, one = torch.zeros(1, 1, 1).double(), torch.ones(1, 1, 1).double()
    >>> X = torch.tensor([[2.0], [6.0]]).double()
    >>> work(X, X, {"W_Q": zero, "W_K": one, "W_V": one, "W_O": one[0]}).output.tolist()
    [[4.0], [4.0]]
    """
    p = projections
    if allowed is None:
        allowed = torch.ones(len(X), len(Y), dtype=torch.bool)
    Q, K, V = (
        inputs @ p[f"W_{name}"] + (p[f"b_{name}"][:, None] if f"b_{name}" in p else 0)
        for name, inputs in (("Q", X), ("K", Y), ("V", Y))
    )
    scores = Q @ K.mT
    scaled = reference.scale(scores, Q.shape[-1])
    masked = reference.mask(scaled, allowed)
    weights = reference.softmax(masked)
    Z = weights @ V
    joined = Z.transpose(0, 1).flatten(1)
    output = joined @ p["W_O"] + p.get("b_O", 0)
    return Worked(X, Y, p, Q, K, V, allowed, scores, scaled, masked, weights, Z, joined, output)


@dataclass(frozen=True)
class RowOf:
    """One query of one head, number by number; lists have one number for each key.

    dots: q . k_j.
    scaled: dots / sqrt(depth).
    lowered: subtracted from every scaled score before e^x, where it would be too large; else 0.
    exponentials: e^(scaled - lowered), 0 where the key is masked; total: their sum.
    weights: exponentials / total.
    parts: weight times value, key by key; output: their sum, z.
    """

    dots: list[float]
    scaled: list[float]
    lowered: float
    exponentials: list[float]
    total: float
    weights: list[float]
    parts: list[list[float]]
    output: list[float]


def row_of(worked: Worked, head: int, query: int) -> RowOf:
    """Compute one query of one head in vector form, from Q, K and V in plain Python.

        z = sum_j ( e^{q . k_j / sqrt(depth)} / sum_l e^{q . k_l / sqrt(depth)} ) v_j

    over the visible keys j and l. Source: Vaswani et al. 2017, equation 1, written out.
    """
    q: list[float] = worked.Q[head, query].tolist()
    keys, values = worked.K[head].tolist(), worked.V[head].tolist()
    allowed: list[bool] = worked.allowed[query].tolist()
    dots = [math.fsum(a * b for a, b in zip(q, key, strict=True)) for key in keys]
    scaled = [dot / math.sqrt(len(q)) for dot in dots]
    visible = [score for score, may in zip(scaled, allowed, strict=True) if may]
    large = max(map(abs, visible), default=0.0) > _LARGEST_POWER
    lowered = max(visible) if large else 0.0
    exponentials = [
        math.exp(score - lowered) if may else 0.0
        for score, may in zip(scaled, allowed, strict=True)
    ]
    total = math.fsum(exponentials)
    weights = [number / total if total else 0.0 for number in exponentials]
    parts = [
        [weight * number for number in value] for weight, value in zip(weights, values, strict=True)
    ]
    output = [math.fsum(column) for column in zip(*parts, strict=True)]
    return RowOf(dots, scaled, lowered, exponentials, total, weights, parts, output)


@dataclass(frozen=True, eq=False)
class Gradients:
    """Gradients of the loss by each matrix of a `Worked`, of the same shapes."""

    output: Tensor
    joined: Tensor
    Z: Tensor
    V: Tensor
    weights: Tensor
    scaled: Tensor
    scores: Tensor
    Q: Tensor
    K: Tensor
    projections: Projections


def squared_error(output: Tensor, wanted: Tensor) -> float:
    """Return half the squared distance of each output from its target, the mean over the words.

        L = 1 / (2 n) sum_i |output_i - T_i|^2

    >>> squared_error(torch.tensor([[3.0], [1.0]]), torch.tensor([[1.0], [1.0]]))
    1.0
    """
    return float((output - wanted).square().sum() / (2 * len(output)))


def work_back(worked: Worked, wanted: Tensor) -> Gradients:
    """Compute the gradients of multi-head attention, from the squared error to the matrices.

        dO = (output - T) / n
        dW_O = J^T dO,  dJ = dO W_O^T                J: the heads side by side, dJ: each its dZ
        dA = dZ V^T,  dV = A^T dZ
        ds_ij = A_ij (dA_ij - sum_k A_ik dA_ik)      0 where i may not look at j
        dS = ds / sqrt(depth)
        dQ = dS K,  dK = dS^T Q
        dW_Q = X^T dQ,  dW_K = Y^T dK,  dW_V = Y^T dV

    Gradients of biases are the sums of the rows of dQ, dK, dV and dO. dA is short for dL / dA: how
    much the loss L grows with each number of A.

    wanted: T, as the output.
    Source: Rumelhart, Hinton and Williams 1986 (the chain rule, from the output back).
    """
    p, A = worked.projections, worked.weights
    by_output = (worked.output - wanted) / len(wanted)
    by_joined = by_output @ p["W_O"].T
    by_Z = by_joined.reshape(len(by_joined), len(A), -1).transpose(0, 1)
    by_A, by_V = by_Z @ worked.V.mT, A.mT @ by_Z
    by_scaled = A * (by_A - (A * by_A).sum(-1, keepdim=True))
    by_scores = by_scaled / worked.Q.shape[-1] ** 0.5
    by_Q, by_K = by_scores @ worked.K, by_scores.mT @ worked.Q
    gradients = {
        "W_Q": worked.X.T @ by_Q, "W_K": worked.Y.T @ by_K, "W_V": worked.Y.T @ by_V,
        "W_O": worked.joined.T @ by_output, "b_Q": by_Q.sum(1), "b_K": by_K.sum(1),
        "b_V": by_V.sum(1), "b_O": by_output.sum(0),
    }  # fmt: skip
    return Gradients(
        by_output, by_joined, by_Z, by_V, by_A, by_scaled, by_scores, by_Q, by_K,
        {name: gradients[name] for name in p},
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Learned:
    """Result of gradient descent on the matrices of a `Worked`.

    wanted      T, the target of the output
    rate        the learning rate
    back        the gradients before the first step
    next        the same attention after one step
    last        and after the last
    losses      before each step, and after the last
    """

    wanted: Tensor
    rate: float
    back: Gradients
    next: Worked
    last: Worked
    losses: tuple[float, ...]

    @property
    def steps(self) -> int:
        """Number of steps."""
        return len(self.losses) - 1


def learn(worked: Worked, wanted: Tensor, steps: int, rate: float) -> Learned:
    """Train the matrices of an attention by plain gradient descent; embeddings stay fixed.

        W := W - rate dW,  of the loss `squared_error`

    Args: worked: before the first step; wanted: T, shaped as the output; steps: 1 or more; rate:
    above 0.
    Raises: InputError: the loss grew without end.
    """
    back = work_back(worked, wanted)
    following, gradients = worked, back.projections
    losses = [squared_error(worked.output, wanted)]
    made: list[Worked] = []
    for step in range(1, steps + 1):
        moved = {
            name: matrix - rate * gradients[name] for name, matrix in following.projections.items()
        }
        following = work(worked.X, worked.Y, moved, worked.allowed)
        gradients = work_back(following, wanted).projections
        losses.append(squared_error(following.output, wanted))
        if not losses[-1] < 1e6 * max(1.0, losses[0]):
            raise InputError(
                f"steps: the loss grew from {losses[0]:.3g} to {losses[-1]:.3g} in {step} "
                f"step{'s' * (step > 1)} of rate {rate:g}: it diverges. Give a smaller --rate."
            )
        made = [*made[:1], following]
    return Learned(wanted, rate, back, made[0], made[-1], tuple(losses))
