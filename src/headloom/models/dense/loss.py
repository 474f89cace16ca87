"""The loss of a model's last linear map, without forming the logits of all rows at once.

    logits = x W^T + b
    loss = sum over rows of -(1 - s) log p(target) - s mean_v log p(v),    p = softmax(logits)

Of a vocabulary of thousands, the logits of a batch and their gradients fill hundreds of megabytes,
most of a training step's memory traffic. Some hundred rows at a time are multiplied, scored, and,
while their logits are near, turned into the gradients by x and W.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from headloom.errors import InputError
from headloom.models.dense.kinds import Products, current_products
from headloom.models.dense.maps import multiply, rounded_gradients, rounded_maps, serves
from headloom.models.dense.passes import losses
from headloom.models.dense.passes import serves as serves_passes

__all__ = ["projected_loss"]

#: Logits that are formed at once: by torch; and by the kernels, which pack the matrix for each.
LOGITS_AT_ONCE: dict[Products, int] = {
    "float32": 2**21,
    "float32-tiles": 2**22,
    "bfloat16": 2**22,
}


def projected_loss(
    outputs: Tensor, matrix: Tensor, bias: Tensor | None, targets: Tensor, *, smoothing: float
) -> Tensor:
    """Cross-entropy with label smoothing, summed over the rows, in nats.

    Args:
        outputs: x, (rows, width).
        matrix: W, (choices, width).
        bias: b, (choices,).
        targets: ids, (rows,), whole numbers of any type, each below the number of choices.
        smoothing: share of the target's mass that is spread over all choices.

    Raises: InputError: a target is no choice, they are not one for each row, or rows of the outputs
        and of the matrix differ in width.

    Source: Szegedy et al. 2016, section 7.
    """
    if targets.shape != outputs.shape[:1] or targets.is_floating_point():
        raise InputError(
            f"projected_loss: targets are {targets.dtype} of shape {tuple(targets.shape)}, outputs "
            f"{tuple(outputs.shape)}; expected one id for each row. Give {len(outputs)} ids."
        )
    if outputs.shape[1:] != matrix.shape[1:]:
        raise InputError(
            f"projected_loss: outputs are {tuple(outputs.shape)}, the matrix "
            f"{tuple(matrix.shape)}; expected rows of one width in both. Give the model's matrix."
        )
    targets = targets.long()
    if len(targets) and not 0 <= int(targets.min()) <= int(targets.max()) < len(matrix):
        raise InputError(
            f"projected_loss: targets from {int(targets.min())} to {int(targets.max())}; expected "
            f"ids from 0 to {len(matrix) - 1}. Leave rows without a target out."
        )
    if bias is None and serves_passes(outputs, matrix):
        kind = current_products()
        return _projected_loss(outputs.contiguous(), matrix, targets, smoothing, kind)
    logits = torch.nn.functional.linear(outputs, matrix, bias)
    return cross_entropy(logits, targets, label_smoothing=smoothing, reduction="sum")


class _ProjectedLoss(torch.autograd.Function):
    """The gradients are computed with the loss, and scaled by what comes back."""

    @staticmethod
    def forward(
        ctx: Any, outputs: Tensor, matrix: Tensor, targets: Tensor, smoothing: float, kind: Products
    ) -> Tensor:
        by_outputs = torch.empty_like(outputs) if ctx.needs_input_grad[0] else None
        by_matrix = torch.zeros_like(matrix) if ctx.needs_input_grad[1] else None
        arguments = outputs, matrix, targets, smoothing, by_outputs, by_matrix
        total = None
        if matrix.is_contiguous() and serves(kind, len(outputs), *matrix.T.shape):
            total = _in_pieces(kind, *arguments)
        if total is None:  # torch multiplies what is not finite too
            if by_matrix is not None:
                by_matrix.zero_()
            total = _in_pieces("float32", *arguments)
        assert total is not None
        ctx.smoothing = smoothing
        ctx.save_for_backward(outputs, matrix, targets, by_outputs, by_matrix)
        return total

    @staticmethod
    def backward(ctx: Any, by_loss: Tensor) -> tuple[Tensor | None, ...]:
        outputs, matrix, targets, *gradients = ctx.saved_tensors
        if torch.is_grad_enabled():  # to be differentiated again
            logits = outputs @ matrix.T
            wanted = (1 - ctx.smoothing) * one_hot(targets, len(matrix))
            by_logits = (logits.softmax(1) - wanted - ctx.smoothing / len(matrix)) * by_loss
            return by_logits @ matrix, by_logits.T @ outputs, None, None, None
        by_outputs, by_matrix = (
            None if gradient is None else gradient * by_loss for gradient in gradients
        )
        return by_outputs, by_matrix, None, None, None


_projected_loss: Callable[..., Tensor] = _ProjectedLoss.apply


def _in_pieces(
    kind: Products,
    outputs: Tensor,
    matrix: Tensor,
    targets: Tensor,
    smoothing: float,
    by_outputs: Tensor | None,
    by_matrix: Tensor | None,
) -> Tensor | None:
    """The sum of the rows' losses; fills the gradient by x, and adds to that by W, where wanted.

    Returns: None where a factor is not finite and the kernels multiply; then the gradients hold
        nothing of worth.
    """
    step = max(32, LOGITS_AT_ONCE[kind] // max(len(matrix), 1) // 32 * 32)
    room = outputs.new_empty(min(step, len(outputs)), len(matrix))
    gradient = by_outputs is not None or by_matrix is not None
    total = outputs.new_zeros(())
    for first in range(0, len(outputs), step):
        rows = slice(first, first + step)
        x, logits = outputs[rows], room[: len(outputs[rows])]
        by_x = None if by_outputs is None else by_outputs[rows]
        if not _multiply(kind, x, matrix, logits):
            return None
        total += losses(logits, targets[rows], smoothing, gradient=gradient).sum()
        if gradient and not _add_gradients(kind, x, matrix, logits, by_x, by_matrix):
            return None
    return total


def _multiply(kind: Products, x: Tensor, matrix: Tensor, logits: Tensor) -> bool:
    """Fill the logits; whether all is finite, where kernels multiply."""
    if kind == "bfloat16":
        return rounded_maps(x, [matrix], [None], [logits])
    if kind == "float32-tiles":
        return multiply(x, matrix.T, logits)
    torch.mm(x, matrix.T, out=logits)
    return True


def _add_gradients(
    kind: Products,
    x: Tensor,
    matrix: Tensor,
    by_logits: Tensor,
    by_x: Tensor | None,
    by_matrix: Tensor | None,
) -> bool:
    """Fill the gradient by x, and add to that by W; returns as `_multiply`."""
    if kind == "bfloat16":
        wants = by_x is not None, by_matrix is not None, False
        gradients = rounded_gradients(x, [matrix], (), [by_logits], wants)
        if gradients is None:
            return False
        if by_x is not None and gradients[0] is not None:
            by_x.copy_(gradients[0])
        if by_matrix is not None and gradients[1] is not None:
            by_matrix.add_(gradients[1])
        return True
    if kind == "float32-tiles":
        return (by_x is None or multiply(by_logits, matrix, by_x)) and (
            by_matrix is None or multiply(by_logits.T, x, by_matrix, add=True)
        )
    if by_x is not None:
        torch.mm(by_logits, matrix, out=by_x)
    if by_matrix is not None:
        by_matrix.addmm_(by_logits.T, x)
    return True
