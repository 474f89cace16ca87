"""Checks that tensors fit together, and the errors that say how they do not."""

from __future__ import annotations

import operator
from typing import SupportsIndex

from torch import Tensor

from weft.errors import InputError, ShapeError

__all__ = [
    "FARTHEST",
    "Edges",
    "Keys",
    "Output",
    "PerRow",
    "Queries",
    "Scores",
    "Values",
    "Weights",
    "check_attention_inputs",
    "describe",
    "repeat_kv_heads",
    "whole_number",
]

# Tensors of one attention call, by their shapes. To a type checker each is a Tensor.
Queries = Tensor  # (batch, heads, queries, depth)
Keys = Tensor  # (batch, kv_heads, keys, depth); kv_heads divides heads
Values = Tensor  # (batch, kv_heads, keys, value_depth)
Output = Tensor  # (batch, heads, queries, value_depth)
Scores = Tensor  # (batch, heads, queries, keys), before the softmax
Weights = Tensor  # (batch, heads, queries, keys), after it
PerRow = Tensor  # (batch, heads, queries): a number for each row of weights
Edges = Tensor  # (batch, heads, queries, k): a number for each kept edge, strongest first

#: The farthest position: sums of a few of them stay far below the largest whole number of a tensor.
FARTHEST = 2**53


def whole_number(
    operation: str,
    name: str,
    number: SupportsIndex,
    least: int = -FARTHEST,
    most: int | None = FARTHEST,
) -> int:
    """A whole number of any kind, a bool excepted, as a Python int; an InputError for all else.

    most: the largest that may be, None for no bound.

    >>> import numpy as np
    >>> whole_number("window", "offset", np.int64(3))
    3
    """
    try:
        whole = None if isinstance(number, bool) else operator.index(number)
    except (TypeError, ValueError, RuntimeError):  # of a tensor with several elements
        whole = None
    if whole is None or whole < least or (most is not None and whole > most):
        bounds = f"{least:,} or more" if most is None else f"from {least:,} to {most:,}"
        raise InputError(f"{operation}: {name} is {number!r}; expected a whole number, {bounds}.")
    return whole


def describe(tensor: Tensor) -> str:
    """A tensor's shape as the errors print it.

    >>> import torch
    >>> describe(torch.zeros(2, 8, 5, 64))
    '(2, 8, 5, 64)'
    """
    return "(" + ", ".join(str(size) for size in tensor.shape) + ")"


#: What the errors call the tensors of a call.
_NAMES = ("queries", "keys", "values")


def check_attention_inputs(
    operation: str, queries: Queries, keys: Keys, values: Values, *, same_depth: bool
) -> tuple[int, int, int, int, int, int]:
    """Raise a ShapeError unless queries, keys and values can enter one attention call.

    Args:
        operation: the name that the error begins with.
        queries, keys, values: as the call got them.
        same_depth: whether the score compares queries and keys of one depth.

    Returns: batch, heads, queries, depth, keys and the depth of the values.
    """
    # Each thing is asked for once, and of what is right nothing more: a call of a few microseconds
    # feels it.
    sizes, of_keys, of_values = queries.shape, keys.shape, values.shape
    if not len(sizes) == len(of_keys) == len(of_values) == 4:
        _refuse_dimensions(operation, queries, keys, values)
    dtype = queries.dtype
    if not (dtype.is_floating_point and dtype is keys.dtype is values.dtype):
        _refuse_types(operation, queries, keys, values)

    def shapes() -> str:
        return f"from {describe(queries)}, {describe(keys)} and {describe(values)}"

    batch, heads, rows, depth = sizes
    key_batch, kv_heads, length, key_depth = of_keys
    value_batch, value_heads, value_length, value_depth = of_values
    on_cpu = queries.is_cpu and keys.is_cpu and values.is_cpu
    if not on_cpu and not (queries.device == keys.device == values.device):
        raise InputError(
            f"{operation}: queries are on {queries.device}, keys on {keys.device}, values on "
            f"{values.device}. Move all three to one device."
        )
    if not (batch == key_batch == value_batch):
        raise ShapeError(
            f"{operation}: batches of {batch}, {key_batch} and {value_batch}, {shapes()}. Give all "
            "three the same batch."
        )
    if kv_heads != value_heads:
        raise ShapeError(
            f"{operation}: keys have {kv_heads} heads, values {value_heads}, {shapes()}. Keys and "
            "values share their heads."
        )
    if kv_heads == 0 or heads % kv_heads:
        raise ShapeError(
            f"{operation}: {heads} heads of queries over {kv_heads} heads of keys, {shapes()}. The "
            "heads of the keys must divide those of the queries."
        )
    if length != value_length:
        raise ShapeError(
            f"{operation}: {length} keys, {value_length} values, {shapes()}. Each key has one "
            "value."
        )
    if same_depth and depth != key_depth:
        raise ShapeError(
            f"{operation}: queries have depth {depth}, keys {key_depth}, {shapes()}. Project both "
            "to one depth."
        )
    return batch, heads, rows, depth, length, value_depth


def _refuse_dimensions(operation: str, *tensors: Tensor) -> None:
    """Raise the ShapeError that names the first tensor without four dimensions."""
    for name, tensor in zip(_NAMES, tensors, strict=True):
        if tensor.ndim != 4:
            raise ShapeError(
                f"{operation}: {name} have {tensor.ndim} dimensions, from {describe(tensor)}; "
                "expected (batch, heads, positions, depth), or the same without the batch."
            )


def _refuse_types(operation: str, *tensors: Tensor) -> None:
    """Raise the InputError that names the first tensor without fractions, or all three types."""
    for name, tensor in zip(_NAMES, tensors, strict=True):
        if not tensor.is_floating_point():
            raise InputError(
                f"{operation}: {name} are {tensor.dtype}; expected a floating-point type. "
                f"Convert them, as in {name}.float()."
            )
    queries, keys, values = (tensor.dtype for tensor in tensors)
    raise InputError(
        f"{operation}: queries are {queries}, keys {keys}, values {values}. Convert all three to "
        "one type."
    )


def repeat_kv_heads(tensor: Tensor, heads: int) -> Tensor:
    """Repeat keys or values of grouped-query attention so that every query head has its own.

    Args:
        tensor: (batch, kv_heads, keys, depth); kv_heads divides heads.
        heads: heads of the queries.

    Returns: (batch, heads, keys, depth).
    Source: Ainslie et al. 2023.
    """
    groups = heads // tensor.shape[1]
    return tensor if groups == 1 else tensor.repeat_interleave(groups, dim=1)
