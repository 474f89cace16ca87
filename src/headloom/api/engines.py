"""Do many tasks at once: by processes of this machine; on many machines see
`headloom.api.ray_engine`.

An engine's `results` takes tasks, texts by their names, and gives each result as it comes, in any
order. Every task is done, perhaps twice where a process ends in the middle of it: what does a task
must take what is done already as done.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice
from multiprocessing import connection, get_context, parent_process
from pathlib import Path
from typing import Protocol

import torch

from headloom.errors import DataError

__all__ = ["Do", "Engine", "Processes", "Result", "Task", "Work", "opened"]

#: The name of a text, and the text.
Task = tuple[str, str]
#: The name of a text, and why nothing could be made of it, or None.
Result = tuple[str, str | None]
#: Does a task.
Do = Callable[[Task], Result]

#: The number of prctl's PR_SET_PDEATHSIG.
_SIGNAL_AT_DEATH_OF_PARENT = 1
#: Tasks that wait for a worker, at most: a corpus may have millions.
_WAITING = 1024


class Work(Hashable, Protocol):
    """What a process does, as it can be sent to one: frozen data, and a function made of them."""

    @property
    def reads(self) -> Sequence[Path]:
        """Files and folders that it reads, here and on every machine."""
        ...

    def start(self) -> Do:
        """The function that does a task; it holds what it needs, a model perhaps."""
        ...


class Engine(Protocol):
    """Does tasks by several processes."""

    def results(
        self, folder: Path, work: Work, tasks: Mapping[str, str], here: Do
    ) -> Iterator[Result]:
        """Do tasks, and give each result as it comes.

        Args:
            folder: where the work writes.
            work: what each process does.
            tasks: texts by their names, at least one.
            here: does a task in this process, for an engine that then needs no other.

        Raises: DataError: processes end again and again; and what a task raises.
        """
        ...


@lru_cache(maxsize=1)
def opened(work: Work, threads: int) -> Do:
    """What does the tasks in this process, which opens its model once."""
    torch.set_num_threads(threads)
    return work.start()


@dataclass(frozen=True)
class Processes:
    """Processes of this machine beside this one or, of one worker, this one.

    workers: processes.
    threads: of each; None: the cores divided by the workers.
    """

    workers: int = 1
    threads: int | None = None

    def results(
        self, folder: Path, work: Work, tasks: Mapping[str, str], here: Do
    ) -> Iterator[Result]:
        """See `Engine`."""
        if self.workers == 1 or len(tasks) == 1:
            yield from map(here, tasks.items())
            return
        threads = self.threads or max(1, (os.cpu_count() or 1) // self.workers)
        # A process of its own, not a copy of this one: threads of torch do not survive a fork.
        pool = ProcessPoolExecutor(
            min(self.workers, len(tasks)), get_context("spawn"), _end_with_parent
        )
        remaining = iter(tasks.items())
        try:
            while some := list(islice(remaining, _WAITING)):
                yield from pool.map(partial(_do, work, threads), some)
        except BrokenProcessPool:
            raise DataError(
                f"{folder}: a worker was killed, perhaps for want of memory. What is traced is "
                "there: give the same command again, with fewer --workers, and it goes on."
            ) from None
        finally:
            pool.shutdown(cancel_futures=True)


def _do(work: Work, threads: int, task: Task) -> Result:
    return opened(work, threads)(task)


def _end_with_parent() -> None:
    """End this process as soon as the one that started it has ended, even by ``kill -9``.

    A pipe of multiprocessing closes then, on every system; on Linux the system also sends a signal,
    which needs no thread of ours to run. Ctrl-C is for the one that started it.
    """
    parent = parent_process()
    if parent is None:
        raise RuntimeError("a worker has no parent process")

    def watch() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SIGNAL_AT_DEATH_OF_PARENT, signal.SIGKILL)
    threading.Thread(target=watch, name="headloom-parent", daemon=True).start()
