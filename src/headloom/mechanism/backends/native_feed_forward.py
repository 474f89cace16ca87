"""The two maps of a feed-forward layer by the native kernels, in bfloat16: forward and gradients.

See native/feed_forward_block.h. Results do not depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from headloom.mechanism.backends import native_linear
from headloom.mechanism.backends.native_linear import address
from headloom.mechanism.backends.native_passes import ACTIVATIONS
from headloom.mechanism.backends.native_request import INSTRUCTION_SET, kernels
from headloom.mechanism.backends.recomputed import by_operations

__all__ = ["feed_forward", "serves"]


def serves(inputs: Tensor, rise: nn.Linear, fall: nn.Linear, kind: str) -> bool:
    """Whether the kernels take these maps, with this non-linearity between them."""
    return (
        kind in ACTIVATIONS
        and native_linear.serves(inputs, (rise,))
        and native_linear.serves_map(fall, rise.weight.shape[0])
    )


def feed_forward(inputs: Tensor, rise: nn.Linear, fall: nn.Linear, kind: str) -> Tensor:
    """``f(x W_1^T + b_1) W_2^T + b_2`` of maps that the kernels serve; f: one of `ACTIVATIONS`."""
    rows = inputs.reshape(-1, inputs.shape[-1])
    output = _feed_forward(kind, rows, rise.weight, rise.bias, fall.weight, fall.bias)
    return output.view(*inputs.shape[:-1], -1)


class _FeedForward(torch.autograd.Function):
    """(rows, width), W_1, b_1, W_2, b_2, of which the biases may be None, to (rows, outer).

    What lies between the maps is kept before its non-linearity, and computed anew after it.
    """

    @staticmethod
    def forward(
        ctx: Any,
        kind: str,
        rows: Tensor,
        rise: Tensor,
        rise_bias: Tensor | None,
        fall: Tensor,
        fall_bias: Tensor | None,
    ) -> Tensor:
        rows = rows if rows.stride(-1) == 1 else rows.contiguous()
        count = rows.shape[0]
        wanted = any(ctx.needs_input_grad)
        hidden = rows.new_empty(count, rise.shape[0]) if wanted else None
        output = rows.new_empty(count, fall.shape[0])
        call = _call(kind, rows, rise, fall, hidden)
        call.rise_biases, call.fall_biases = address(rise_bias), address(fall_bias)
        call.output = output.data_ptr()
        if not kernels.feed_forward(call, torch.get_num_threads(), INSTRUCTION_SET):
            hidden = nn.functional.linear(rows, rise, rise_bias)
            output = nn.functional.linear(ACTIVATIONS[kind](hidden), fall, fall_bias)
        ctx.kind = kind
        if wanted:
            ctx.save_for_backward(rows, rise, rise_bias, fall, fall_bias, hidden)
        return output

    @staticmethod
    def backward(ctx: Any, by_output: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, hidden = ctx.saved_tensors
        wants = ctx.needs_input_grad[1:]
        if by_operations((by_output,)):
            return None, *_gradients_by_torch(ctx.kind, inputs, by_output, wants)
        rows, rise, _, fall, _ = inputs
        by_output = by_output if by_output.stride(-1) == 1 else by_output.contiguous()
        gradients = tuple(
            torch.empty_like(tensor) if want else None
            for tensor, want in zip(inputs, wants, strict=True)
        )
        call = _call(ctx.kind, rows, rise, fall, hidden)
        call.by_output, call.by_output_row = by_output.data_ptr(), by_output.stride(0)
        call.by_input, call.by_rise, call.by_rise_biases, call.by_fall, call.by_fall_biases = map(
            address, gradients
        )
        if not kernels.feed_forward_backward(call, torch.get_num_threads(), INSTRUCTION_SET):
            return None, *_gradients_by_torch(ctx.kind, inputs, by_output, wants)
        return None, *gradients


_feed_forward: Callable[..., Tensor] = _FeedForward.apply


def _call(kind: str, rows: Tensor, rise: Tensor, fall: Tensor, hidden: Tensor | None) -> Any:
    call = kernels.FeedForwardCall()
    call.rows, call.width = rows.shape
    call.outer, call.inner = fall.shape
    call.kind = tuple(ACTIVATIONS).index(kind)
    call.input, call.input_row = rows.data_ptr(), rows.stride(0)
    call.rise, call.fall, call.hidden = rise.data_ptr(), fall.data_ptr(), address(hidden)
    return call


def _gradients_by_torch(
    kind: str, inputs: list[Any], by_output: Tensor, wants: tuple[bool, ...]
) -> list[Tensor | None]:
    """What the kernels give, in float32: for numbers that bfloat16 cannot have, and where the
    gradients are to be differentiated again.
    """
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        rows, rise, rise_bias, fall, fall_bias = inputs
        hidden = ACTIVATIONS[kind](nn.functional.linear(rows, rise, rise_bias))
        output = nn.functional.linear(hidden, fall, fall_bias)
        chosen = [tensor for tensor, want in zip(inputs, wants, strict=True) if want]
        found = iter(torch.autograd.grad(output, chosen, by_output, create_graph=again))
    return [next(found) if want else None for want in wants]
