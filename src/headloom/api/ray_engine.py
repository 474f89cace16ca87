"""Do many tasks by Ray, on one machine or many, whose processes open the model once each.

Ray places the processes and carries texts to them and answers back. A text whose process dies is
done again, alone and a bounded number of times.
"""

from __future__ import annotations

import logging
import math
import os
import secrets
import shutil
import socket
import sys
import tempfile
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

from headloom.api.engines import Do, Result, Task, Work, opened
from headloom.errors import DataError, HeadloomError, InputError, installing, optional_package
from headloom.formats.files import MARK, disk_errors
from headloom.version import __version__

__all__ = ["RayEngine", "cluster"]

#: How often a text is begun where its process dies each time.
_TRIES = 3
#: Texts that a process is given at once, at most: much more would be done again when it dies.
_AT_ONCE = 16
#: Seconds in which a cluster must answer, and have room for one process.
_ANSWER, _PATIENCE = 10.0, 600.0
#: No statistics of use and no questions about them; nothing of processes that die on the console,
#: which is told here; one attempt to reach a cluster (of 40 s), not
#: twenty; what `uv run` installs is not packed and sent.
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_USAGE_STATS_PROMPT_ENABLED": "0",
    "RAY_DEDUP_LOGS": "1",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".*",
    "RAY_SCHEDULER_EVENTS": "0",
    "RAY_NUM_REDIS_GET_RETRIES": "1",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


@dataclass(frozen=True)
class RayEngine:
    """Processes of Ray.

    address: of the cluster: see `cluster`.
    workers: processes; those for which the cluster has no room yet come when it has.
    threads: processors of each.

    Raises: InputError: Ray is not installed.
    """

    address: str
    workers: int = 1
    threads: int = 1

    def __post_init__(self) -> None:
        with optional_package("--ray-address", installing("ray")):
            if find_spec("ray") is None:
                raise ModuleNotFoundError(name="ray")

    def results(
        self, folder: Path, work: Work, tasks: Mapping[str, str], here: Do
    ) -> Iterator[Result]:
        """See `headloom.api.engines.Engine`."""
        size = min(self.workers, len(tasks))
        with cluster(self.address, size * self.threads) as ray, _token(folder) as token:
            # What dies is begun again here: Ray would give up the texts that died with another.
            remote = ray.remote(num_cpus=self.threads, max_retries=0)(_done)
            seen = [str(path.absolute()) for path in (token, *work.reads)]
            fixed = (work, self.threads, __version__, str(Path.cwd()), seen)
            at_once = min(_AT_ONCE, math.ceil(len(tasks) / (4 * size)))
            remaining = iter(tasks.items())
            waiting = deque(iter(lambda: list(islice(remaining, at_once)), []))
            running: dict[Any, list[Task]] = {}
            tries: Counter[str] = Counter()
            while waiting or running:
                while waiting and len(running) < size:
                    some = waiting.popleft()
                    running[remote.remote(*fixed, some)] = some
                ended, _ = ray.wait(list(running), timeout=_PATIENCE)
                if not ended:
                    raise DataError(
                        f"the Ray cluster gave no answer in {_PATIENCE / 60:.0f} minutes: it may "
                        f"have no {self.threads} free processors. Wait until it has, or give fewer "
                        "--threads; what is traced is there, and the same command goes on."
                    )
                some = running.pop(ended[0])
                try:
                    yield from ray.get(ended[0])
                except ray.exceptions.RayTaskError as error:
                    raise (
                        DataError(str(error.cause))
                        if isinstance(error.cause, HeadloomError)
                        else error
                    ) from None
                except ray.exceptions.RayError:
                    tries.update(name for name, _ in some)
                    waiting.extend([task] for task in some if tries[task[0]] < _TRIES)
                    for name, _ in some:
                        if tries[name] >= _TRIES:
                            reason = f"its process died {_TRIES} times, perhaps for want of memory"
                            yield name, reason


def _done(
    work: Work, threads: int, version: str, directory: str, seen: list[str], tasks: list[Task]
) -> list[Result]:
    """Do tasks, in a process of Ray.

    Raises: DataError: its machine has another headloom, or does not see what it must.
    """
    machine = socket.gethostname()
    if version != __version__:
        raise DataError(
            f"{machine}: headloom {__version__}; it is {version} where the command runs. Install "
            f"the "
            "same version on all machines."
        )
    for path in seen:
        if not Path(path).exists():
            raise DataError(
                f"{machine}: this machine of the Ray cluster does not see {path}. Use folders that "
                "all machines share, by the same path."
            )
    os.chdir(directory)  # where relative paths begin
    do = opened(work, threads)
    return [do(task) for task in tasks]


@contextmanager
def _token(folder: Path) -> Iterator[Path]:
    """A file in a folder by which another machine knows that it sees the same one.

    A killed process leaves it; it has the name of a leftover, and is removed like one.
    """
    path = folder / f".shared{MARK}{secrets.token_hex(8)}"
    with disk_errors(folder):
        path.touch()
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


@contextmanager
def cluster(address: str, processors: int) -> Iterator[Any]:
    """Ray, connected to a cluster while the block runs.

    Args:
        address: of its head, HOST:PORT; "auto": that of RAY_ADDRESS, or the one that runs on this
            machine; "local": a cluster of this machine alone, which ends with the block.
        processors: of that cluster.

    Raises: DataError: the cluster cannot be reached, or not be started; InputError: no address.
    """
    own = address == "local"
    os.environ.update(_QUIET)
    if own:
        # The ports of a cluster are open to the network, and who reaches one may run anything,
        # unless it asks for a token. No watch on memory, which would end processes because of what
        # other programs take.
        os.environ.update(RAY_AUTH_MODE="token", RAY_memory_monitor_refresh_ms="0")
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    elif address != "auto":
        _check_answers(address)
    import ray  # reads its environment once
    import ray.exceptions

    # Sockets lie in it, whose paths have 107 characters at most.
    folder = tempfile.mkdtemp(
        prefix="headloom-ray-", dir="/tmp" if own and Path("/tmp").is_dir() else None
    )
    options = {"num_cpus": processors, "num_gpus": 0, "include_dashboard": False,
               "_temp_dir": folder, "object_store_memory": 80 * 2**20}  # fmt: skip
    try:
        try:
            with _silence():
                ray.init(address, log_to_driver=False, logging_level=logging.CRITICAL,
                         **(options if own else {}))  # fmt: skip
        except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            reason = " ".join(str(error).split()).rstrip(".")
            raise DataError(
                f"the Ray cluster at {address} cannot be reached: {reason}. Check that `ray "
                "status` answers here, on a machine of it, with the same versions of Ray and "
                "Python and, where it asks for a token, RAY_AUTH_MODE=token and RAY_AUTH_TOKEN."
            ) from None
        try:
            yield ray
        finally:
            ray.shutdown()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _silence() -> Iterator[None]:
    """Nothing on standard error while the block runs: the C++ side of Ray writes there."""
    sys.stderr.flush()
    ours = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(ours, 2)
        os.close(ours)
        os.close(nowhere)


def _check_answers(address: str) -> None:
    """Raise where nobody listens at an address, which Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if "://" in address or not host or not (port.isascii() and port.isdigit()):
        raise InputError(
            f"--ray-address {address}: expected HOST:PORT of the cluster's head, as 10.0.0.1:6379, "
            "auto, or local. Give the command on a machine of the cluster."
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER).close()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error) or "no answer"
        raise DataError(
            f"the Ray cluster at {address} cannot be reached: {reason.lower()}. Check the address, "
            "and that `ray start --head` runs there; --ray-address local starts one here."
        ) from None
