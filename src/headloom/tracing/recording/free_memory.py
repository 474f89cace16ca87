"""Gives free memory back to the system while a model generates."""

from __future__ import annotations

from headloom.tracing.memory import give_back

__all__ = ["FreeMemory"]


class FreeMemory:
    """Gives back what is free whenever so many bytes were taken and left.

    A cache is longer at each step, and small tensors lie between its parts, so that there is less
    and less room for the next where the last ones were: see `give_back`.

    Args: every: so many that giving back, some milliseconds, is a small part of the work with them.
    """

    def __init__(self, every: int) -> None:
        self._every, self._passed = every, 0

    def passed(self, count: int) -> None:
        """So many bytes more."""
        self._passed += count
        if self._passed >= self._every:
            self._passed = 0
            give_back()
