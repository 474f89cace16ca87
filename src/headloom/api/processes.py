"""Many tasks by several processes of this machine or of a Ray cluster, each with its model.

A task may run twice where a process dies in the middle of it, so a task must skip finished work.
"""

from __future__ import annotations

import ctypes
import logging
import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import lru_cache, partial
from importlib.util import find_spec
from itertools import islice
from multiprocessing import connection, get_context, parent_process
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import torch

from headloom.errors import DataError, HeadloomError, InputError, installing, optional_package
from headloom.version import __version__

if TYPE_CHECKING:
    from headloom.api.corpus import TracingWork
    from headloom.api.model import Model

#: Name of a text, and the text; name, and error message or None.
Task = tuple[str, str]
Result = tuple[str, str | None]

#: The number of prctl's PR_SET_PDEATHSIG.
_SIGNAL_AT_DEATH_OF_PARENT = 1
#: Maximum of queued tasks: a corpus may have millions.
_WAITING = 1024
#: Retries of a text whose process has died.
_RETRIES = 2
#: Ray without usage statistics, log lines of its processes, or 40 s of connection retries.
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0", "RAY_USAGE_STATS_PROMPT_ENABLED": "0",
    "RAY_SCHEDULER_EVENTS": "0", "RAY_NUM_REDIS_GET_RETRIES": "1",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}  # fmt: skip


def results(
    work: TracingWork, tasks: Mapping[str, str], workers: str, model: Model
) -> Iterator[Result]:
    """Run tasks, texts by their names, and yield each result when it is ready, in any order.

    workers: a number of processes of this machine, 1 for this one alone; or the address of a Ray
    cluster: HOST:PORT of its head, "auto" for that of RAY_ADDRESS or of this machine, "local" for
    a temporary one. model: already opened by this process.
    """
    if not (workers.isascii() and workers.isdigit()):
        yield from _by_ray(work, tasks, workers)
    elif workers == "1" or len(tasks) == 1:
        do = work.start(model)
        yield from ((title, do((title, text))) for title, text in tasks.items())
    elif not 0 < int(workers[:4]) <= 256:
        raise InputError(f"workers {workers}: expected 1 to 256 processes.")
    else:
        yield from _by_processes(work, tasks, int(workers))


@lru_cache(maxsize=1)
def _opened(work: TracingWork, threads: int) -> Callable[[Task], str | None]:
    """Return the task function of this process, which opens its model once."""
    torch.set_num_threads(threads)
    return work.start()


def _do(work: TracingWork, threads: int, task: Task) -> Result:
    return task[0], _opened(work, threads)(task)


def _by_processes(work: TracingWork, tasks: Mapping[str, str], workers: int) -> Iterator[Result]:
    """Run tasks by processes of this machine, which share its cores."""
    threads = max(1, (os.cpu_count() or 1) // workers)
    # Spawned, not forked: threads of torch do not survive a fork.
    pool = ProcessPoolExecutor(min(workers, len(tasks)), get_context("spawn"), _end_with_parent)
    remaining = iter(tasks.items())
    try:
        while group := list(islice(remaining, _WAITING)):
            yield from pool.map(partial(_do, work, threads), group)
    except BrokenProcessPool:
        raise DataError(
            f"{work.folder}: a worker was killed, perhaps out of memory. Finished traces are kept: "
            "the same command, with fewer workers, continues."
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _end_with_parent() -> None:
    """End this process as soon as its parent process has ended, even by ``kill -9``.

    A pipe of multiprocessing closes then, on every system; Linux also sends a signal, which works
    even if no thread of ours runs. Ctrl-C is left to the parent.
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


def _by_ray(work: TracingWork, tasks: Mapping[str, str], address: str) -> Iterator[Result]:
    """Run tasks by a Ray cluster, which schedules them and repeats those of a dead process."""
    with optional_package("workers", installing("ray")):
        if find_spec("ray") is None:
            raise ModuleNotFoundError(name="ray")
    with _cluster(address) as ray:
        remote = ray.remote(num_cpus=1, max_retries=_RETRIES)(_do_remotely)
        read = [path for path in (work.folder, Path(work.name)) if path.exists()]
        fixed = (work, __version__, str(Path.cwd()), [str(path.absolute()) for path in read])
        most = 2 * int(ray.cluster_resources().get("CPU", 1))
        running: dict[object, str] = {}
        remaining = iter(tasks.items())
        while True:
            for task in islice(remaining, most - len(running)):
                running[remote.remote(*fixed, task)] = task[0]
            if not running:
                return
            for ended in ray.wait(list(running))[0]:
                title = running.pop(ended)
                try:
                    yield ray.get(ended)
                except ray.exceptions.RayTaskError as error:
                    if isinstance(error.cause, HeadloomError):
                        raise DataError(str(error.cause)) from None
                    raise
                except ray.exceptions.RayError:
                    reason = f"its process died {_RETRIES + 1} times, perhaps out of memory"
                    yield title, reason


def _do_remotely(
    work: TracingWork, version: str, directory: str, paths: list[str], task: Task
) -> Result:
    """Run a task in a process of Ray."""
    machine = socket.gethostname()
    if version != __version__:
        raise DataError(
            f"{machine}: headloom {__version__}, but {version} where the command runs. Install the "
            "same version on all machines."
        )
    for path in paths:
        if not Path(path).exists():
            raise DataError(
                f"{machine}: {path} does not exist on this machine of the Ray cluster. Use folders "
                "that all machines share, with the same paths."
            )
    os.chdir(directory)  # base of relative paths
    return _do(work, 1, task)


@contextmanager
def _cluster(address: str) -> Iterator[ModuleType]:
    """Connect Ray to a cluster while the block runs."""
    os.environ.update(_QUIET)
    if address == "local":
        # The ports of a cluster are open to the network, and allow anyone to run code, unless it
        # requires a token.
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    elif address != "auto":
        _check_answers(address)
    import ray  # reads its environment once
    import ray.exceptions

    options = {"include_dashboard": False, "num_gpus": 0} if address == "local" else {}
    try:
        ray.init(address, log_to_driver=False, logging_level=logging.CRITICAL, **options)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise DataError(
            f"the Ray cluster at {address} cannot be reached: {reason}. Check that `ray status` "
            "works here, on a machine of the cluster, with the same Ray and Python and, if it "
            "requires a token, RAY_AUTH_MODE=token and RAY_AUTH_TOKEN."
        ) from None
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_answers(address: str) -> None:
    """Raise an error where nothing listens at an address; Ray would retry for minutes."""
    host, _, port = address.rpartition(":")
    if "://" in address or not host or not (port.isascii() and port.isdigit()):
        raise InputError(
            f"workers {address}: expected a number of processes of this machine; or a Ray "
            "cluster: HOST:PORT of its head, such as 10.0.0.1:6379, auto, or local."
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error) or "no answer"
        raise DataError(
            f"the Ray cluster at {address} cannot be reached: {reason.lower()}. Check the address, "
            "and that `ray start --head` runs there; --workers local starts one here."
        ) from None
