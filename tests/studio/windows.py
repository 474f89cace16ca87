"""Windows that a test of the studio opens: those that show most in `make test`, all in test-all.

And how long it waits for what is seen in one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

__all__ = ["themes", "until", "until_right", "widths", "windows"]


def windows(*every: int) -> pytest.MarkDecorator:
    """Each width in each theme. The narrowest in light is not slow."""
    fast = (("light", min(every)),)
    return pytest.mark.parametrize(
        ("theme", "width"),
        [_case(fast, theme, width) for theme in ("light", "dark") for width in every],
    )


def widths(*every: int) -> pytest.MarkDecorator:
    """Each width. The narrowest is not slow."""
    fast = ((min(every),),)
    return pytest.mark.parametrize("width", [_case(fast, width) for width in every])


def themes(first: str) -> pytest.MarkDecorator:
    """Both themes, of which the other one is slow."""
    return pytest.mark.parametrize(
        "theme", [_case(((first,),), theme) for theme in ("light", "dark")]
    )


def _case(fast: tuple[tuple[object, ...], ...], *values: object) -> object:
    return pytest.param(*values, marks=() if values in fast else pytest.mark.slow)


def until(page: Any, holds: Callable[[], bool]) -> None:
    """Wait until something holds, however busy the machine is; a minute at most."""

    def check() -> None:
        assert holds()

    until_right(page, check)


def until_right(page: Any, check: Callable[[], None]) -> None:
    """The same of what is asserted. Raises: AssertionError: of the last time."""
    end = time.monotonic() + 60
    while True:
        try:
            return check()
        except AssertionError:
            if time.monotonic() > end:
                raise
        page.wait_for_timeout(20)
