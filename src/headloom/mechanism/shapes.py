"""Checks of arguments, above all tensors, and their error messages."""

from __future__ import annotations

import math
import operator
from typing import SupportsIndex

import numpy as np
import torch
from torch import Tensor

from headloom.errors import InputError

# Names of tensors by their shapes; to a type checker each is a Tensor.
Queries = Tensor  # (batch, heads, queries, depth)
Keys = Tensor  # (batch, kv_heads, keys, depth); kv_heads divides heads
Values = Tensor  # (batch, kv_heads, keys, value_depth)
Output = Tensor  # (batch, heads, queries, value_depth)
Scores = Tensor  # (batch, heads, queries, keys), before the softmax
Weights = Tensor  # (batch, heads, queries, keys), after the softmax
PerRow = Tensor  # (batch, heads, queries): a number for each row of weights
Edges = Tensor  # (batch, heads, queries, k): a number for each kept edge, strongest first

#: The largest position: sums of a few of them stay far below the largest int64.
FARTHEST = 2**53
#: Types that errors show by their repr.
_PLAIN = (str, bytes, bool, int, float, complex, np.generic, type(None), type, torch.dtype)


def whole_number(
    operation: str, name: str, number: SupportsIndex | None, least: int = -FARTHEST,
    most: int | None = FARTHEST,
) -> int:  # fmt: skip
    """Return a whole number of any type but bool as an int; raise an InputError otherwise.

    least, most: bounds; most=None: no upper bound.
    """
    whole: int | None
    if type(number) is int or isinstance(number, torch.SymInt):
        # operator.index would specialise a program that is compiled or exported.
        whole = number  # type: ignore[assignment]
    else:
        try:
            whole = None if isinstance(number, bool) else operator.index(number)  # type: ignore[arg-type]
        except (TypeError, ValueError, RuntimeError):  # RuntimeError: a tensor of several elements
            whole = None
    if whole is None or whole < least or (most is not None and whole > most):
        no_bound = most is None or (most == FARTHEST and least > -FARTHEST)
        bounds = f"{least:,} or more" if no_bound else f"from {least:,} to {most:,}"
        raise InputError(
            f"{operation}: {name} is {in_words(number)}; expected a whole number, {bounds}."
        )
    return whole


def place_of(owner: str, operation: str, name: str, number: SupportsIndex, count: int) -> int:
    """Return an index below `count`, negative ones counted from the end, or raise an InputError."""
    index = whole_number(operation, name, number)
    if not -count <= index < count:
        available = f"{name}s 0 to {count - 1}" if count else f"no {name}s"
        raise InputError(f"{operation}: no {name} {index}; the {owner} has {available}.")
    return index % count


def in_words(value: object) -> str:
    """Describe a value on one short line of an error: 'dog', [1, 2], a tensor (2, 3)."""
    if isinstance(value, Tensor):
        return f"a tensor {describe(value)}"
    if isinstance(value, np.ndarray):
        return f"an array {value.shape}"
    if isinstance(value, list | tuple | set | dict):
        if len(value) > 8 or not all(isinstance(item, _PLAIN) for item in value):
            return f"a {type(value).__name__} of {len(value):,}"
    elif not isinstance(value, _PLAIN):
        return f"an object of type {type(value).__name__}"
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:57] + "..."


def check_flag(operation: str, name: str, value: object, *, optional: bool = False) -> None:
    """Raise an InputError if a value is neither True nor False. optional: None is allowed too."""
    if not (isinstance(value, (bool, np.bool_)) or (optional and value is None)):
        expected = "True, False or None" if optional else "True or False"
        raise InputError(f"{operation}: {name}={in_words(value)}; expected {expected}.")


def finite_number(
    operation: str, name: str, number: object, least: float = -math.inf, below: float = math.inf
) -> float:
    """Return a finite number of any type but bool as a float; raise an InputError otherwise.

    least, below: the smallest allowed number, and an upper bound, excluded.
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
    """Raise an InputError that lists the choices if a word is none of them."""
    if not isinstance(choice, str) or choice not in choices:
        expected = ", ".join(f'"{word}"' for word in choices)
        raise InputError(f"{operation}: {name}={in_words(choice)}; expected one of {expected}.")


def real_tensor(operation: str, name: str, tensor: object) -> Tensor:
    """Return a dense tensor of real numbers; raise an InputError for anything else."""
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
    """Return a tensor's shape as errors print it: (2, 8, 5, 64)."""
    return "(" + ", ".join(str(size) for size in tensor.shape) + ")"


#: Dtypes that attention is computed in.
TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def repeat_kv_heads(tensor: Tensor, heads: int) -> Tensor:
    """Repeat keys or values, (batch, kv_heads, keys, depth), to one head for each query head.

    Source: Ainslie et al. 2023.
    """
    groups = heads // tensor.shape[1]
    return tensor if groups == 1 else tensor.repeat_interleave(groups, dim=1)
