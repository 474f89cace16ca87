"""Processes that go through the cases; one that dies or does not answer is replaced."""

from __future__ import annotations

import json
import os
import resource
import selectors
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import BinaryIO

from damage.cases import Result

__all__ = ["BYTES", "results"]

#: Of memory, beside what a worker has at its beginning.
BYTES = 4 << 30
#: Cases of a worker, before another takes its place.
CHUNK = 250


@dataclass(eq=False)
class _Worker:
    """A process, the cases that it has not answered, and until when it must."""

    process: int
    answers: BinaryIO
    numbers: list[int]
    until: float
    begun: bytes = field(default=b"")


def results(
    examine: Callable[[int], Result], numbers: range, workers: int, seconds: float
) -> Iterator[Result]:
    """What each case comes to, as the answers come.

    examine: what a worker does with a number; seconds: its own limit, after which it should answer.
    """
    chunks = [list(numbers[start : start + CHUNK]) for start in range(0, len(numbers), CHUNK)]
    chunks.reverse()
    selector = selectors.DefaultSelector()
    running: set[_Worker] = set()

    def start(todo: list[int]) -> None:
        worker = _fork(examine, todo, seconds)
        running.add(worker)
        selector.register(worker.answers, selectors.EVENT_READ, worker)

    try:
        while chunks or running:
            while chunks and len(running) < workers:
                start(chunks.pop())
            for key, _ in selector.select(timeout=1):
                worker = key.data
                content = os.read(worker.answers.fileno(), 1 << 16)
                *lines, worker.begun = (worker.begun + content).split(b"\n")
                for line in lines:
                    worker.numbers.pop(0)
                    worker.until = time.monotonic() + 12 * seconds
                    yield Result(**json.loads(line))
                if content:
                    continue
                ended = _end(worker, selector, running)
                if worker.numbers:
                    dead = worker.numbers.pop(0)
                    yield Result(dead, "", "", "wrong", f"the process ended with {ended}")
                    if worker.numbers:
                        start(worker.numbers)
            for worker in running:
                if time.monotonic() > worker.until:
                    os.kill(worker.process, signal.SIGKILL)
    finally:
        for worker in list(running):
            os.kill(worker.process, signal.SIGKILL)
            _end(worker, selector, running)


def _end(worker: _Worker, selector: selectors.BaseSelector, running: set[_Worker]) -> int:
    """Take leave of a worker that has closed its end; its exit code, or minus its signal."""
    selector.unregister(worker.answers)
    worker.answers.close()
    running.remove(worker)
    return os.waitstatus_to_exitcode(os.waitpid(worker.process, 0)[1])


def _fork(examine: Callable[[int], Result], numbers: list[int], seconds: float) -> _Worker:
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    process = os.fork()
    if process:
        os.close(writing)
        until = time.monotonic() + 12 * seconds
        return _Worker(process, os.fdopen(reading, "rb", buffering=0), list(numbers), until)
    code = 1
    try:
        os.close(reading)
        _work(examine, numbers, writing)
        code = 0
    finally:
        os._exit(code)


def _work(examine: Callable[[int], Result], numbers: list[int], writing: int) -> None:
    warnings.simplefilter("ignore")
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    size = int(Path("/proc/self/statm").read_text("ascii").split()[0])
    limit = size * os.sysconf("SC_PAGE_SIZE") + BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for number in numbers:
        line = json.dumps(asdict(examine(number))).encode() + b"\n"
        while line:
            line = line[os.write(writing, line) :]
