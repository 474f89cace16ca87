"""Modes of torch that a call runs in, alike in every torch: compiling, exporting, autocast."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

import torch
from torch import Tensor

__all__ = ["constant_when_compiled", "in_own_types", "is_exporting", "without_autocast"]

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def constant_when_compiled(
    function: Callable[_Arguments, _Result],
) -> Callable[_Arguments, _Result]:
    """A function that the compiler calls instead of reading: a program has its result for good.

    That is what torch.compiler.assume_constant_result does, which loads the compiler, in seconds.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


@constant_when_compiled
def is_exporting() -> bool:
    """Whether a program is exported, to run where headloom may not be.

    Before torch 2.12 the compiler takes torch.compiler.is_exporting for true wherever it compiles.
    torch 2.6 has no such function; the flag that it has is set by an export alone.
    """
    if hasattr(torch.compiler, "is_exporting"):
        return torch.compiler.is_exporting()
    return bool(torch.compiler._is_compiling_flag)


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


def in_own_types(
    function: Callable[Concatenate[_Call, _Arguments], _Result],
) -> Callable[Concatenate[_Call, _Arguments], _Result]:
    """A function of a call whose operations torch.autocast does not change."""

    @wraps(function)
    def exact(call: _Call, /, *arguments: _Arguments.args, **options: _Arguments.kwargs) -> _Result:
        with without_autocast(call.queries.device):
            return function(call, *arguments, **options)

    return exact
