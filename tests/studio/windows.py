"""How long a test of the studio waits for what is seen in a window."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

__all__ = ["until"]


def until(page: Any, holds: Callable[[], bool]) -> None:
    """Wait until something holds, however busy the machine is; a minute at most."""
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        page.wait_for_timeout(20)
