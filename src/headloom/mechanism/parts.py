"""Copies of scores, positions and other dataclasses with some fields changed."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

Part = TypeVar("Part")


def changed(part: Part, **changes: object) -> Part:
    """Return a copy of a frozen dataclass with some fields changed."""
    dataclass: Any = part
    copied: Part = replace(dataclass, **changes)
    return copied


def with_tensors(part: Part, change: Callable[[Tensor], Tensor]) -> Part:
    """Return a copy of an object with a function applied to its tensor fields; None stays None."""
    if is_dataclass(part):  # with slots, or with a __dict__ that also holds cached properties
        values = {field.name: getattr(part, field.name) for field in fields(part)}
    else:
        values = getattr(part, "__dict__", {})
    tensors = {name: value for name, value in values.items() if isinstance(value, Tensor)}
    if not tensors:
        return part
    if is_dataclass(part):
        return changed(part, **{name: change(tensor) for name, tensor in tensors.items()})
    copied = copy(part)
    for name, tensor in tensors.items():
        setattr(copied, name, change(tensor))
    return copied


def without_float64(device: torch.device) -> bool:
    """Whether a device has no float64, as Apple's."""
    return device.type == "mps"


def in_float64(tensor: Tensor) -> Tensor:
    """Return a tensor in float64, on its device or, if that has no float64, on the CPU."""
    return (tensor.cpu() if without_float64(tensor.device) else tensor).double()


def with_float_tensors(part: Part) -> Part:
    """Return a copy of an object with half-precision tensors in float32."""
    half = (torch.float16, torch.bfloat16)
    return with_tensors(part, lambda tensor: tensor.float() if tensor.dtype in half else tensor)
