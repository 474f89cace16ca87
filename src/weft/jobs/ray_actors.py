"""An engine of actors of Ray, on one machine or many: each opens the model once.

Ray places the actors and carries texts to them and answers back. What dies is begun again here, a
bounded number of times, so that one text that takes all memory ends neither the work nor goes on
for ever.
"""

from __future__ import annotations

import math
import platform
import secrets
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from weft.errors import DataError, WeftError
from weft.formats.files import MARK, disk_errors
from weft.jobs.engine import Do, Result, Task, Work
from weft.jobs.ray_cluster import check_ray, cluster
from weft.version import __version__

__all__ = ["RayActors"]

#: What the name of a file begins with by which machines know a folder.
_TOKEN = f".shared{MARK}"
#: How often a text is begun where its actor dies each time, and how many actors in a row may die
#: without a text done, for each of the workers.
_TRIES = 3
#: Seconds in which the cluster must have room for one actor.
_PATIENCE = 600.0
#: Seconds of work that an actor is given at once, and texts at most: a call a text would keep the
#: process that hands them out busy, and much more at once would be lost when an actor dies.
_SECONDS_AT_ONCE, _MOST_AT_ONCE = 0.5, 64


@dataclass(frozen=True)
class RayActors:
    """An engine of actors of Ray.

    workers: actors; those for which the cluster has no room yet come when it has.
    threads: processors of each; None: 1.
    address: of the cluster; see `weft.jobs.ray_cluster.cluster`.

    Raises: InputError: Ray is not installed.
    """

    workers: int = 1
    threads: int | None = None
    address: str | None = None

    def __post_init__(self) -> None:
        check_ray()

    def results(
        self, folder: Path, work: Work, tasks: Mapping[str, str], here: Do
    ) -> Iterator[Result]:
        """See `weft.jobs.engine.Engine`."""
        size, threads = min(self.workers, len(tasks)), self.threads or 1
        with cluster(self.address, size * threads) as ray, _token(folder) as token:
            seen = [str(path.absolute()) for path in (folder / token, *work.reads)]
            crew = _Crew(ray, folder, work, seen, size, threads)
            try:
                yield from crew.results(tasks)
            finally:
                crew.end()


@contextmanager
def _token(folder: Path) -> Iterator[str]:
    """The name of a file in a folder by which another machine knows that it sees the same one.

    A killed process leaves it; it has the name of a leftover, and is removed like one.
    """
    path = folder / f"{_TOKEN}{secrets.token_hex(8)}"
    with disk_errors(folder):
        path.touch()
    try:
        yield path.name
    finally:
        path.unlink(missing_ok=True)


def _actor_class() -> type:
    """The class of the actors.

    A class inside of a function is sent whole, not by its name: so a machine without weft, or with
    another weft, can say so.
    """

    class Tracer:
        def check(self, directory: str, seen: list[str]) -> dict[str, Any]:
            """What this process is, and which of the paths it does not see."""
            import os
            import platform
            import socket
            from pathlib import Path

            try:
                from weft.version import __version__ as weft
            except ImportError:
                weft = "none"
            with suppress(OSError):
                os.chdir(directory)  # where relative paths begin
            missing = [path for path in seen if not Path(path).exists()]
            return {"machine": socket.gethostname(), "weft": weft, "missing": missing,
                    "python": platform.python_version()}  # fmt: skip

        def open(self, work: Work, threads: int) -> Exception | None:
            """Open the model."""
            import torch

            torch.set_num_threads(threads)
            try:
                self.do = work.start()
            except Exception as error:
                return error
            return None

        def results(self, tasks: list[Task]) -> tuple[float, list[Result]] | Exception:
            """Do tasks; how many seconds they took, and their results."""
            import time

            start = time.perf_counter()
            try:
                results = [self.do(task) for task in tasks]
            except Exception as error:
                return error
            return time.perf_counter() - start, results

    return Tracer


@dataclass(frozen=True)
class _Call:
    """What an actor is asked: which of its methods, and of `results` the tasks."""

    actor: Any
    method: str
    tasks: list[Task] = field(default_factory=list)


