"""Dropout, and losses of logits, by kernels in one pass over memory (native/passes.h).

Results do not depend on the number of threads, nor dropout's masks on the instruction set.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from headloom.errors import InputError
from headloom.mechanism.backends.compiled import INSTRUCTION_SET, kernels, why_wrapped
from headloom.mechanism.backends.formulas import batched
from headloom.mechanism.shapes import finite_number
from headloom.models.dense import maps
from headloom.models.dense.maps import Products, current_products


def serves(*tensors: Tensor) -> bool:
    """Whether the kernels support these tensors: float32 on the CPU, none wrapped."""
    return (
        kernels is not None
        and all(t.dtype == torch.float32 and t.device.type == "cpu" for t in tensors)
        and why_wrapped(tensors) is None
    )


def dropout(inputs: Tensor, p: float, residual: Tensor | None = None) -> Tensor:
    """Return ``residual + (kept ? inputs / (1 - p) : 0)``, for tensors that pass `serves`.

    The mask is a function of a seed and the index, so that the backward pass can recompute it.
    p: probability that a number is dropped, below 1; residual: in the shape of inputs; None: 0.
    """
    seed = int(torch.empty((), dtype=torch.int64, device="cpu").random_(-(2**63), None))
    return _dropout(seed, p, inputs, residual)


class _Dropout(torch.autograd.Function):
    """Autograd function of dropout; saves the seed instead of the mask."""

    @staticmethod
    def forward(ctx: Any, seed: int, p: float, inputs: Tensor, residual: Tensor | None) -> Tensor:
        ctx.seed, ctx.p = seed, p
        return _run(seed, p, inputs.contiguous(), residual)

    @staticmethod
    def backward(ctx: Any, by_output: Tensor) -> tuple[Tensor | None, ...]:
        # The derivative is the function itself, which allows second derivatives.
        if batched((by_output,)):
            ones = torch.ones(by_output.shape, dtype=by_output.dtype, device="cpu")
            by_inputs = by_output * _run(ctx.seed, ctx.p, ones, None)
        else:
            by_inputs = _dropout(ctx.seed, ctx.p, by_output, None)
        return None, None, by_inputs, by_output if ctx.needs_input_grad[3] else None


_dropout: Callable[..., Tensor] = _Dropout.apply


def _run(seed: int, p: float, inputs: Tensor, residual: Tensor | None) -> Tensor:
    residual = None if residual is None else residual.contiguous()
    output = torch.empty_like(inputs)
    call = kernels.DropoutCall()
    call.count, call.input, call.output = inputs.numel(), inputs.data_ptr(), output.data_ptr()
    call.residual = 0 if residual is None else residual.data_ptr()
    call.seed, call.dropped = seed % 2**64, min(round(p * 2**32), 2**32 - 1)
    call.factor = 2**32 / (2**32 - call.dropped)
    kernels.dropout(call, torch.get_num_threads(), INSTRUCTION_SET)
    return output


class Dropout(nn.Module):
    """Set each number to 0 with probability p in training, and scale the others by 1 / (1 - p).

    On the CPU, one pass of a native kernel computes the mask from a seed and the index, and the
    backward pass recomputes it; torch draws random numbers serially and stores the mask, which took
    15 % of the training time of a small translator.

    Source: Srivastava et al. 2014.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = finite_number("Dropout", "p", p, 0, 1)

    def extra_repr(self) -> str:
        """Describe this layer for print(model)."""
        return f"p={self.p}"

    def forward(self, inputs: Tensor) -> Tensor:
        """Drop numbers of inputs of any shape; outside training, return the inputs."""
        if not self.training or self.p == 0:
            return inputs
        if serves(inputs):
            return dropout(inputs, self.p)
        return nn.functional.dropout(inputs, self.p)

    def added(self, residual: Tensor, inputs: Tensor) -> Tensor:
        """Return ``residual + dropout(inputs)``, of equal shapes, in one pass."""
        if self.training and self.p > 0 and serves(inputs, residual):
            return dropout(inputs, self.p, residual)
        return torch.add(residual, self(inputs))


def losses(logits: Tensor, targets: Tensor, smoothing: float, *, gradient: bool) -> Tensor:
    """Return the cross-entropy of each row; if `gradient`, the logits become its derivative.

    logits: (rows, columns), contiguous; targets: int64 (rows,); smoothing: see `projected_loss`.
    """
    call = kernels.LossCall()
    call.rows, call.columns = logits.shape
    results, targets = logits.new_empty(len(logits)), targets.contiguous()
    call.logits, call.targets = logits.data_ptr(), targets.data_ptr()
    call.losses, call.smoothing, call.gradient = results.data_ptr(), smoothing, gradient
    kernels.losses(call, torch.get_num_threads(), INSTRUCTION_SET)
    return results


