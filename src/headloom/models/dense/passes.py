"""Dropout, and the loss of rows of logits, by kernels in one pass over memory (native/passes.h).

Results do not depend on the number of threads, and dropout's masks not on the instruction set.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from headloom.mechanism.backends.compiled import INSTRUCTION_SET, kernels, why_wrapped
from headloom.mechanism.backends.formulas import batched
from headloom.mechanism.shapes import finite_number

__all__ = ["Dropout", "dropout", "losses", "serves"]


def serves(*tensors: Tensor) -> bool:
    """Whether the kernels read these tensors: float32 on the CPU, none wrapped."""
    return (
        kernels is not None
        and all(t.dtype == torch.float32 and t.device.type == "cpu" for t in tensors)
        and why_wrapped(tensors) is None
    )


def dropout(inputs: Tensor, p: float, residual: Tensor | None = None) -> Tensor:
    """``residual + (kept ? inputs / (1 - p) : 0)``, of tensors that the kernels serve.

    Which number is kept depends on a seed and its place: the backward pass finds the mask again.

    Args:
        inputs: any shape.
        p: probability that a number is dropped; 0 to below 1.
        residual: of the same shape; None: 0.
    """
    seed = int(torch.empty((), dtype=torch.int64, device="cpu").random_(-(2**63), None))
    return _dropout(seed, p, inputs, residual)


class _Dropout(torch.autograd.Function):
    """The mask is not kept: its seed is."""

    @staticmethod
    def forward(ctx: Any, seed: int, p: float, inputs: Tensor, residual: Tensor | None) -> Tensor:
        ctx.seed, ctx.p = seed, p
        return _run(seed, p, inputs.contiguous(), residual)

    @staticmethod
    def backward(ctx: Any, by_output: Tensor) -> tuple[Tensor | None, ...]:
        # The derivative is the function itself, so that it can be differentiated again.
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

    On the CPU, one pass of a native kernel decides by a function of a seed and the place of the
    number, and the backward pass finds the same mask again; torch draws the numbers serially and
    keeps the mask, which took 15 % of the training of a small translator.

    Source: Srivastava et al. 2014.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = finite_number("Dropout", "p", p, 0, 1)

    def extra_repr(self) -> str:
        """What print(model) says of this layer."""
        return f"p={self.p}"

    def forward(self, inputs: Tensor) -> Tensor:
        """Any shape to the same; the inputs themselves outside training."""
        if not self.training or self.p == 0:
            return inputs
        if serves(inputs):
            return dropout(inputs, self.p)
        return nn.functional.dropout(inputs, self.p)

    def added(self, residual: Tensor, inputs: Tensor) -> Tensor:
        """``residual + dropout(inputs)``, of one shape, in one pass."""
        if self.training and self.p > 0 and serves(inputs, residual):
            return dropout(inputs, self.p, residual)
        return torch.add(residual, self(inputs))


def losses(logits: Tensor, targets: Tensor, smoothing: float, *, gradient: bool) -> Tensor:
    """The cross-entropy of each row; if `gradient`, the logits become its derivative.

    Args:
        logits: (rows, columns), contiguous; without a gradient of their own.
        targets: int64 (rows,), from 0 to columns - 1.
        smoothing: share of the target's mass that is spread over the columns.
    """
    call = kernels.LossCall()
    call.rows, call.columns = logits.shape
    results, targets = logits.new_empty(len(logits)), targets.contiguous()
    call.logits, call.targets = logits.data_ptr(), targets.data_ptr()
    call.losses, call.smoothing, call.gradient = results.data_ptr(), smoothing, gradient
    kernels.losses(call, torch.get_num_threads(), INSTRUCTION_SET)
    return results
