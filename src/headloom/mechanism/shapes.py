"""Checks of what a call is given, tensors above all, and the errors that say what does not fit."""

from __future__ import annotations

import math
import operator
from typing import Any, SupportsIndex

import numpy as np
import torch
from torch import Tensor

from headloom.errors import InputError, ShapeError

__all__ = [
    "FARTHEST",
    "TYPES",
    "Edges",
    "Keys",
    "Output",
    "PerRow",
    "Queries",
    "Scores",
    "Values",
    "Weights",
    "check_attention_inputs",
    "check_flag",
    "check_type",
    "chosen",
    "describe",
    "finite_number",
    "in_batch_of_one",
    "in_words",
    "place_of",
    "real_tensor",
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
#: What errors show as it is.
_PLAIN = (str, bytes, bool, int, float, complex, np.generic, type(None), type, torch.dtype)


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
    whole: int | None
    if type(number) is int:
        # operator.index would make a program that is compiled for any number one for this number.
        whole = number
    else:
        try:
            whole = None if isinstance(number, bool) else operator.index(number)
        except (TypeError, ValueError, RuntimeError):  # of a tensor with several elements
            whole = None
    if whole is None or whole < least or (most is not None and whole > most):
        no_bound = most is None or (most == FARTHEST and least > -FARTHEST)
        bounds = f"{least:,} or more" if no_bound else f"from {least:,} to {most:,}"
        raise InputError(
            f"{operation}: {name} is {in_words(number)}; expected a whole number, {bounds}."
        )
    return whole


def place_of(owner: str, operation: str, name: str, number: SupportsIndex, count: int) -> int:
    """A place among those that somebody has, counted from 0, or from the end where below 0.

    >>> place_of("graph", "adjacency", "head", -1, 8)
    7
    """
    place = whole_number(operation, name, number)
    if not -count <= place < count:
        there = f"{name}s 0 to {count - 1}" if count else f"no {name}s"
        raise InputError(f"{operation}: no {name} {place}; the {owner} has {there}.")
    return place % count


def in_words(value: object) -> str:
    """What was given, on one short line of an error.

    >>> in_words("dog"), in_words([1, 2]), in_words(torch.ones(2, 3)), in_words(object())
    ("'dog'", '[1, 2]', 'a tensor (2, 3)', 'an object of type object')
    """
    if isinstance(value, Tensor):
        return f"a tensor {describe(value)}"
    if isinstance(value, np.ndarray):
        return f"an array {value.shape}"
    if isinstance(value, list | tuple | set | dict):
        if len(value) > 8 or not all(isinstance(each, _PLAIN) for each in value):
            return f"a {type(value).__name__} of {len(value):,}"
    elif not isinstance(value, _PLAIN):
        return f"an object of type {type(value).__name__}"
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:57] + "..."


def check_type(operation: str, name: str, value: object, kind: Any, expected: str) -> None:
    """Raise an InputError where something is of another type. expected: what it should be."""
    if not isinstance(value, kind):
        raise InputError(f"{operation}: {name} is {in_words(value)}; expected {expected}.")


def check_flag(operation: str, name: str, value: object, *, optional: bool = False) -> None:
    """Raise an InputError where something is neither True nor False. optional: or None."""
    if not (isinstance(value, (bool, np.bool_)) or (optional and value is None)):
        expected = "True, False or None" if optional else "True or False"
        raise InputError(f"{operation}: {name}={in_words(value)}; expected {expected}.")


def finite_number(
    operation: str, name: str, number: object, least: float = -math.inf, below: float = math.inf
) -> float:
    """A finite number of any kind, a bool excepted, as a Python float; an InputError for all else.

    least, below: the smallest that may be, and the first that is too large.

    >>> finite_number("layer", "dropout", 0, 0, 1)
    0.0
    """
    given: Any = number
    try:
        real = float(given)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        real = math.nan
    fits = math.isfinite(real) and least <= real < below
    if isinstance(number, (str, bool)) or not fits:
        bounds = "" if math.isinf(least) else f", {least:g} or more"
        bounds = bounds if math.isinf(below) else f" from {least:g} to below {below:g}"
        raise InputError(
            f"{operation}: {name} is {in_words(number)}; expected a finite number{bounds}."
        )
    return real


def chosen(operation: str, name: str, choice: object, choices: tuple[str, ...]) -> None:
    """Raise an InputError, which lists the choices, where one of several words is none of them."""
    if not isinstance(choice, str) or choice not in choices:
        expected = ", ".join(f'"{word}"' for word in choices)
        raise InputError(f"{operation}: {name}={in_words(choice)}; expected one of {expected}.")


def real_tensor(operation: str, name: str, tensor: object) -> Tensor:
    """A dense tensor of real numbers; an InputError for all else.

    >>> import torch
    >>> real_tensor("layer", "x", torch.ones(1))
    tensor([1.])
    """
    if isinstance(tensor, Tensor):
        kind = _why_not_dense(tensor)
        if kind is None and not (tensor.is_complex() or tensor.is_quantized):
            return tensor
        kind = kind or f"a tensor of {tensor.dtype}"
    else:
        kind = type(tensor).__name__
    raise InputError(
        f"{operation}: {name} is {kind}; expected a dense tensor of real numbers, as from "
        "torch.as_tensor."
    )


def _why_not_dense(tensor: Tensor) -> str | None:
    """What a tensor is whose numbers do not lie at strides in memory; None where they do."""
    if tensor.is_nested:
        return "a nested tensor"
    return None if tensor.layout is torch.strided else f"a tensor of layout {tensor.layout}"


def describe(tensor: Tensor) -> str:
    """A tensor's shape as the errors print it.

    >>> import torch
    >>> describe(torch.zeros(2, 8, 5, 64))
    '(2, 8, 5, 64)'
    """
    return "(" + ", ".join(str(size) for size in tensor.shape) + ")"


#: The types that attention is computed in.
TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_STRIDED = torch.strided
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
    if not (queries.layout is keys.layout is values.layout is _STRIDED):
        _refuse_layouts(operation, queries, keys, values)
    try:
        sizes, of_keys, of_values = queries.shape, keys.shape, values.shape
    except RuntimeError:
        raise InputError(
            f"{operation}: a tensor has no sizes, as one that is nested; expected dense tensors."
        ) from None
    if not len(sizes) == len(of_keys) == len(of_values) == 4:
        _refuse_dimensions(operation, queries, keys, values)
    dtype = queries.dtype
    if not (dtype in TYPES and dtype is keys.dtype is values.dtype):
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


def in_batch_of_one(
    operation: str, queries: Tensor, keys: Tensor, values: Tensor
) -> tuple[Queries, Keys, Values]:
    """Queries, keys and values of three dimensions with a batch in front."""
    if queries.is_nested or keys.is_nested or values.is_nested:
        _refuse_layouts(operation, queries, keys, values)
    same = queries is keys
    queries, values = queries[None], values[None]
    return queries, queries if same else keys[None], values


def _refuse_layouts(operation: str, *tensors: Tensor) -> None:
    """Raise the InputError that names the first tensor that is not dense."""
    for name, tensor in zip(_NAMES, tensors, strict=True):
        real_tensor(operation, f"the tensor of {name}", tensor)


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
        if tensor.dtype not in TYPES:
            raise InputError(
                f"{operation}: {name} are {tensor.dtype}; expected float32, float64, bfloat16 or "
                f"float16. Convert them, as in {name}.float()."
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
