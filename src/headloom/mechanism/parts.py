"""Scores and positions with some of their fields changed."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

Part = TypeVar("Part")


def changed(part: Part, **changes: object) -> Part:
    """A frozen dataclass with other values for some of its fields."""
    dataclass: Any = part
    different: Part = replace(dataclass, **changes)
    return different


def with_tensors(part: Part, change: Callable[[Tensor], Tensor]) -> Part:
    """A copy of an object whose fields that are tensors are changed; None stays None."""
    if is_dataclass(part):  # with slots, or with a dictionary that also holds what was worked out
        values = {field.name: getattr(part, field.name) for field in fields(part)}
    else:
        values = getattr(part, "__dict__", {})
    tensors = {name: value for name, value in values.items() if isinstance(value, Tensor)}
    if not tensors:
        return part
    if is_dataclass(part):
        return changed(part, **{name: change(tensor) for name, tensor in tensors.items()})
    other = copy(part)
    for name, tensor in tensors.items():
        setattr(other, name, change(tensor))
    return other


def without_float64(device: torch.device) -> bool:
    """Whether a device has no numbers of 64 bits with fractions, as those of Apple."""
    return device.type == "mps"


def in_float64(tensor: Tensor) -> Tensor:
    """A tensor in float64: where it is, or on the CPU if its device has no such numbers."""
    return (tensor.cpu() if without_float64(tensor.device) else tensor).double()


def with_float_tensors(part: Part) -> Part:
    """The same with every half-precision tensor in float32."""
    half = (torch.float16, torch.bfloat16)
    return with_tensors(part, lambda tensor: tensor.float() if tensor.dtype in half else tensor)
