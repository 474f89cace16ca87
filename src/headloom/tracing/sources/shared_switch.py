"""`SharedSwitch`: a setting of the whole process that blocks of several threads change alike."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

__all__ = ["SharedSwitch"]


class SharedSwitch:
    """A setting that is changed by the first block and put back by the last one.

    Each block that puts back what it found would not do: of two that overlap, the second finds the
    first one's setting, and leaves it behind.
    """

    def __init__(self, changed: Callable[[], AbstractContextManager[object]]) -> None:
        """changed: a context in which the setting is another."""
        self._changed = changed
        self._lock = threading.Lock()
        self._blocks = 0
        self._held: AbstractContextManager[object] | None = None

    @contextmanager
    def on(self) -> Iterator[None]:
        """Changed while the block runs; as it was when the last block of any thread has ended."""
        with self._lock:
            if self._held is None:
                held = self._changed()
                held.__enter__()
                self._held = held
            self._blocks += 1
        try:
            yield
        finally:
            with self._lock:
                self._blocks -= 1
                if not self._blocks and self._held is not None:
                    held, self._held = self._held, None
                    held.__exit__(None, None, None)
