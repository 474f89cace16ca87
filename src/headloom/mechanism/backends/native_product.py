"""Products of float32 matrices on the matrix unit: of linear layers, forward and both gradients.

Each number is cut into three bfloat16, exactly, and the six products of cuts that reach into 24
bits are summed in float32: native/product_block.h. As exact as float32 products, but for what is
below 2^-126, which is 0. Results do not depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from headloom.mechanism.backends import native_linear
from headloom.mechanism.backends.native_linear import (
    address,
    backward_by_torch,
    map_by_torch,
    or_zeros,
    takes,
)
from headloom.mechanism.backends.native_request import INSTRUCTION_SET, kernels
from headloom.mechanism.backends.recomputed import by_operations

__all__ = [
    "feed_forward",
    "has_matrix_unit",
    "linear_maps",
    "multiply",
    "serves",
    "serves_feed_forward",
    "serves_sizes",
]

#: Rows, and width of input and output, from which the matrix unit is quicker than multiply-adds.
LEAST = 128


def has_matrix_unit() -> bool:
    """Whether this processor has a matrix unit that these kernels use."""
    return kernels is not None and bool(kernels.has_product(INSTRUCTION_SET))


def serves_sizes(*sizes: int) -> bool:
    """Whether products of these sizes are taken: by their sizes alone, so that a run that goes on
    computes as it did.
    """
    return min(sizes) >= LEAST and has_matrix_unit()


def serves(inputs: Tensor, maps: Sequence[nn.Linear]) -> bool:
    """Whether the kernels take these maps."""
    width = inputs.shape[-1]
    return (
        serves_sizes(width, inputs.numel() // max(width, 1), *(len(each.weight) for each in maps))
        and takes(inputs, maps)
    )  # fmt: skip


def multiply(
    left: Tensor,
    right: Tensor,
    output: Tensor,
    *,
    bias: Tensor | None = None,
    relu: bool = False,
    add: bool = False,
    gate: Tensor | None = None,
) -> bool:
    """``output = act(left right + bias)``, or added to it.

    Args:
        left: (rows, terms); numbers of a row or of a column follow each other in memory.
        right: (terms, columns), likewise.
        output: (rows, columns); numbers of a row follow each other.
        bias: (columns,).
        relu: whether act is max(0, x), not the identity.
        add: whether what the output holds is added, before act.
        gate: as the output; results are 0 where it is 0 or less.

    Returns: whether all results are finite; else the output holds nothing of worth.
    """
    call = kernels.ProductCall()
    (call.rows, call.terms), call.columns = left.shape, right.shape[1]
    call.left_along, call.right_along = left.stride(1) == 1, right.stride(1) != 1
    call.left, call.left_row = left.data_ptr(), left.stride(0 if call.left_along else 1)
    call.right, call.right_row = right.data_ptr(), right.stride(1 if call.right_along else 0)
    call.bias, call.relu, call.accumulate = address(bias), relu, add
    call.output, call.output_row, call.gate = output.data_ptr(), output.stride(0), address(gate)
    return bool(kernels.multiply(call, torch.get_num_threads(), INSTRUCTION_SET))


def linear_maps(inputs: Tensor, maps: Sequence[nn.Linear], relu: bool) -> list[Tensor]:
    """The outputs of maps that the kernels serve."""
    rows = inputs.reshape(-1, inputs.shape[-1])
    outputs = _maps(relu, rows, *(each.weight for each in maps), *(each.bias for each in maps))
    return [output.view(*inputs.shape[:-1], -1) for output in outputs]


def feed_forward(inputs: Tensor, rise: nn.Linear, fall: nn.Linear) -> Tensor:
    """``max(0, x W_1^T + b_1) W_2^T + b_2`` of maps that the kernels serve."""
    rows = inputs.reshape(-1, inputs.shape[-1])
    output = _relu_maps(rows, rise.weight, rise.bias, fall.weight, fall.bias)
    return output.view(*inputs.shape[:-1], -1)


def serves_feed_forward(inputs: Tensor, rise: nn.Linear, fall: nn.Linear, kind: str) -> bool:
    """Whether `feed_forward` takes these maps, with this non-linearity between them."""
    inner = len(rise.weight)
    return (
        kind == "relu"
        and serves_sizes(len(fall.weight))
        and serves(inputs, (rise,))
        and native_linear.serves_map(fall, inner)
    )


class _Maps(torch.autograd.Function):
    """(rows, width), the W and the b (or None) of each map, to (rows, columns) of each."""

    @staticmethod
    def forward(ctx: Any, relu: bool, rows: Tensor, *parameters: Any) -> tuple[Tensor, ...]:
        rows = rows if rows.stride(-1) == 1 else rows.contiguous()
        count = len(parameters) // 2
        weights, biases = parameters[:count], parameters[count:]
        outputs = []
        for weight, bias in zip(weights, biases, strict=True):
            output = rows.new_empty(len(rows), len(weight))
            if not multiply(rows, weight.T, output, bias=bias, relu=relu):
                output = map_by_torch(rows, weight, bias, relu)
            outputs.append(output)
        ctx.relu = relu
        ctx.save_for_backward(rows, *weights, *biases, *(outputs if relu else ()))
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *by_outputs: Tensor | None) -> tuple[Tensor | None, ...]:
        rows, *tensors = ctx.saved_tensors
        count = len(by_outputs)
        weights, outputs = tensors[:count], tensors[2 * count :]
        wants = ctx.needs_input_grad[1:]
        pairs = zip(by_outputs, weights, strict=True)
        gradients = [or_zeros(by_output, rows, weight) for by_output, weight in pairs]
        if not by_operations(by_outputs):
            found = _gradients(rows, weights, outputs, gradients, wants)
            if found is not None:
                return None, *found
        return None, *backward_by_torch(rows, weights, outputs, gradients, wants)


class _ReluMaps(torch.autograd.Function):
    """max(0, x W_1^T + b_1) W_2^T + b_2, whose gradient passes the maximum as it is written."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, *parameters: Any) -> Tensor:
        rows = rows if rows.stride(-1) == 1 else rows.contiguous()
        rise, rise_bias, fall, fall_bias = parameters
        hidden = rows.new_empty(len(rows), len(rise))
        output = rows.new_empty(len(rows), len(fall))
        if not (
            multiply(rows, rise.T, hidden, bias=rise_bias, relu=True)
            and multiply(hidden, fall.T, output, bias=fall_bias)
        ):
            hidden = map_by_torch(rows, rise, rise_bias, True)
            output = map_by_torch(hidden, fall, fall_bias, False)
        ctx.save_for_backward(rows, *parameters, hidden)
        return output

    @staticmethod
    def backward(ctx: Any, by_output: Tensor) -> tuple[Tensor | None, ...]:
        rows, rise, rise_bias, fall, _, hidden = ctx.saved_tensors
        wants = ctx.needs_input_grad
        if by_operations((by_output,)):
            hidden = map_by_torch(rows, rise, rise_bias, True)
        else:
            found = _relu_gradients(rows, rise, fall, hidden, by_output, wants)
            if found is not None:
                return found
        of_fall = backward_by_torch(hidden, [fall], (), [by_output], (True, *wants[3:]))
        of_rise = backward_by_torch(rows, [rise], [hidden], [of_fall[0]], wants[:3])  # type: ignore[list-item]
        return *of_rise, *of_fall[1:]


