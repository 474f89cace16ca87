"""Checks of what a call is given, tensors above all, and the errors that say what does not fit."""

from __future__ import annotations

import math
import operator
from typing import SupportsIndex

import numpy as np
import torch
from torch import Tensor

from headloom.errors import InputError

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
    number: SupportsIndex | None,
    least: int = -FARTHEST,
    most: int | None = FARTHEST,
) -> int:
    """A whole number of any kind, a bool excepted, as a Python int; an InputError for all else.

    most: the largest that may be, None for no bound.
    """
    whole: int | None
    if type(number) is int:
        # operator.index would make a program that is compiled for any number one for this number.
        whole = number
    else:
        try:
            whole = None if isinstance(number, bool) else operator.index(number)  # type: ignore[arg-type]
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
    """A place among those that somebody has, counted from 0, or from the end where below 0."""
    place = whole_number(operation, name, number)
    if not -count <= place < count:
        there = f"{name}s 0 to {count - 1}" if count else f"no {name}s"
        raise InputError(f"{operation}: no {name} {place}; the {owner} has {there}.")
    return place % count


def in_words(value: object) -> str:
    """A value on one short line of an error: 'dog', [1, 2], a tensor (2, 3)."""
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
    """
    try:
        real = float(number)  # type: ignore[arg-type]
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
    """A dense tensor of real numbers; an InputError for all else."""
    kind = type(tensor).__name__
    if isinstance(tensor, Tensor):
        dense = tensor.layout is torch.strided and not tensor.is_nested
        if dense and not (tensor.is_complex() or tensor.is_quantized):
            return tensor
        kind = "a nested tensor" if tensor.is_nested else f"a tensor of {tensor.dtype}"
        kind += "" if dense or tensor.is_nested else f" and layout {tensor.layout}"
    raise InputError(
        f"{operation}: {name} is {kind}; expected a dense tensor of real numbers, as from "
        "torch.as_tensor."
    )


def describe(tensor: Tensor) -> str:
    """A tensor's shape as the errors print it: (2, 8, 5, 64)."""
    return "(" + ", ".join(str(size) for size in tensor.shape) + ")"


#: The types that attention is computed in.
TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def repeat_kv_heads(tensor: Tensor, heads: int) -> Tensor:
    """Keys or values, (batch, kv_heads, keys, depth), with a head for each of the queries'.

    Source: Ainslie et al. 2023.
    """
    groups = heads // tensor.shape[1]
    return tensor if groups == 1 else tensor.repeat_interleave(groups, dim=1)
