"""Data-parallel training by several processes of this machine, restarted when one dies.

torch's elastic agent starts and watches them. Their rendezvous is a folder, and they communicate on
the loopback interface: no network port is open. When a process is killed, the agent restarts all
from the last checkpoint; a permanent error, such as unreadable data, is written to the folder, and
ends the training in one line.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from headloom.errors import InputError
from headloom.training.ranks import RENDEZVOUS, GroupError

#: Maximum of restarts.
RESTARTS = 25


def launch(command: Sequence[str], processes: int) -> None:
    """Run a headloom command in several processes that train together, until they finish."""
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    if "RANK" in os.environ:
        raise InputError(
            f"--processes {processes}: torchrun has started processes already. Leave it out."
        )
    with (
        tempfile.TemporaryDirectory(prefix="headloom-processes-") as name,
        _environment(Path(name), processes),
    ):
        config = LaunchConfig(
            min_nodes=1, max_nodes=1, nproc_per_node=processes, run_id="headloom",
            rdzv_backend="c10d", rdzv_endpoint=str(Path(name) / "agent"),
            rdzv_configs={"store_type": "file"}, max_restarts=RESTARTS, local_addr="localhost",
        )  # fmt: skip
        error = Path(name) / "error"
        try:
            elastic_launch(config, sys.executable)("-P", "-m", "headloom", *command)
        except SignalException:
            raise KeyboardInterrupt from None
        except ChildFailedError as failed:
            if not error.exists():
                raise InputError(
                    f"the processes of this training ended {RESTARTS + 1} times; the last exit "
                    f"code is {failed.get_first_failure()[1].exitcode}. Their messages are above "
                    "(often out of memory: lower training.batch_tokens); the last checkpoint is "
                    "kept."
                ) from failed
        if error.exists():
            raise InputError(error.read_text(encoding="utf-8"))


@contextmanager
def _environment(folder: Path, processes: int) -> Iterator[None]:
    """Set the environment of the processes, and silence the agent."""
    threads = max(1, (os.cpu_count() or 1) // processes)
    before, disabled = dict(os.environ), logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    os.environ[RENDEZVOUS] = str(folder)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    # Else the agent opens a network port, for processes of other machines.
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    # Hides torch's warning about find_unused_parameters, which is intended here.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    try:
        yield
    finally:
        logging.disable(disabled)
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def one_of_several(one_line: Callable[[BaseException], str | None]) -> Iterator[None]:
    """End this process as one of several: permanent errors are reported once, by the agent.

    one_line: message of an error; None: a bug of headloom.
    """
    leader, folder = os.environ["RANK"] == "0", os.environ.get(RENDEZVOUS)
    try:
        if folder is not None and (Path(folder) / "error").exists():
            raise SystemExit(0)  # a permanent error: no retry
        yield
    except KeyboardInterrupt:
        if folder is None:
            raise
        raise SystemExit(130) from None  # the parent process reports it
    except GroupError:
        if folder is None and leader:
            raise
        raise SystemExit(1) from None
    except Exception as error:
        if folder is None:
            raise
        with suppress(FileExistsError), (Path(folder) / "error").open("x", encoding="utf-8") as out:
            out.write(one_line(error) or f"a bug of headloom: {error!r}.")
        if one_line(error) is None:
            raise
        raise SystemExit(1) from None
