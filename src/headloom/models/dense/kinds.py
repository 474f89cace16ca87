"""How linear layers multiply: in float32, on the tiles of a matrix unit or not, or in bfloat16.

In bfloat16, the factors of each product are rounded to 8 bits and their products summed in float32;
inputs, outputs, weights and gradients stay float32 ("mixed precision", Micikevicius et al. 2018).
Processors with a matrix unit, or dot products of bfloat16, take a fraction of the time for it.

In float32 on tiles, a matrix unit multiplies float32: each number is cut into three bfloat16,
x = x_1 + x_2 + x_3, exactly, and x y is the sum of the six x_i y_j with i + j <= 4: as exact as
float32, but for what is below 2^-126, which is 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, get_args

import torch

from headloom.errors import InputError
from headloom.mechanism.backends.compiled import INSTRUCTION_SET, kernels
from headloom.mechanism.shapes import in_words

__all__ = [
    "Products",
    "current_products",
    "has_matrix_unit",
    "multiplies_bfloat16",
    "products",
    "why_not_here",
]

#: How linear layers multiply: by torch; on the tiles of a matrix unit, as exactly; with factors
#: rounded to bfloat16.
Products = Literal["float32", "float32-tiles", "bfloat16"]

_products: ContextVar[Products] = ContextVar("products", default="float32")


@contextmanager
def products(kind: Products) -> Iterator[None]:
    """Linear layers of headloom's models multiply in this way while the block runs, and in the
    backward pass of it.

    Where the processor multiplies no bfloat16 (has no matrix unit, for "float32-tiles"), or a
    factor is infinite or NaN, products are those of float32. With "float32-tiles", so are those of
    fewer than 128 rows, terms or columns. What `torch.utils.checkpoint` computes again in the
    backward pass is outside of the block: open one inside of the function that it is given.

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
    """The way in which linear layers multiply here; what is compiled multiplies in float32."""
    # (torch's compiler cannot read the variable of a context.)
    return "float32" if torch.compiler.is_compiling() else _products.get()


def multiplies_bfloat16() -> bool:
    """Whether this processor multiplies bfloat16, and the kernels are there."""
    return kernels is not None and bool(kernels.has_linear(INSTRUCTION_SET))


def has_matrix_unit() -> bool:
    """Whether this processor has a matrix unit that the kernels use."""
    return kernels is not None and bool(kernels.has_product(INSTRUCTION_SET))


def why_not_here(kind: Products) -> str | None:
    """Why products of this kind are those of float32 on this processor; None: they are not.

    >>> why_not_here("float32") is None
    True
    """
    if kind == "float32-tiles" and not has_matrix_unit():
        return "no matrix unit is used here"
    if kind == "bfloat16" and not multiplies_bfloat16():
        return "no products of bfloat16 are used here"
    return None
