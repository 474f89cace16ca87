"""Several processes of this machine that train one model, and start again where one dies.

torch's own elastic agent starts and watches them. They meet in a folder and talk on the loopback
interface: nothing listens to the network.

What goes wrong is of two kinds. A process that is killed, or finds that another was, makes the
agent start all again from the last checkpoint. An error that would come again, as data that cannot
be read, is written to the folder, and ends the training in one line.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from headloom.errors import InputError
from headloom.formats.files import disk_errors
from headloom.training.checkpoint import Position
from headloom.training.progress import SilentListener
from headloom.training.ranks import MEETING
from headloom.training.tasks.task import Task

__all__ = ["Attempts", "AttemptsListener", "launch"]

#: Starts without a new checkpoint between them, after which we give up.
ENOUGH = 10
#: How often all processes are started again at most.
RESTARTS = 100
#: Bytes that the folder where processes meet must have room for.
ROOM = 2**16


@dataclass(frozen=True)
class Attempts:
    """What the processes of a training leave for each other, and for the one that started them."""

    folder: Path

    @classmethod
    def of_this_process(cls) -> Attempts | None:
        """Those that this process is part of; None: it was not started by `launch`."""
        return cls(Path(os.environ[MEETING])) if MEETING in os.environ else None

    def end(self, error: str) -> None:
        """Say what is wrong, so that it is not tried again; the first to say it is heard."""
        try:
            with (self.folder / "error").open("x", encoding="utf-8") as file:
                file.write(error)
        except FileExistsError:
            pass

    @property
    def error(self) -> str:
        """What is wrong; empty: nothing."""
        path = self.folder / "error"
        return path.read_text(encoding="utf-8") if path.exists() else ""

    def begin(self) -> None:
        """Count a start. Raises: InputError: there were too many of no avail."""
        starts = self._starts()
        if starts and len(starts) - starts.index(starts[-1]) >= ENOUGH:
            raise InputError(
                f"the processes of this training ended {ENOUGH} times without a new checkpoint, "
                f"at step {starts[-1]:,}. Look for what kills them: memory, most often (lower "
                "training.batch_tokens, or --processes); the last checkpoint is kept."
            )
        self._write([*starts, starts[-1] if starts else 0])

    def begun_at(self, step: int) -> None:
        """Say from where this start goes on."""
        self._write([*self._starts()[:-1], step])

    def _starts(self) -> list[int]:
        """The step from which each start went on."""
        path = self.folder / "starts"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def _write(self, starts: Sequence[int]) -> None:
        (self.folder / "starts").write_text("\n".join(map(str, starts)))


class AttemptsListener(SilentListener):
    """Notes from where each start of a training goes on."""

    def __init__(self, attempts: Attempts) -> None:
        self.attempts = attempts

    def started(self, task: Task, model: nn.Module, position: Position, last: int) -> None:
        """See Listener.started."""
        self.attempts.begun_at(position.step)


def launch(command: Sequence[str], processes: int) -> None:
    """Run a command of headloom in several processes that train together, until they are done.

    Args:
        command: what follows `headloom`.
        processes: how many.

    Raises: InputError: what one of them says that is wrong.
    """
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    with (
        tempfile.TemporaryDirectory(prefix="headloom-processes-") as name,
        _surroundings(Path(name), processes),
    ):
        attempts = Attempts(Path(name))
        with disk_errors(Path(name), "Free some space, or set TMPDIR to another folder."):
            (Path(name) / "room").write_bytes(bytes(ROOM))
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=processes,
            run_id="headloom",
            rdzv_backend="c10d",
            rdzv_endpoint=str(Path(name) / "agent"),
            rdzv_configs={"store_type": "file"},
            max_restarts=RESTARTS,
            local_addr="localhost",
        )
        try:
            elastic_launch(config, sys.executable)("-P", "-m", "headloom", *command)
        except SignalException:
            raise KeyboardInterrupt from None
        except ChildFailedError as error:
            if not attempts.error:
                raise InputError(
                    f"the processes of this training ended {RESTARTS + 1} times; the last exit "
                    f"code is {error.get_first_failure()[1].exitcode}. What they said is above; "
                    "the last checkpoint is kept."
                ) from error
        if attempts.error:
            raise InputError(attempts.error)


@contextmanager
def _surroundings(folder: Path, processes: int) -> Iterator[None]:
    """The environment that processes find, and an agent that says nothing."""
    threads = max(1, (os.cpu_count() or 1) // processes)
    before, disabled = dict(os.environ), logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    os.environ[MEETING] = str(folder)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    # Else the agent opens a port to the network, for processes that do not meet in a folder.
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    # Without a line of torch's that is no news: that each gradient is looked for is decided here.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    try:
        yield
    finally:
        logging.disable(disabled)
        os.environ.clear()
        os.environ.update(before)
