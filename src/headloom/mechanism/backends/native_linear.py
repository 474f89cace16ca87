"""Products of linear layers by the native kernels, in bfloat16: forward and both gradients.

See native/linear_block.h. Results do not depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from headloom.mechanism.backends.native_request import INSTRUCTION_SET, kernels, why_wrapped
from headloom.mechanism.backends.recomputed import by_operations

__all__ = [
    "LEAST_ROWS",
    "address",
    "backward_by_torch",
    "linear_maps",
    "map_by_torch",
    "multiplies_bfloat16",
    "or_zeros",
    "projected_losses",
    "serves",
    "serves_loss",
    "serves_map",
    "takes",
]

#: Maps of one input that a call takes.
MOST_MAPS = 3
#: Rows from which packing the weights pays.
LEAST_ROWS = 16


def address(tensor: Tensor | None) -> int:
    """Where a tensor's numbers are; 0: there is none."""
    return 0 if tensor is None else tensor.data_ptr()


def multiplies_bfloat16() -> bool:
    """Whether this processor multiplies bfloat16, and the kernels are there."""
    return kernels is not None and bool(kernels.has_linear(INSTRUCTION_SET))


def serves(inputs: Tensor, maps: Sequence[nn.Linear]) -> bool:
    """Whether the kernels take these maps."""
    return multiplies_bfloat16() and takes(inputs, maps)


def takes(inputs: Tensor, maps: Sequence[nn.Linear]) -> bool:
    """Whether kernels can read these maps, and their input, and differentiate them."""
    weights = [linear.weight for linear in maps]
    biases = [linear.bias for linear in maps if linear.bias is not None]
    width = inputs.shape[-1]
    return (
        len(maps) <= MOST_MAPS
        and width > 0
        and inputs.numel() >= LEAST_ROWS * width
        and all(_is_plain(tensor) for tensor in (inputs, *weights, *biases))
        and not torch.is_autocast_enabled("cpu")
        and why_wrapped((inputs, *weights, *biases)) is None
        and all(_fits(linear, width) for linear in maps)
    )


def serves_map(linear: nn.Linear, width: int) -> bool:
    """Whether the kernels take this map of that width, of an input that they take."""
    tensors = [linear.weight] if linear.bias is None else [linear.weight, linear.bias]
    return _fits(linear, width) and all(map(_is_plain, tensors)) and why_wrapped(tensors) is None


def serves_loss(rows: Tensor, matrix: Tensor) -> bool:
    """Whether `projected_losses` takes these."""
    return (
        multiplies_bfloat16()
        and rows.shape[1] > 0
        and len(rows) >= LEAST_ROWS
        and rows.is_contiguous()
        and matrix.is_contiguous()
    )


def projected_losses(
    rows: Tensor,
    matrix: Tensor,
    targets: Tensor,
    smoothing: float,
    by_rows: Tensor | None,
    by_matrix: Tensor | None,
) -> Tensor | None:
    """The losses of ``logits = rows matrix^T``, (rows,); their sum's gradients where wanted.

    Returns: None where a factor is not finite; then the gradients hold nothing of worth.
    """
    targets, losses = targets.contiguous(), rows.new_empty(len(rows))
    call = kernels.ProjectedCall()
    (call.rows, call.width), call.choices = rows.shape, len(matrix)
    call.inputs, call.matrix = rows.data_ptr(), matrix.data_ptr()
    call.targets, call.smoothing, call.losses = targets.data_ptr(), smoothing, losses.data_ptr()
    call.by_inputs, call.by_matrix = address(by_rows), address(by_matrix)
    served = kernels.projected_losses(call, torch.get_num_threads(), INSTRUCTION_SET)
    return losses if served else None


def _fits(linear: nn.Linear, width: int) -> bool:
    """Whether a map is of this width, and its numbers are where kernels look for them."""
    weight, bias = linear.weight, linear.bias
    return (
        weight.shape[1] == width
        and weight.is_contiguous()
        and (bias is None or (bias.shape == weight.shape[:1] and bias.is_contiguous()))
    )


def _is_plain(tensor: Tensor) -> bool:
    return tensor.dtype == torch.float32 and tensor.device.type == "cpu"


def linear_maps(inputs: Tensor, maps: Sequence[nn.Linear], relu: bool) -> list[Tensor]:
    """The outputs of maps that the kernels serve."""
    weights = [linear.weight for linear in maps]
    biases = [linear.bias for linear in maps]
    rows = inputs.reshape(-1, inputs.shape[-1])
    outputs = _linear_maps(relu, rows, *weights, *biases)
    return [output.view(*inputs.shape[:-1], -1) for output in outputs]


