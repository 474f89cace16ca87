"""Operations in the types of their tensors, also where torch.autocast would change them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

import torch
from torch import Tensor

from headloom.mechanism.compiling import constant_when_compiled

__all__ = ["in_own_types", "without_autocast"]


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """A context in which torch.autocast changes no type: exact numbers stay what they are.

    >>> with torch.autocast("cpu", torch.bfloat16), without_autocast(torch.device("cpu")):
    ...     (torch.ones(2, 2) @ torch.ones(2, 2)).dtype
    torch.float32
    """
    if _has_autocast(device.type) and torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


@constant_when_compiled  # whose compiler stops at that function before torch 2.11
def _has_autocast(device_type: str) -> bool:
    return torch.amp.is_autocast_available(device_type)


class _HasQueries(Protocol):
    @property
    def queries(self) -> Tensor: ...


_Call = TypeVar("_Call", bound=_HasQueries)
_Rest = ParamSpec("_Rest")
_Result = TypeVar("_Result")


def in_own_types(
    function: Callable[Concatenate[_Call, _Rest], _Result],
) -> Callable[Concatenate[_Call, _Rest], _Result]:
    """A function of a call whose operations torch.autocast does not change."""

    @wraps(function)
    def exact(call: _Call, /, *arguments: _Rest.args, **options: _Rest.kwargs) -> _Result:
        with without_autocast(call.queries.device):
            return function(call, *arguments, **options)

    return exact
