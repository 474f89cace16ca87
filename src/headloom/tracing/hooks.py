"""Hooks on somebody's module that stay with it: a copy of the module has none that does anything.

A training copies its model (the best so far, an average of weights) and saves it whole, by pickle
too, while headloom looks on.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from typing import Any

__all__ = ["Hook", "StandIn"]


class Hook:
    """A hook that calls a function; a copy of it, also a pickled one, calls nothing."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self._call(*given, **named)

    def __deepcopy__(self, memo: dict[int, Any]) -> Hook:
        return Hook(_nothing)

    def __reduce__(self) -> tuple[Any, ...]:
        return Hook, (_nothing,)


class StandIn:
    """What is called instead of a method of somebody's module; a copy has the method itself."""

    def __init__(self, owner: Any, name: str, call: Callable[..., Any]) -> None:
        self._owner, self._name, self._call = owner, name, call
        update_wrapper(self, getattr(type(owner), name))

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self._call(*given, **named)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self._owner, self._name)


def _nothing(*_: object, **__: object) -> None:
    return None
