"""Linear maps of one input, with products in float32, on tiles or not, or in bfloat16.

    y_m = act(x W_m^T + b_m),    act = identity or max(0, x)

In bfloat16, the factors of each product are rounded to 8 bits and their products summed in float32;
inputs, outputs, weights and gradients stay float32 ("mixed precision", Micikevicius et al. 2018).
Processors with a matrix unit, or dot products of bfloat16, take a fraction of the time for it.

In float32 on tiles, a matrix unit multiplies float32: each number is cut into three bfloat16,
x = x_1 + x_2 + x_3, exactly, and x y is the sum of the six x_i y_j with i + j <= 4.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.modules import module as all_modules

from headloom.errors import InputError, ShapeError
from headloom.mechanism.backends import native_feed_forward, native_linear, native_product
from headloom.mechanism.backends.native_prepared import PreparedMaps
from headloom.mechanism.shapes import describe, in_words

__all__ = [
    "Products",
    "current_products",
    "feed_forward",
    "is_plain",
    "linear_maps",
    "prepared_maps",
    "products",
    "why_not_here",
    "why_unfit",
]

#: How linear layers multiply: by torch; on the tiles of a matrix unit, as exactly; with factors
#: rounded to bfloat16.
Products = Literal["float32", "float32-tiles", "bfloat16"]

_products: ContextVar[Products] = ContextVar("products", default="float32")
_prepared: ContextVar[PreparedMaps | None] = ContextVar("prepared", default=None)


@contextmanager
def products(kind: Products) -> Iterator[None]:
    """Linear layers multiply in this way while the block runs, and in the backward pass of it.

    Those of headloom's models, that is, and what `linear_maps` and `feed_forward` are given; a
    layer that is called by itself multiplies as torch does.

    Where the processor multiplies no bfloat16 (has no matrix unit, for "float32-tiles"), or a
    factor is infinite or NaN, products are those of float32. With "float32-tiles", so are those of
    fewer than 128 rows, terms or columns. What `torch.utils.checkpoint` computes again in the
    backward pass is outside of the block: open one inside of the function that it is given.

    Raises: InputError: another kind.

    >>> with products("bfloat16"):
    ...     (y,) = linear_maps(torch.randn(20, 8), [nn.Linear(8, 8)])
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
    """How linear layers multiply here; what is compiled multiplies in float32."""
    # (torch's compiler cannot read the variable of a context.)
    return "float32" if torch.compiler.is_compiling() else _products.get()


def why_not_here(kind: Products) -> str | None:
    """Why products of this kind are those of float32 on this processor; None: they are not.

    >>> why_not_here("float32") is None
    True
    """
    if kind == "float32-tiles" and not native_product.has_matrix_unit():
        return "no matrix unit is used here"
    if kind == "bfloat16" and not native_linear.multiplies_bfloat16():
        return "no products of bfloat16 are used here"
    return None


@contextmanager
def prepared_maps() -> Iterator[None]:
    """Matrices of linear layers are packed once for all products of the block, without gradients.

    A product by a matrix lays it out anew in the order in which it reads it; of a few hundred rows,
    as in a step of decoding, that takes as long as the product. A block holds a second copy of each
    matrix that it multiplies 16 rows or more by. A matrix that changes is packed again, unless it
    changes behind torch's back (``weight.data``, or memory that is shared).

    >>> with torch.no_grad(), prepared_maps():
    ...     (y,) = linear_maps(torch.randn(20, 8), [nn.Linear(8, 8)])
    """
    if _prepared.get() is not None:
        yield  # those of the block outside
        return
    before = _prepared.set(PreparedMaps())
    try:
        yield
    finally:
        _prepared.reset(before)


def is_plain(linear: nn.Module) -> bool:
    """Whether a module is a linear map and nothing else: no other class's, as that of an adapter,
    no other `forward`, and nobody's hook, on it or on all modules.
    """
    if type(linear) is not nn.Linear or "forward" in vars(linear):
        return False
    hooks = ("forward_hooks", "forward_pre_hooks", "backward_hooks", "backward_pre_hooks")
    return not any(
        getattr(linear, f"_{name}") or getattr(all_modules, f"_global_{name}") for name in hooks
    )


def linear_maps(inputs: Tensor, maps: Sequence[nn.Linear], *, relu: bool = False) -> list[Tensor]:
    """Several linear maps of one input, which is read once.

    Args:
        inputs: (..., width).
        maps: from that width to any.
        relu: whether max(0, x) follows.

    Returns: (..., out_features) for each map.
    Raises: ShapeError: another width. InputError: another type, or device.
    """
    kind = current_products()
    rounded = kind == "bfloat16"
    prepared = None if torch.compiler.is_compiling() else _prepared.get()
    plain = (kind != "float32" or prepared is not None) and all(map(is_plain, maps))
    if plain and prepared is not None and not torch.is_grad_enabled():
        outputs = prepared.maps(inputs, maps, relu=relu, rounded=rounded)
        if outputs is not None:
            return outputs
    if plain and rounded and native_linear.serves(inputs, maps):
        return native_linear.linear_maps(inputs, maps, relu)
    if plain and kind == "float32-tiles" and native_product.serves(inputs, maps):
        return native_product.linear_maps(inputs, maps, relu)
    try:
        outputs = [linear(inputs) for linear in maps]
    except (RuntimeError, TypeError) as error:
        raise why_unfit(inputs, maps) or error from None
    return [torch.relu(output) for output in outputs] if relu else outputs


def why_unfit(inputs: object, maps: Sequence[nn.Linear]) -> InputError | None:
    """Why torch could not multiply an input; None where it fits the maps."""
    if not isinstance(inputs, Tensor):
        return InputError(
            f"linear maps: the input is {type(inputs).__name__}; expected a tensor of real "
            "numbers, as from torch.as_tensor."
        )
    for linear in maps:
        if inputs.ndim == 0 or inputs.shape[-1] != linear.in_features:
            return ShapeError(
                f"linear maps: the input is {describe(inputs)}; the layer was made for (..., "
                f"{linear.in_features})."
            )
        weight = linear.weight
        alike = (inputs.dtype, inputs.device) == (weight.dtype, weight.device)
        if weight.is_floating_point() and not alike:
            return InputError(
                f"linear maps: the input is {inputs.dtype} on {inputs.device}, the layer "
                f"{weight.dtype} on {weight.device}. Convert one of them, as in layer.to(x)."
            )
    return None


def feed_forward(inputs: Tensor, rise: nn.Linear, fall: nn.Linear, kind: str) -> Tensor | None:
    """Two linear maps with a non-linearity in between, where one kernel computes all of it.

        f(x W_1^T + b_1) W_2^T + b_2

    Args:
        inputs: (..., width).
        rise: W_1 and b_1.
        fall: W_2 and b_2.
        kind: of f: "relu", "gelu", "gelu-tanh" or "silu".

    Returns: (..., out_features of `fall`), with products in bfloat16 or on tiles; None where
        `linear_maps` is to be called for each.
    """
    chosen = current_products()
    if chosen == "float32" or not (is_plain(rise) and is_plain(fall)):
        return None
    if _prepared.get() is not None and not torch.is_grad_enabled():
        return None
    if chosen == "float32-tiles":
        if native_product.serves_feed_forward(inputs, rise, fall, kind):
            return native_product.feed_forward(inputs, rise, fall)
        return None
    if not native_feed_forward.serves(inputs, rise, fall, kind):
        return None
    return native_feed_forward.feed_forward(inputs, rise, fall, kind)
