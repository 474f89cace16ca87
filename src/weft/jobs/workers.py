"""Worker processes, which end with the process that started them."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from multiprocessing import connection, get_context, parent_process
from typing import Protocol

import torch

from weft.errors import DataError

__all__ = ["Work", "by_processes"]

#: The number of prctl's PR_SET_PDEATHSIG.
_SIGNAL_AT_DEATH_OF_PARENT = 1

Task = tuple[str, str]
Result = tuple[str, str | None]


class Work(Protocol):
    """What a process does, as it can be sent to one: data, and a function made of them there."""

    def start(self) -> Callable[[Task], Result]:
        """The function that does a task."""
        ...


def by_processes(
    what: str, work: Work, tasks: Mapping[str, str], workers: int, threads: int | None
) -> Iterator[Result]:
    """Do tasks by several processes, and give each result as it comes.

    Args:
        what: the folder that errors name.
        work: what each process does.
        tasks: texts by their names.
        workers: processes.
        threads: of each; None: the cores divided by the workers.

    Raises: DataError: a process was killed; and what a task raises.
    """
    each = threads or max(1, (os.cpu_count() or 1) // workers)
    # A process of its own, not a copy of this one: threads of torch do not survive a fork.
    context = get_context("spawn")
    processes = []
    for _ in range(min(workers, len(tasks))):
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, work, each))
        process.start()
        theirs.close()
        processes.append((process, ours))
    remaining = iter(tasks.items())
    idle = [pipe for _, pipe in processes]
    busy: list[connection.Connection] = []
    try:
        while True:
            while idle and (task := next(remaining, None)) is not None:
                idle[-1].send(task)
                busy.append(idle.pop())
            if not busy:
                return
            ready = connection.wait(busy)
            for pipe in [pipe for pipe in busy if pipe in ready]:
                result = pipe.recv()
                if isinstance(result, Exception):
                    raise result
                busy.remove(pipe)
                idle.append(pipe)
                yield result
    except (EOFError, BrokenPipeError, ConnectionResetError):
        raise DataError(
            f"{what}: a worker was killed, perhaps for want of memory. What is traced is there: "
            "give the same command again, with fewer --workers, and it goes on."
        ) from None
    finally:
        for _, pipe in processes:
            pipe.close()  # a worker ends where nothing more can come
        for process, _ in processes:
            process.join()


def _serve(pipe: connection.Connection, work: Work, threads: int) -> None:
    """The life of a worker: a result for each task, until its pipe is closed."""
    _end_with_parent()
    torch.set_num_threads(threads)
    try:
        do = work.start()
        while True:
            pipe.send(do(pipe.recv()))
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        return
    except Exception as error:
        pipe.send(error)


def _end_with_parent() -> None:
    """End this process as soon as the one that started it has ended, even by ``kill -9``.

    A pipe of multiprocessing closes then, on every system; on Linux the system also sends a signal,
    which needs no thread of ours to run.
    """
    parent = parent_process()
    if parent is None:
        raise RuntimeError("a worker has no parent process")

    def watch() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SIGNAL_AT_DEATH_OF_PARENT, signal.SIGKILL)
    threading.Thread(target=watch, name="weft-parent", daemon=True).start()
