"""Attention worked backward: every gradient of one multi-head attention, and learning by them.

Everything is plain and in float64, as in headloom.studio.steps.worked: meant to be read. dA is
short for dL / dA: how much the loss L grows with each number of A.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from headloom.errors import InputError, ShapeError
from headloom.studio.steps.worked import Projections, Worked, work

__all__ = ["Learned", "WorkedBack", "learn", "squared_error", "work_back"]


@dataclass(frozen=True, eq=False)
class WorkedBack:
    """How much the loss grows with each number of a `Worked`; each is shaped as what it is of.

    output, joined, Z, V, weights, scaled, scores, Q, K   of these matrices
    projections     of W_Q, W_K, W_V, W_O and of their biases, where there are any
    """

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
    """Half the squared distance of each output from what is wanted, the mean over the words.

        L = 1 / (2 n) sum_i |output_i - T_i|^2

    >>> squared_error(torch.tensor([[3.0], [1.0]]), torch.tensor([[1.0], [1.0]]))
    1.0
    """
    return float((output - wanted).square().sum() / (2 * len(output)))


def work_back(worked: Worked, by_output: Tensor) -> WorkedBack:
    """Work multi-head attention backward, from the output to the matrices.

        dW_O = J^T dO,  dJ = dO W_O^T                J: the heads side by side, dJ: each its dZ
        dA = dZ V^T,  dV = A^T dZ
        ds_ij = A_ij (dA_ij - sum_k A_ik dA_ik)      0 where i may not look at j
        dS = ds / sqrt(depth)
        dQ = dS K,  dK = dS^T Q
        dW_Q = X^T dQ,  dW_K = Y^T dK,  dW_V = Y^T dV

    Those of biases are the sums of the rows of dQ, dK, dV and dO.

    Args:
        worked: attention without positions inside of it (ALiBi's, buckets, rotary ones).
        by_output: dO, as the output.

    Raises: ShapeError: by_output does not fit; InputError: positions inside of attention.
    Source: Rumelhart, Hinton and Williams 1986 (the chain rule, from the output back).
    """
    if worked.relative is not None or worked.Q_turned is not None:
        raise InputError(
            "steps: attention with positions inside of it is not worked backward. Take positions "
            "that are added to the embeddings."
        )
    if by_output.shape != worked.output.shape:
        raise ShapeError(
            f"steps: the gradient is {tuple(by_output.shape)}; expected that of the output, "
            f"{tuple(worked.output.shape)}."
        )
    p, A = worked.projections, worked.weights
    by_joined = by_output @ p.W_O.T
    by_Z = by_joined.reshape(len(by_joined), len(A), -1).transpose(0, 1)
    by_A = by_Z @ worked.V.mT
    by_V = A.mT @ by_Z
    by_scaled = A * (by_A - (A * by_A).sum(-1, keepdim=True))
    by_scores = by_scaled / p.depth**0.5
    by_Q = by_scores @ worked.K
    by_K = by_scores.mT @ worked.Q
    gradients = Projections(
        W_Q=worked.X.T @ by_Q,
        W_K=worked.Y.T @ by_K,
        W_V=worked.Y.T @ by_V,
        W_O=worked.joined.T @ by_output,
        b_Q=None if p.b_Q is None else by_Q.sum(1),
        b_K=None if p.b_K is None else by_K.sum(1),
        b_V=None if p.b_V is None else by_V.sum(1),
        b_O=None if p.b_O is None else by_output.sum(0),
    )
    return WorkedBack(
        by_output, by_joined, by_Z, by_V, by_A, by_scaled, by_scores, by_Q, by_K, gradients
    )


@dataclass(frozen=True, eq=False)
class Learned:
    """What gradient descent made of the matrices of a `Worked`.

    wanted      T, what the output should be
    rate        how far a step goes
    back        the gradients before the first step
    next        the same attention after one step
    last        and after the last
    losses      before each step, and after the last
    """

    wanted: Tensor
    rate: float
    back: WorkedBack
    next: Worked
    last: Worked
    losses: tuple[float, ...]

    @property
    def steps(self) -> int:
        """How many steps there were."""
        return len(self.losses) - 1


def learn(worked: Worked, wanted: Tensor, steps: int, rate: float) -> Learned:
    """Let the matrices of an attention learn by plain gradient descent; embeddings stay.

        W := W - rate dW,  of the loss `squared_error`

    Args:
        worked: before the first step.
        wanted: T, as the output.
        steps: 1 or more.
        rate: above 0.

    Raises: InputError: the loss grew without end; and as `work_back`.
    """
    back = work_back(worked, (worked.output - wanted) / len(wanted))
    following, gradients = worked, back.projections
    losses = [squared_error(worked.output, wanted)]
    made: list[Worked] = []
    for step in range(1, steps + 1):
        try:
            moved = _moved(following.projections, gradients, rate)
            following = work(worked.X, worked.Y, moved, worked.allowed)
            by_output = (following.output - wanted) / len(wanted)
            gradients = work_back(following, by_output).projections
        except InputError:  # a number is not finite
            losses.append(torch.inf)
        else:
            losses.append(squared_error(following.output, wanted))
        if not losses[-1] < 1e6 * max(1.0, losses[0]):
            raise InputError(
                f"steps: the loss grew from {losses[0]:.3g} to {losses[-1]:.3g} in {step} "
                f"step{'s' * (step > 1)} of rate {rate:g}, too far. Give a smaller --rate."
            )
        made = [*made[:1], following]
    return Learned(wanted, rate, back, made[0], made[-1], tuple(losses))


def _moved(projections: Projections, gradients: Projections, rate: float) -> Projections:
    """Each matrix and bias a step down its gradient."""
    return replace(
        projections,
        **{
            field.name: matrix - rate * getattr(gradients, field.name)
            for field in fields(projections)
            if (matrix := getattr(projections, field.name)) is not None
        },
    )