class _LinearMaps(torch.autograd.Function):
    """(rows, width), the W and the b (or None) of each map, to (rows, columns) of each."""

    @staticmethod
    def forward(ctx: Any, relu: bool, rows: Tensor, *parameters: Any) -> tuple[Tensor, ...]:
        rows = rows if rows.stride(-1) == 1 else rows.contiguous()
        count = len(parameters) // 2
        weights, biases = parameters[:count], parameters[count:]
        outputs = tuple(rows.new_empty(len(rows), len(weight)) for weight in weights)
        call = _call(rows, relu)
        for weight, bias, output in zip(weights, biases, outputs, strict=True):
            call.add(len(weight), weight.data_ptr(), address(bias), output.data_ptr())
        if not kernels.linear_forward(call, torch.get_num_threads(), INSTRUCTION_SET):
            outputs = tuple(
                map_by_torch(rows, *pair, relu) for pair in zip(weights, biases, strict=True)
            )
        ctx.relu = relu
        ctx.save_for_backward(rows, *weights, *biases, *(outputs if relu else ()))
        return outputs

    @staticmethod
    def backward(ctx: Any, *by_outputs: Tensor | None) -> tuple[Tensor | None, ...]:
        rows, *tensors = ctx.saved_tensors
        count = len(by_outputs)
        weights, biases = tensors[:count], tensors[count : 2 * count]
        outputs = tensors[2 * count :]
        wants = ctx.needs_input_grad[1:]
        if by_operations(by_outputs):
            pairs = zip(by_outputs, weights, strict=True)
            filled = [or_zeros(by_output, rows, weight) for by_output, weight in pairs]
            return None, *backward_by_torch(rows, weights, outputs, filled, wants)
        by_rows = torch.empty_like(rows) if wants[0] else None
        call = _call(rows, ctx.relu)
        call.by_input = address(by_rows)
        by_weights: list[Tensor | None] = []
        by_biases: list[Tensor | None] = []
        kept = []  # what the call has addresses of
        for part, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            by_output = or_zeros(by_outputs[part], rows, weight)
            by_output = by_output if by_output.stride(-1) == 1 else by_output.contiguous()
            by_weight = torch.empty_like(weight) if wants[1 + part] else None
            by_bias = torch.empty_like(bias) if wants[1 + count + part] else None
            by_weights.append(by_weight)
            by_biases.append(by_bias)
            kept.append(by_output)
            call.add(
                len(weight), weight.data_ptr(), 0, address(outputs[part] if ctx.relu else None),
                by_output.data_ptr(), by_output.stride(0), address(by_weight), address(by_bias),
            )  # fmt: skip
        if not kernels.linear_backward(call, torch.get_num_threads(), INSTRUCTION_SET):
            return None, *backward_by_torch(rows, weights, outputs, kept, wants)
        return None, by_rows, *by_weights, *by_biases


_linear_maps: Callable[..., tuple[Tensor, ...]] = _LinearMaps.apply


def or_zeros(by_output: Tensor | None, rows: Tensor, weight: Tensor) -> Tensor:
    """The gradient by the output of a map; zeros where nothing depends on it."""
    return rows.new_zeros(len(rows), len(weight)) if by_output is None else by_output


def _call(rows: Tensor, relu: bool) -> Any:
    call = kernels.LinearCall()
    call.rows, call.terms = rows.shape
    call.input, call.input_row, call.relu = rows.data_ptr(), rows.stride(0), relu
    return call


def map_by_torch(rows: Tensor, weight: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
    """A map's output, in float32."""
    output = nn.functional.linear(rows, weight, bias)
    return torch.relu(output) if relu else output


def backward_by_torch(
    rows: Tensor,
    weights: Sequence[Tensor],
    outputs: Sequence[Tensor],
    by_outputs: Sequence[Tensor],
    wants: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    """What the kernels give, in float32: for numbers that bfloat16 cannot have, and where the
    gradients are to be differentiated again.
    """
    by_rows = torch.zeros_like(rows)
    by_weights, by_biases = [], []
    for part, weight in enumerate(weights):
        by_output = by_outputs[part]
        if outputs:
            by_output = torch.where(outputs[part] <= 0, 0, by_output)  # NaN remains, as in torch
        by_rows = by_rows + by_output @ weight
        by_weights.append(by_output.T @ rows)
        by_biases.append(by_output.sum(0))
    wanted = zip((by_rows, *by_weights, *by_biases), wants, strict=True)
    return tuple(gradient if want else None for gradient, want in wanted)
