"""The loss of a model's last linear map, without forming the logits of all rows at once.

    logits = x W^T + b
    loss = sum over rows of -(1 - s) log p(target) - s mean_v log p(v),    p = softmax(logits)

Of a vocabulary of thousands, the logits of a batch and their gradients fill hundreds of megabytes,
most of a training step's memory traffic. In float32, some hundred rows at a time are multiplied,
scored, and, while their logits are near, turned into the gradients by x and W. In bfloat16, logits
are never in memory at all (native/projected_block.h).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from headloom.errors import InputError
from headloom.mechanism.backends import native_linear, native_passes, native_product
from headloom.mechanism.linear import Products, current_products, is_plain
from headloom.models.predictor import Predictor
from headloom.training.optimisation import smoothed_cross_entropy

__all__ = ["predictor_loss", "projected_loss"]

#: Logits that are formed at once; and on the tiles of a matrix unit, where the matrix is cut anew
#: for each.
LOGITS_AT_ONCE = 2**21
LOGITS_ON_TILES = 2**22
#: No id: every row that comes here has a target.
NO_TARGET = -100


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
    if bias is None and native_passes.serves(outputs, matrix):
        kind = current_products()
        return _projected_loss(outputs.contiguous(), matrix, targets, smoothing, kind)
    logits = torch.nn.functional.linear(outputs, matrix, bias)
    return smoothed_cross_entropy(logits, targets, smoothing=smoothing, ignore=NO_TARGET)


def predictor_loss(
    model: Predictor, outputs: Tensor, targets: Tensor, *, smoothing: float
) -> Tensor:
    """The loss of a model's outputs, (rows, width): that of its last map, where it ends in one."""
    last = model.last_map
    if last is not None and is_plain(last):
        return projected_loss(outputs, last.weight, last.bias, targets, smoothing=smoothing)
    return smoothed_cross_entropy(
        model.logits(outputs), targets, smoothing=smoothing, ignore=NO_TARGET
    )


def _losses_in_pieces(
    outputs: Tensor,
    matrix: Tensor,
    targets: Tensor,
    smoothing: float,
    by_outputs: Tensor | None,
    by_matrix: Tensor | None,
    tiles: bool = False,
) -> Tensor | None:
    """The sum of the rows' losses; fills its gradients where they are wanted. In float32.

    tiles: whether a matrix unit multiplies.

    Returns: None where it does and a product is not finite; then the gradients hold nothing of
        worth.
    """
    step = max(32, (LOGITS_ON_TILES if tiles else LOGITS_AT_ONCE) // max(len(matrix), 1))
    multiply = native_product.multiply if tiles else _multiply
    room = outputs.new_empty(min(step, len(outputs)), len(matrix))
    gradient = by_outputs is not None or by_matrix is not None
    total = outputs.new_zeros(())
    if by_matrix is not None:
        by_matrix.zero_()
    for first in range(0, len(outputs), step):
        rows = slice(first, first + step)
        x, logits = outputs[rows], room[: len(outputs[rows])]
        if not multiply(x, matrix.T, logits):
            return None
        total += native_passes.losses(logits, targets[rows], smoothing, gradient=gradient).sum()
        if by_outputs is not None and not multiply(logits, matrix, by_outputs[rows]):
            return None
        if by_matrix is not None and not multiply(logits.T, x, by_matrix, add=True):
            return None
    return total


def _multiply(left: Tensor, right: Tensor, output: Tensor, *, add: bool = False) -> bool:
    """As `native_product.multiply`, by torch."""
    if add:
        output.addmm_(left, right)
    else:
        torch.mm(left, right, out=output)
    return True


def _losses(
    kind: Products,
    outputs: Tensor,
    matrix: Tensor,
    targets: Tensor,
    smoothing: float,
    by_outputs: Tensor | None,
    by_matrix: Tensor | None,
) -> Tensor:
    """The sum of the rows' losses, by the products asked for where the kernels take them."""
    arguments = outputs, matrix, targets, smoothing, by_outputs, by_matrix
    sizes = len(outputs), *matrix.shape
    found: Tensor | None = None
    if kind == "bfloat16" and native_linear.serves_loss(outputs, matrix):
        losses = native_linear.projected_losses(*arguments)
        found = None if losses is None else losses.sum()
    elif kind == "float32-tiles" and native_product.serves_sizes(*sizes) and matrix.is_contiguous():
        found = _losses_in_pieces(*arguments, tiles=True)
    if found is None:
        found = _losses_in_pieces(*arguments)
    assert found is not None  # torch multiplies what is not finite too
    return found


class _ProjectedLoss(torch.autograd.Function):
    """The gradients are computed with the loss, and scaled by what comes back."""

    @staticmethod
    def forward(
        ctx: Any, outputs: Tensor, matrix: Tensor, targets: Tensor, smoothing: float, kind: Products
    ) -> Tensor:
        by_outputs, by_matrix = (
            torch.empty_like(outputs) if ctx.needs_input_grad[0] else None,
            torch.empty_like(matrix) if ctx.needs_input_grad[1] else None,
        )
        total = _losses(kind, outputs, matrix, targets, smoothing, by_outputs, by_matrix)
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