#: Logits computed at once: by torch, and by the kernels, which pack the matrix each time.
LOGITS_AT_ONCE: dict[Products, int] = {"float32": 2**21, "float32-tiles": 2**22, "bfloat16": 2**22}


def projected_loss(
    outputs: Tensor, matrix: Tensor, bias: Tensor | None, targets: Tensor, *, smoothing: float
) -> Tensor:
    """Return the cross-entropy with label smoothing, summed over the rows, in nats.

    Args:
        outputs: x, (rows, width).
        matrix: W, (choices, width).
        bias: b, (choices,).
        targets: ids, (rows,), integers of any type, each below the number of choices.
        smoothing: share of the target's probability that is spread over all choices.

    Raises: InputError: sizes do not match, or a target is out of range.
    Source: Szegedy et al. 2016, section 7.
    """
    if targets.shape != outputs.shape[:1] or outputs.shape[1:] != matrix.shape[1:]:
        raise InputError(
            f"projected_loss: outputs are {tuple(outputs.shape)}, the matrix "
            f"{tuple(matrix.shape)}, targets {tuple(targets.shape)}; expected rows of one width, "
            "and an id for each output."
        )
    targets = targets.long()
    if len(targets) and not 0 <= int(targets.min()) <= int(targets.max()) < len(matrix):
        raise InputError(
            f"projected_loss: targets from {int(targets.min())} to {int(targets.max())}; expected "
            f"ids from 0 to {len(matrix) - 1}. Leave rows without a target out."
        )
    if bias is None and serves(outputs, matrix):
        kind = current_products()
        return _projected_loss(outputs.contiguous(), matrix, targets, smoothing, kind)
    logits = torch.nn.functional.linear(outputs, matrix, bias)
    return cross_entropy(logits, targets, label_smoothing=smoothing, reduction="sum")


class _ProjectedLoss(torch.autograd.Function):
    """Autograd function of the loss; gradients are computed in the forward pass, then scaled."""

    @staticmethod
    def forward(
        ctx: Any, outputs: Tensor, matrix: Tensor, targets: Tensor, smoothing: float, kind: Products
    ) -> Tensor:
        by_outputs = torch.empty_like(outputs) if ctx.needs_input_grad[0] else None
        by_matrix = torch.zeros_like(matrix) if ctx.needs_input_grad[1] else None
        arguments = outputs, matrix, targets, smoothing, by_outputs, by_matrix
        total = None
        if matrix.is_contiguous() and maps.serves(kind, len(outputs), *matrix.T.shape):
            total = _in_pieces(kind, *arguments)
        if total is None:  # non-finite numbers are left to torch
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
        if torch.is_grad_enabled():  # for second derivatives
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
    kind: Products, outputs: Tensor, matrix: Tensor, targets: Tensor, smoothing: float,
    by_outputs: Tensor | None, by_matrix: Tensor | None,
) -> Tensor | None:  # fmt: skip
    """Return the sum of the losses; fill the gradient of x and add to that of W, where wanted.

    Returns: None if a factor of the kernels is not finite; the gradients are then undefined.
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
    """Fill the logits; return whether all factors of the kernels are finite."""
    if kind == "bfloat16":
        return maps.rounded_maps(x, [matrix], [None], [logits])
    if kind == "float32-tiles":
        return maps.multiply(x, matrix.T, logits)
    torch.mm(x, matrix.T, out=logits)
    return True


def _add_gradients(
    kind: Products, x: Tensor, matrix: Tensor, by_logits: Tensor, by_x: Tensor | None,
    by_matrix: Tensor | None,
) -> bool:  # fmt: skip
    """Fill the gradient of x and add to that of W; return as `_multiply`."""
    if kind == "bfloat16":
        wants = by_x is not None, by_matrix is not None, False
        gradients = maps.rounded_gradients(x, [matrix], (), [by_logits], wants)
        if gradients is None:
            return False
        if by_x is not None and gradients[0] is not None:
            by_x.copy_(gradients[0])
        if by_matrix is not None and gradients[1] is not None:
            by_matrix.add_(gradients[1])
        return True
    if kind == "float32-tiles":
        return (by_x is None or maps.multiply(by_logits, matrix, by_x)) and (
            by_matrix is None or maps.multiply(by_logits.T, x, by_matrix, add=True)
        )
    if by_x is not None:
        torch.mm(by_logits, matrix, out=by_x)
    if by_matrix is not None:
        by_matrix.addmm_(by_logits.T, x)
    return True
