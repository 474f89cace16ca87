"""Dropout, losses, rotary positions and activations by the native kernels.

See native/passes_call.h.

Results do not depend on the number of threads, and masks not on the instruction set.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import gelu, silu

from headloom.mechanism.backends.native_request import INSTRUCTION_SET, kernels, why_wrapped
from headloom.mechanism.backends.recomputed import batched, by_operations

__all__ = [
    "ACTIVATIONS",
    "activation",
    "angles_kept",
    "dropout",
    "losses",
    "rotary",
    "serves",
    "serves_rotary",
]

#: The activations there are, in the order of native/passes_call.h, as torch computes them: where
#: the kernels do not serve, and for derivatives of derivatives.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": gelu,
    "gelu-tanh": partial(gelu, approximate="tanh"),
    "silu": silu,
    "relu": torch.relu,
}

#: Positions whose angles are kept.
ANGLES_KEPT = 2**17


def serves(*tensors: Tensor) -> bool:
    """Whether the kernels read these tensors: float32 on the CPU, none wrapped."""
    return (
        kernels is not None
        and all(t.dtype == torch.float32 and t.device.type == "cpu" for t in tensors)
        and why_wrapped(tensors) is None
    )


def dropout(inputs: Tensor, p: float, residual: Tensor | None = None) -> Tensor:
    """``residual + (kept ? inputs / (1 - p) : 0)``, of tensors that the kernels serve.

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


def serves_rotary(tensor: Tensor, offset: int) -> bool:
    """Whether `rotary` takes these queries or keys."""
    return (
        tensor.ndim == 4
        and tensor.numel() > 0
        and 0 <= offset <= ANGLES_KEPT - tensor.shape[2]
        and serves(tensor)
    )


def turn(tensor: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Each pair of coordinates (x_i, x_{i + depth/2}) turned by its angle, in torch's operations.

    Args:
        tensor: (..., positions, depth).
        cosines, sines: of the angles, (positions, depth / 2).
    """
    first, second = tensor.chunk(2, -1)
    return torch.cat((first * cosines - second * sines, second * cosines + first * sines), -1)


def angles_kept(length: int) -> int:
    """How many positions have their angles computed at once: a power of two, 64 or more."""
    return 1 << max(length - 1, 63).bit_length()


def rotary(tensor: Tensor, offset: int, cosines: Tensor, sines: Tensor) -> Tensor:
    """Queries or keys, (batch, heads, positions, depth), turned; see headloom.mechanism.rotary.

    cosines, sines: of the angles of positions 0 and up, (positions, depth / 2), or times a number.
    Returns: in memory (batch, positions, heads, depth).
    """
    return _rotary(tensor, cosines[offset:], sines[offset:], False)


class _Rotary(torch.autograd.Function):
    """The derivative of a turn is the turn back, times the same number."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, cosines: Tensor, sines: Tensor, back: bool) -> Tensor:
        ctx.cosines, ctx.sines, ctx.back = cosines, sines, back
        tensor = tensor if tensor.stride(-1) == 1 else tensor.contiguous()
        batch, heads, positions, depth = tensor.shape
        output = tensor.new_empty(batch, positions, heads, depth).transpose(1, 2)
        call = kernels.RotaryCall()
        call.batch, call.heads, call.positions, call.depth = tensor.shape
        call.input, call.output = kernels.strided(tensor), kernels.strided(output)
        call.cosines, call.sines, call.back = cosines.data_ptr(), sines.data_ptr(), back
        kernels.rotary(call, torch.get_num_threads(), INSTRUCTION_SET)
        return output

    @staticmethod
    def backward(ctx: Any, by_output: Tensor) -> tuple[Tensor | None, ...]:
        cosines, sines, back = ctx.cosines, ctx.sines, not ctx.back
        if not batched((by_output,)):
            return _rotary(by_output, cosines, sines, back), None, None, None
        length = by_output.shape[2]
        turned = turn(by_output, cosines[:length], -sines[:length] if back else sines[:length])
        return turned, None, None, None


_rotary: Callable[..., Tensor] = _Rotary.apply


def activation(inputs: Tensor, kind: str) -> Tensor:
    """One of `ACTIVATIONS` of each number, of inputs that the kernels serve; any shape."""
    return _activation(inputs, kind)


class _Activation(torch.autograd.Function):
    """Backward computes from the inputs what forward had; a second derivative is torch's."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, kind: str) -> Tensor:
        ctx.save_for_backward(inputs)
        ctx.kind = kind
        return _activated(inputs, kind, None)

    @staticmethod
    def backward(ctx: Any, by_output: Tensor) -> tuple[Tensor | None, ...]:
        (inputs,) = ctx.saved_tensors
        if by_operations((by_output,)):
            again = torch.is_grad_enabled()
            with torch.enable_grad():
                outputs = ACTIVATIONS[ctx.kind](inputs)
            return *torch.autograd.grad(outputs, inputs, by_output, create_graph=again), None
        return _activated(inputs, ctx.kind, by_output), None


_activation: Callable[..., Tensor] = _Activation.apply


def _activated(inputs: Tensor, kind: str, by_output: Tensor | None) -> Tensor:
    inputs = inputs.contiguous()
    by_output = None if by_output is None else by_output.contiguous()
    output = torch.empty_like(inputs)
    call = kernels.ActivationCall()
    call.count, call.kind = inputs.numel(), tuple(ACTIVATIONS).index(kind)
    call.input, call.output = inputs.data_ptr(), output.data_ptr()
    call.gradient = 0 if by_output is None else by_output.data_ptr()
    kernels.activation(call, torch.get_num_threads(), INSTRUCTION_SET)
    return output