class _Crew:
    """The actors, what each of them does, and what is to be done."""

    def __init__(
        self, ray: Any, folder: Path, work: Work, seen: list[str], size: int, threads: int
    ) -> None:
        self._ray, self._folder, self._work = ray, folder, work
        self._seen, self._size, self._threads = seen, size, threads
        self._class = ray.remote(_actor_class()).options(num_cpus=threads)
        self._calls: dict[Any, _Call] = {}
        self._idle: list[Any] = []
        self._again: deque[Task] = deque()
        self._tries: Counter[str] = Counter()
        self._deaths = 0
        self._machine: dict[Any, str] = {}
        self._seconds = math.inf  # that a task takes, as far as is known

    def results(self, tasks: Mapping[str, str]) -> Iterator[Result]:
        """Do tasks."""
        remaining, handed, missing = iter(tasks.items()), 0, len(tasks)
        for _ in range(self._size):
            self._begin()
        while missing:
            while self._idle:
                some = self._some(remaining, len(tasks) - handed)
                if not some:
                    break
                handed += sum(self._tries[name] == 0 for name, _ in some)
                self._ask(self._idle.pop(), "results", some, [some])
            for result in self._answers():
                missing -= 1
                yield result

    def end(self) -> None:
        """End the actors."""
        for actor in [*self._idle, *(call.actor for call in self._calls.values())]:
            self._ray.kill(actor)

    def _begin(self) -> None:
        """Start an actor, as soon as the cluster has room for it."""
        self._ask(self._class.remote(), "check", [], [str(Path.cwd()), self._seen])

    def _ask(self, actor: Any, method: str, tasks: list[Task], arguments: list[Any]) -> None:
        reference = getattr(actor, method).remote(*arguments)
        self._calls[reference] = _Call(actor, method, tasks)

    def _some(self, remaining: Iterator[Task], count: int) -> list[Task]:
        """The tasks to hand out next; what an actor died of is handed out alone.

        Not more than half of what each actor will still have to do, so that all end at one time.
        """
        if self._again:
            return [self._again.popleft()]
        share = min(_MOST_AT_ONCE, math.ceil(count / (2 * self._size)))
        known = math.inf if self._seconds == 0 else _SECONDS_AT_ONCE / self._seconds
        return list(islice(remaining, max(1, int(min(share, known)))))

    def _answers(self) -> Iterator[Result]:
        """Wait until an actor answers or dies, and go on with it."""
        waits = all(call.method == "check" for call in self._calls.values())
        answered, _ = self._ray.wait(list(self._calls), timeout=_PATIENCE if waits else None)
        if not answered:
            raise DataError(
                f"the Ray cluster had no {self._threads} free processors for an actor in "
                f"{_PATIENCE / 60:.0f} minutes. Wait until it has, or give fewer --threads; what "
                "is traced is there, and the same command goes on."
            )
        for reference in answered:
            call = self._calls.pop(reference)
            try:
                answer = self._ray.get(reference)
            except self._ray.exceptions.RayTaskError:
                raise  # a fault of ours: what an actor raises on purpose, it returns
            except self._ray.exceptions.RayError as error:
                yield from self._died(call, error)
            else:
                yield from self._go_on(call, answer)

    def _go_on(self, call: _Call, answer: Any) -> Iterator[Result]:
        if call.method == "check":
            self._check(call.actor, answer)
            self._ask(call.actor, "open", [], [self._work, self._threads])
            return
        if isinstance(answer, WeftError):
            raise DataError(f"{self._machine[call.actor]}: {answer}")
        if isinstance(answer, Exception):
            raise answer
        self._idle.append(call.actor)
        if call.method == "results":
            self._deaths = 0
            seconds, results = answer
            new = seconds / len(results)
            self._seconds = new if self._seconds == math.inf else (self._seconds + new) / 2
            yield from results

    def _check(self, actor: Any, answer: Mapping[str, Any]) -> None:
        """Raise where an actor's machine has other versions, or does not see what it must."""
        self._machine[actor] = answer["machine"]
        problem = _problem(answer, self._folder)
        if problem:
            raise DataError(problem)

    def _died(self, call: _Call, error: Exception) -> Iterator[Result]:
        """Put another actor in the place of one that died, and let its tasks be done again."""
        with suppress(Exception):
            self._ray.kill(call.actor)  # it may only be out of reach
        self._deaths += 1
        if self._deaths > _TRIES * self._size:
            raise DataError(
                f"{self._folder}: {self._deaths} Ray actors died one after another, perhaps for "
                f"want of memory ({_first_line(error)}). What is traced is there: give the same "
                "command again, with fewer --workers, and it goes on."
            )
        for task in call.tasks:
            self._tries[task[0]] += 1
            if self._tries[task[0]] < _TRIES:
                self._again.append(task)
            else:
                yield task[0], f"its Ray actor died {_TRIES} times, perhaps for want of memory"
        self._begin()


def _problem(answer: Mapping[str, Any], folder: Path) -> str | None:
    """What keeps a machine from the work, in a line, or None."""
    machine, python = answer["machine"], platform.python_version()
    if answer["weft"] == "none":
        return (
            f"{machine}: weft is not installed there. Install weft {__version__} on all machines."
        )
    minor = [version.split(".")[:2] for version in (answer["python"], python)]
    if answer["weft"] != __version__ or minor[0] != minor[1]:
        return (
            f"{machine}: weft {answer['weft']} with Python {answer['python']}; here it is weft "
            f"{__version__} with Python {python}. Install the same versions on all machines."
        )
    for path in map(Path, answer["missing"]):
        what = f"the folder {folder.absolute()}, that this one writes to"
        if not path.name.startswith(_TOKEN):
            what = f"the model {path}"
        return (
            f"{machine}: this machine of the Ray cluster does not see {what}. Use a folder that "
            "all machines share, by the same path."
        )
    return None


def _first_line(error: Exception) -> str:
    """The first line of what Ray says of an actor's death."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(" .:")
