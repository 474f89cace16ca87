"""Worker processes, which end with the process that started them."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from multiprocessing import connection, get_context, parent_process
from pathlib import Path

import torch

from weft.errors import DataError
from weft.jobs.engine import Do, Result, Work

__all__ = ["Processes"]

#: The number of prctl's PR_SET_PDEATHSIG.
_SIGNAL_AT_DEATH_OF_PARENT = 1


@dataclass(frozen=True)
class Processes:
    """An engine of processes of this machine, beside this one or, of one worker, this one.

    workers: processes.
    threads: of each; None: the cores divided by the workers.
    """

    workers: int = 1
    threads: int | None = None

    def results(
        self, folder: Path, work: Work, tasks: Mapping[str, str], here: Do
    ) -> Iterator[Result]:
        """See `weft.jobs.engine.Engine`."""
        if self.workers == 1 or len(tasks) == 1:
            return map(here, tasks.items())
        return self._beside(folder, work, tasks)

    def _beside(self, folder: Path, work: Work, tasks: Mapping[str, str]) -> Iterator[Result]:
        each = self.threads or max(1, (os.cpu_count() or 1) // self.workers)
        # A process of its own, not a copy of this one: threads of torch do not survive a fork.
        context = get_context("spawn")
        processes = []
        for _ in range(min(self.workers, len(tasks))):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, work, each))
            process.start()
            theirs.close()
            processes.append((process, ours))
        try:
            yield from _exchange([pipe for _, pipe in processes], tasks)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            raise DataError(
                f"{folder}: a worker was killed, perhaps for want of memory. What is traced is "
                "there: give the same command again, with fewer --workers, and it goes on."
            ) from None
        finally:
            for _, pipe in processes:
                pipe.close()  # a worker ends where nothing more can come
            for process, _ in processes:
                process.join()


def _exchange(idle: list[connection.Connection], tasks: Mapping[str, str]) -> Iterator[Result]:
    """Send tasks to the workers at the other ends of pipes, and give their results."""
    remaining = iter(tasks.items())
    busy: list[connection.Connection] = []
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