def _relu_gradients(
    rows: Tensor, rise: Tensor, fall: Tensor, hidden: Tensor, by_output: Tensor,
    wants: Sequence[bool],
) -> tuple[Tensor | None, ...] | None:  # fmt: skip
    """Of rows, W_1, b_1, W_2 and b_2, where they are wanted; None where one is not finite."""
    by_output = by_output if by_output.stride(-1) == 1 else by_output.contiguous()
    of_fall = _gradients(hidden, [fall], (), [by_output], (False, *wants[3:]))
    by_hidden = torch.empty_like(hidden)
    if of_fall is None or not multiply(by_output, fall, by_hidden, gate=hidden):
        return None
    of_rise = _gradients(rows, [rise], (), [by_hidden], wants[:3])
    return None if of_rise is None else (*of_rise, *of_fall[1:])


def _gradients(
    rows: Tensor,
    weights: Sequence[Tensor],
    outputs: Sequence[Tensor],
    by_outputs: Sequence[Tensor],
    wants: Sequence[bool],
) -> list[Tensor | None] | None:
    """Of the rows, of each W and each b, where they are wanted; None where one is not finite."""
    if outputs:
        pairs = zip(by_outputs, outputs, strict=True)
        by_sums = [torch.ops.aten.threshold_backward(by, output, 0) for by, output in pairs]
    else:
        by_sums = [by if by.stride(-1) == 1 else by.contiguous() for by in by_outputs]
    by_rows = rows.new_empty(rows.shape) if wants[0] else None
    if by_rows is not None:
        for part, (by_sum, weight) in enumerate(zip(by_sums, weights, strict=True)):
            if not multiply(by_sum, weight, by_rows, add=part > 0):
                return None
    by_weights: list[Tensor | None] = []
    for by_sum, weight, want in zip(by_sums, weights, wants[1:], strict=False):
        by_weight = torch.empty_like(weight) if want else None
        if by_weight is not None and not multiply(by_sum.T, rows, by_weight):
            return None
        by_weights.append(by_weight)
    wanted = zip(by_sums, wants[1 + len(weights) :], strict=True)
    by_biases = [by_sum.sum(0) if want else None for by_sum, want in wanted]
    return [by_rows, *by_weights, *by_biases]


_maps: Callable[..., tuple[Tensor, ...]] = _Maps.apply
_relu_maps: Callable[..., Tensor] = _ReluMaps.apply
