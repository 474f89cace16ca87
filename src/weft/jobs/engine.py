"""What does many tasks at once: processes of this machine, or actors on many (Ray)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

__all__ = ["Do", "Engine", "Result", "Task", "Work"]

#: The name of a text, and the text.
Task = tuple[str, str]
#: The name of a text, and why nothing could be made of it, or None.
Result = tuple[str, str | None]
#: Does a task.
Do = Callable[[Task], Result]


class Work(Protocol):
    """What a process does, as it can be sent to one: data, and a function made of them there."""

    @property
    def reads(self) -> Sequence[Path]:
        """Files and folders that it reads, here and on every machine."""
        ...

    def start(self) -> Do:
        """The function that does a task; it holds what it needs, a model perhaps."""
        ...


class Engine(Protocol):
    """Does tasks by several processes.

    Every task is done, perhaps twice where a process ends in the middle of it: the function that
    does a task must take what is done already as done.
    """

    def results(
        self, folder: Path, work: Work, tasks: Mapping[str, str], here: Do
    ) -> Iterator[Result]:
        """Do tasks, and give each result as it comes, in any order.

        Args:
            folder: where the work writes.
            work: what each process does.
            tasks: texts by their names, at least one.
            here: does a task in this process, for an engine that then needs no other.

        Raises: DataError: processes end again and again; and what a task raises.
        """
        ...
