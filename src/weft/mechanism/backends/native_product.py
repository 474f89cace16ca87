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

from weft.mechanism.backends.native_linear import (
    address,
    backward_by_torch,
    map_by_torch,
    or_zeros,
    takes,
)
from weft.mechanism.backends.native_request import INSTRUCTION_SET, kernels

__all__ = ["has_matrix_unit", "linear_maps", "multiply", "serves", "serves_sizes"]

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
) -> bool:
    """``output = act(left right + bias)``, or added to it.

    Args:
        left: (rows, terms); numbers of a row or of a column follow each other in memory.
        right: (terms, columns), likewise.
        output: (rows, columns); numbers of a row follow each other.
        bias: (columns,).
        relu: whether act is max(0, x), not the identity.
        add: whether what the output holds is added, before act.

    Returns: whether all results are finite; else the output holds nothing of worth.
    """
    call = kernels.ProductCall()
    (call.rows, call.terms), call.columns = left.shape, right.shape[1]
    call.left_along, call.right_along = left.stride(1) == 1, right.stride(1) != 1
    call.left, call.left_row = left.data_ptr(), left.stride(0 if call.left_along else 1)
    call.right, call.right_row = right.data_ptr(), right.stride(1 if call.right_along else 0)
    call.bias, call.relu, call.accumulate = address(bias), relu, add
    call.output, call.output_row = output.data_ptr(), output.stride(0)
    return bool(kernels.multiply(call, torch.get_num_threads(), INSTRUCTION_SET))


def linear_maps(inputs: Tensor, maps: Sequence[nn.Linear], relu: bool) -> list[Tensor]:
    """The outputs of maps that the kernels serve."""
    rows = inputs.reshape(-1, inputs.shape[-1])
    outputs = _maps(relu, rows, *(each.weight for each in maps), *(each.bias for each in maps))
    return [output.view(*inputs.shape[:-1], -1) for output in outputs]


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
        if not torch.is_grad_enabled():  # else they are to be differentiated again
            found = _gradients(rows, weights, outputs, gradients, wants)
            if found is not None:
                return None, *found
        return None, *backward_by_torch(rows, weights, outputs, gradients, wants)


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
