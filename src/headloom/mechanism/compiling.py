"""What a call asks of torch's compiler, alike in every torch that headloom runs with."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

__all__ = ["constant_when_compiled", "is_exporting"]

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
