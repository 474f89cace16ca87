"""Rotary positions by a native kernel in one pass over memory; see native/passes.h."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from headloom.mechanism.backends.compiled import INSTRUCTION_SET, kernels, why_wrapped
from headloom.mechanism.backends.recomputed import batched

__all__ = ["angles_kept", "rotary", "serves", "turn"]

#: Positions whose angles are kept.
ANGLES_KEPT = 2**17


def serves(tensor: Tensor, offset: int) -> bool:
    """Whether `rotary` takes these queries or keys."""
    return (
        kernels is not None
        and tensor.ndim == 4
        and tensor.numel() > 0
        and 0 <= offset <= ANGLES_KEPT - tensor.shape[2]
        and tensor.dtype == torch.float32
        and tensor.device.type == "cpu"
        and why_wrapped((tensor,)) is None
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
