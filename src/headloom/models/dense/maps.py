"""Linear maps of one input: in float32, in float32 on a matrix unit's tiles, or in bfloat16.

    y_m = act(x W_m^T + b_m),    act = identity or max(0, x)

In bfloat16, the factors of each product are rounded to 8 bits and their products summed in float32;
inputs, outputs, weights and gradients stay float32 ("mixed precision", Micikevicius et al. 2018).
On tiles, a matrix unit multiplies float32: each number is split exactly into three bfloat16,
x = x_1 + x_2 + x_3, and x y is the sum of the six x_i y_j with i + j <= 4: as exact as float32,
except that numbers below 2^-126 become 0.

Forward and both gradients are kernels (native/linear.h, native/product.h), whose results do not
depend on the number of threads. Non-finite numbers and second derivatives are left to torch, in
float32.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import linear as torch_linear
from torch.nn.modules import module as all_modules

from headloom.errors import InputError
from headloom.mechanism import attention_layer as plain
from headloom.mechanism.backends.compiled import INSTRUCTION_SET, kernels, why_wrapped
from headloom.mechanism.backends.formulas import applied, by_operations
from headloom.mechanism.shapes import in_words

#: Arithmetic of linear layers: torch's float32; the tiles of a matrix unit, equally exact; factors
#: rounded to bfloat16.
Products = Literal["float32", "float32-tiles", "bfloat16"]

_products: ContextVar[Products] = ContextVar("products", default="float32")


@contextmanager
def products(kind: Products) -> Iterator[None]:
    """Set the arithmetic of headloom's linear layers for the block and its backward pass.

    The arithmetic is plain float32 if the processor has no bfloat16 instructions (no matrix unit,
    for "float32-tiles"), if a factor is infinite or NaN, and on tiles also for fewer than 128
    rows, terms or columns. Recomputation by `torch.utils.checkpoint` happens outside of the block:
    open a block inside of the checkpointed function.

    Raises: InputError: another kind.

    >>> with products("bfloat16"):
    ...     current_products()
    'bfloat16'
    """
    if kind not in get_args(Products):
        expected = '"float32", "float32-tiles" or "bfloat16"'
        raise InputError(f"products: {in_words(kind)}; expected {expected}.")
    before = _products.set(kind)
    try:
        yield
    finally:
        _products.reset(before)


def current_products() -> Products:
    """Return the current arithmetic of linear layers; "float32" in compiled code."""
    # (torch's compiler cannot read a context variable.)
    return "float32" if torch.compiler.is_compiling() else _products.get()


def multiplies_bfloat16() -> bool:
    """Whether this processor multiplies bfloat16 and the kernels are installed."""
    return kernels is not None and bool(kernels.has_linear(INSTRUCTION_SET))


def has_matrix_unit() -> bool:
    """Whether this processor has a matrix unit that the kernels use."""
    return kernels is not None and bool(kernels.has_product(INSTRUCTION_SET))


def why_not_here(kind: Products) -> str | None:
    """Return why this kind falls back to float32 on this processor; None: it does not.

    >>> why_not_here("float32") is None
    True
    """
    if kind == "float32-tiles" and not has_matrix_unit():
        return "no matrix unit is used here"
    if kind == "bfloat16" and not multiplies_bfloat16():
        return "no products of bfloat16 are used here"
    return None


#: Maximal number of maps of one input in a call.
MOST_MAPS = 3
#: Rows from which packing the weights pays off, in bfloat16.
LEAST_ROWS = 16
#: Rows, and width of input and output, from which a matrix unit is faster than multiply-adds.
LEAST_ON_TILES = 128

#: Gradients of the rows, of each W, and of each b; None where one is not needed.
Gradients = list[Tensor | None]


def linear_maps(inputs: Tensor, maps: Sequence[nn.Linear], *, relu: bool = False) -> list[Tensor]:
    """Apply several linear maps to one input with the current `products`: (..., columns) each.

    inputs: (..., width); relu: whether max(0, x) follows.
    """
    kind = current_products()
    if kind == "float32" or not _takes(kind, inputs, maps):
        outputs = plain.linear_maps(inputs, maps)
        return [torch.relu(output) for output in outputs] if relu else outputs
    rows = inputs.reshape(-1, inputs.shape[-1])
    parameters = *(linear.weight for linear in maps), *(linear.bias for linear in maps)
    outputs = list(applied(_Maps, kind, relu, rows, *parameters))
    return [output.view(*inputs.shape[:-1], -1) for output in outputs]


def is_plain(linear: nn.Module) -> bool:
    """Whether a module is exactly nn.Linear: no subclass, no other `forward`, and no hooks."""
    if type(linear) is not nn.Linear or "forward" in vars(linear):
        return False
    hooks = ("forward_hooks", "forward_pre_hooks", "backward_hooks", "backward_pre_hooks")
    return not any(
        getattr(linear, f"_{name}") or getattr(all_modules, f"_global_{name}") for name in hooks
    )


def serves(kind: Products, rows: int, width: int, *columns: int) -> bool:
    """Whether kernels compute products of these sizes; by sizes only, for reproducible resuming."""
    if kind == "bfloat16":
        return rows >= LEAST_ROWS and width > 0 and multiplies_bfloat16()
    least = min(rows, width, *columns)
    return kind == "float32-tiles" and least >= LEAST_ON_TILES and has_matrix_unit()


def _takes(kind: Products, inputs: Tensor, maps: Sequence[nn.Linear]) -> bool:
    """Whether the kernels support these maps and their input, with gradients."""
    if not all(map(is_plain, maps)) or not isinstance(inputs, Tensor) or not inputs.ndim:
        return False
    width = inputs.shape[-1]
    tensors = [inputs]
    for linear in maps:
        fits = linear.weight.shape[1] == width and linear.weight.is_contiguous()
        if linear.bias is not None:
            fits = (
                fits
                and linear.bias.shape == linear.weight.shape[:1]
                and linear.bias.is_contiguous()
            )
        if not fits:
            return False
        tensors += [linear.weight] if linear.bias is None else [linear.weight, linear.bias]
    columns = [len(linear.weight) for linear in maps]
    return (
        len(maps) <= MOST_MAPS
        and serves(kind, inputs.numel() // max(width, 1), width, *columns)
        and all(t.dtype == torch.float32 and t.device.type == "cpu" for t in tensors)
        and not torch.is_autocast_enabled("cpu")
        and why_wrapped(tensors) is None
    )


class _Maps(torch.autograd.Function):
    """Autograd function of linear maps: rows, each W, each b (or None) to (rows, columns) each."""

    @staticmethod
    def forward(
        ctx: Any, kind: Products, relu: bool, rows: Tensor, *parameters: Tensor | None
    ) -> tuple[Tensor, ...]:
        rows = _in_rows(rows)
        count = len(parameters) // 2
        weights = [weight for weight in parameters[:count] if weight is not None]
        biases = parameters[count:]
        outputs = [rows.new_empty(len(rows), len(weight)) for weight in weights]
        if kind == "bfloat16":
            finite = rounded_maps(rows, weights, biases, outputs, relu)
        else:
            finite = all(
                multiply(rows, weight.T, output, bias=bias, relu=relu)
                for weight, bias, output in zip(weights, biases, outputs, strict=True)
            )
        if not finite:
            pairs = zip(weights, biases, strict=True)
            outputs = [torch_linear(rows, weight, bias) for weight, bias in pairs]
            outputs = [output.relu() for output in outputs] if relu else outputs
        ctx.kind, ctx.count = kind, count
        ctx.save_for_backward(rows, *parameters, *(outputs if relu else ()))
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *by_outputs: Tensor | None) -> tuple[Tensor | None, ...]:
        rows, *tensors = ctx.saved_tensors
        weights, outputs = tensors[: ctx.count], tensors[2 * ctx.count :]
        wants = ctx.needs_input_grad[2:]
        by_sums = [
            rows.new_zeros(len(rows), len(weight)) if by_output is None else by_output
            for by_output, weight in zip(by_outputs, weights, strict=True)
        ]
        gradients: Gradients | None = None
        if not by_operations(by_outputs):
            by_kernels = _gradients_on_tiles if ctx.kind == "float32-tiles" else rounded_gradients
            gradients = by_kernels(rows, weights, outputs, by_sums, wants)
        if gradients is None:
            gradients = _gradients_by_torch(rows, weights, outputs, by_sums, wants)
        return None, None, *gradients


def rounded_maps(
    rows: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None],
    outputs: Sequence[Tensor], relu: bool = False,
) -> bool:  # fmt: skip
    """Fill the outputs of maps, factors rounded to bfloat16; return whether all are finite."""
    call = _call(rows, relu)
    for weight, bias, output in zip(weights, biases, outputs, strict=True):
        call.add(len(weight), weight.data_ptr(), _address(bias), output.data_ptr())
    return bool(kernels.linear_forward(call, torch.get_num_threads(), INSTRUCTION_SET))


def rounded_gradients(
    rows: Tensor, weights: Sequence[Tensor], outputs: Sequence[Tensor],
    by_outputs: Sequence[Tensor], wants: Sequence[bool],
) -> Gradients | None:  # fmt: skip
    """Return gradients of maps, factors rounded to bfloat16; None if a factor is not finite.

    outputs: of the maps if max(0, x) follows them; else empty.
    """
    count = len(weights)
    by_rows = torch.empty_like(rows) if wants[0] else None
    call = _call(rows, bool(outputs))
    call.by_input = _address(by_rows)
    by_weights: Gradients = []
    by_biases: Gradients = []
    by_outputs = [_in_rows(by_output) for by_output in by_outputs]
    for part, (weight, by_output) in enumerate(zip(weights, by_outputs, strict=True)):
        by_weights.append(torch.empty_like(weight) if wants[1 + part] else None)
        by_biases.append(rows.new_empty(len(weight)) if wants[1 + count + part] else None)
        call.add(
            len(weight), weight.data_ptr(), 0, _address(outputs[part] if outputs else None),
            by_output.data_ptr(), by_output.stride(0), _address(by_weights[-1]),
            _address(by_biases[-1]),
        )  # fmt: skip
    finite = kernels.linear_backward(call, torch.get_num_threads(), INSTRUCTION_SET)
    return [by_rows, *by_weights, *by_biases] if finite else None


def _gradients_on_tiles(
    rows: Tensor, weights: Sequence[Tensor], outputs: Sequence[Tensor],
    by_outputs: Sequence[Tensor], wants: Sequence[bool],
) -> Gradients | None:  # fmt: skip
    """Return the gradients in float32 on a matrix unit; None if a result is not finite."""
    if outputs:
        pairs = zip(by_outputs, outputs, strict=True)
        by_outputs = [torch.ops.aten.threshold_backward(by, output, 0) for by, output in pairs]
    by_outputs = [_in_rows(by_output) for by_output in by_outputs]
    by_rows = rows.new_empty(rows.shape) if wants[0] else None
    if by_rows is not None:
        for part, (by_output, weight) in enumerate(zip(by_outputs, weights, strict=True)):
            if not multiply(by_output, weight, by_rows, add=part > 0):
                return None
    by_weights: Gradients = []
    for by_output, weight, want in zip(by_outputs, weights, wants[1:], strict=False):
        by_weights.append(torch.empty_like(weight) if want else None)
        if by_weights[-1] is not None and not multiply(by_output.T, rows, by_weights[-1]):
            return None
    wanted = zip(by_outputs, wants[1 + len(weights) :], strict=True)
    return [
        by_rows,
        *by_weights,
        *(by_output.sum(0) if want else None for by_output, want in wanted),
    ]


def _gradients_by_torch(
    rows: Tensor, weights: Sequence[Tensor], outputs: Sequence[Tensor],
    by_outputs: Sequence[Tensor], wants: Sequence[bool],
) -> Gradients:  # fmt: skip
    """Return the gradients by torch, in float32, for second derivatives too."""
    if outputs:  # NaN remains, as in torch
        pairs = zip(by_outputs, outputs, strict=True)
        by_outputs = [torch.where(output <= 0, 0, by_output) for by_output, output in pairs]
    by_rows = torch.zeros_like(rows)
    for by_output, weight in zip(by_outputs, weights, strict=True):
        by_rows = by_rows + by_output @ weight
    by_weights = [by_output.T @ rows for by_output in by_outputs]
    by_biases = [by_output.sum(0) for by_output in by_outputs]
    wanted = zip((by_rows, *by_weights, *by_biases), wants, strict=True)
    return [gradient if want else None for gradient, want in wanted]


def multiply(
    left: Tensor, right: Tensor, output: Tensor, *, bias: Tensor | None = None, relu: bool = False,
    add: bool = False,
) -> bool:  # fmt: skip
    """Compute ``output = act(left right + bias)``, or add it, in float32 on a matrix unit.

    left: (rows, terms), right: (terms, columns), each with contiguous rows or columns;
    output: (rows, columns), with contiguous rows; relu: whether act is max(0, x).
    Returns: whether all results are finite; else the output is undefined.
    """
    call = kernels.ProductCall()
    (call.rows, call.terms), call.columns = left.shape, right.shape[1]
    call.left_along, call.right_along = left.stride(1) == 1, right.stride(1) != 1
    call.left, call.left_row = left.data_ptr(), left.stride(0 if call.left_along else 1)
    call.right, call.right_row = right.data_ptr(), right.stride(1 if call.right_along else 0)
    call.bias, call.relu, call.accumulate = _address(bias), relu, add
    call.output, call.output_row = output.data_ptr(), output.stride(0)
    return bool(kernels.multiply(call, torch.get_num_threads(), INSTRUCTION_SET))


def _call(rows: Tensor, relu: bool) -> Any:
    call = kernels.LinearCall()
    call.rows, call.terms = rows.shape
    call.input, call.input_row, call.relu = rows.data_ptr(), rows.stride(0), relu
    return call


def _address(tensor: Tensor | None) -> int:
    """Return the address of a tensor's data; 0 for None."""
    return 0 if tensor is None else tensor.data_ptr()


def _in_rows(tensor: Tensor) -> Tensor:
    """Return the tensor with contiguous rows."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()
