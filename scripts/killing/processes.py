"""Commands of headloom as forks of this process, and what is still alive of them."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: In the environment of this process and of all that it starts, and they start.
MARK = "HEADLOOM_KILL_NINE"


def forked(words: list[str], work: Path, log: Path, kill_at: int | None = None) -> int:
    """The process of a command that runs in `work`.

    log: its output; as it ends, the file beside it with .writes says how often it wrote.
    kill_at: the number of the write before which it kills itself.
    """
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        for stream in (1, 2):
            os.dup2(descriptor, stream)
        os.chdir(work)
        count = _count_writes(work, kill_at)
        from headloom.cli import main

        try:
            main(words)
            code = 0
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        log.with_suffix(".writes").write_text(str(count[0]))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _count_writes(work: Path, kill_at: int | None) -> list[int]:
    """Count what a process does to files in `work` from now on; kill it at one of those."""
    count = [0]

    def another() -> None:
        count[0] += 1
        if count[0] == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.chmod"):
            path, writes = arguments[0], True
        elif event == "open":
            path, writes = arguments[0], bool((arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR))
        else:
            return
        if writes and isinstance(path, str | os.PathLike) and Path(path).is_relative_to(work):
            another()

    synced = os.fsync

    def sync(descriptor: Any) -> None:
        another()
        synced(descriptor)

    os.fsync = sync
    sys.addaudithook(hook)
    return count


def living() -> list[int]:
    """The processes with this one's mark, but for itself; those that have ended count not."""
    mark = f"{MARK}={os.environ[MARK]}".encode()
    processes = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    processes.append(int(entry.name))
            except OSError:
                continue  # it has ended, or is another user's
    return processes


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether a condition came true in time."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.002)
    return True


def exit_of(child: int) -> int | None:
    """The exit status of a child that has ended; None: it runs. It stays to be waited for."""
    state = os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    return None if state is None else state.si_status


def is_worker(process: int) -> bool:
    """Whether a process does the work of a corpus."""
    try:
        return b"--multiprocessing-fork" in Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return False
