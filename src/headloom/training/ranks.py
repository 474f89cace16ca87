"""Data-parallel training: several processes train one model.

The batch of a step does not depend on the number of processes: each holds the whole model and
trains on its share of the batch, and the gradients are summed (Li et al. 2020). `torchrun` or
`headloom train --processes` starts the processes; torch.distributed connects them.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from headloom.errors import HeadloomError
from headloom.training.batches import Batch
from headloom.training.validation import Evaluation

#: Rendezvous of the processes of one machine: a folder, so that no network port is opened.
RENDEZVOUS = "HEADLOOM_RENDEZVOUS"
#: Objects kept until the process ends. Deleting a store while others use its file blocks; deleting
#: a group with DDP's reducer can deadlock with a thread that waits for Python's lock.
_KEPT: list[object] = []
#: Timeout of collective calls: the first process may need long to read the data.
TIMEOUT = timedelta(minutes=60)


class GroupError(HeadloomError):
    """Error of another process of the training, already reported or lost."""


class Ranks:
    """Process of a training, alone or in a group in which all make the same calls.

    number: rank of this process, from 0; count: number of processes.
    """

    def __init__(self, number: int = 0, count: int = 1) -> None:
        self.number, self.count = number, count
        self._launcher = os.getppid()

    @property
    def leader(self) -> bool:
        """Whether this process writes the run's folder and reports progress."""
        return self.number == 0

    def share(self, batch: Batch, ignored: int) -> Batch:
        """Return the part of a batch that this process trains on."""
        return batch if self.count == 1 else batch.share(self.number, self.count, ignored)

    def distribute(self, objective: nn.Module) -> nn.Module:
        """Wrap the objective so that gradients are averaged over processes (DDP)."""
        if self.count == 1:
            return objective
        # Without find_unused_parameters, torch reorders the gradients after the first step, and a
        # resumed training would then round its sums differently from one that never stopped.
        # Buffers are equal in all processes, except those of batch norms, which the first sets.
        norms = any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in objective.modules())
        # Convolutions of one channel cause this warning in the first step of each process.
        warnings.filterwarnings("ignore", message="Grad strides do not match bucket view strides")
        with warnings.catch_warnings():  # torch 2.13 has renamed broadcast_buffers
            warnings.filterwarnings("ignore", message=".*broadcast_buffers", category=FutureWarning)
            return nn.parallel.DistributedDataParallel(
                objective, find_unused_parameters=True, broadcast_buffers=norms
            )

    @contextmanager
    def learning(self, objective: nn.Module, last: bool) -> Iterator[None]:
        """Wrap a batch's passes; gradients are synchronised after the last batch of a step only."""
        if last or not isinstance(objective, nn.parallel.DistributedDataParallel):
            yield
        else:
            with objective.no_sync():
                yield

    def total(self, *values: float) -> list[float]:
        """Sum each value over all processes."""
        if self.count == 1:
            return list(values)
        sums = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(sums)
        return [float(value) for value in sums]

    def combined(self, part: Evaluation) -> Evaluation:
        """Combine the evaluations of all processes."""
        if self.count == 1:
            return part
        targets = part.targets
        loss, right, count = self.total(part.loss * targets, part.accuracy * targets, targets)
        return Evaluation(loss / max(count, 1), right / max(count, 1), round(count))

    def random_states(self) -> list[Tensor]:
        """Gather torch's random states of all processes, in order."""
        mine = torch.get_rng_state()
        states = [mine] if self.count == 1 else [mine.clone() for _ in range(self.count)]
        if self.count > 1:
            dist.all_gather(states, mine)
        return states

    @contextmanager
    def leader_first(self) -> Iterator[None]:
        """Run a block in the leader before the other processes.

        Raises: GroupError: in the others, where the leader failed.
        """
        flag = torch.zeros(1)
        if not self.leader:
            dist.broadcast(flag, src=0)
            if not flag:
                raise GroupError("the first process failed to start.")
        try:
            yield
            flag += 1
        finally:
            if self.leader and self.count > 1:
                dist.broadcast(flag, src=0)

    def align(self, model: nn.Module) -> None:
        """Copy the first process's buffers to all, such as running means of batch norms."""
        kept = model.state_dict().keys() if self.count > 1 else ()
        for name, buffer in model.named_buffers():
            if name in kept:
                dist.broadcast(buffer, src=0)

    def check_launcher(self) -> None:
        """Raise a GroupError where the parent process has ended."""
        if self.count > 1 and os.getppid() != self._launcher:
            raise GroupError("the process that started this training has ended.")


@contextmanager
def join_group() -> Iterator[Ranks]:
    """Join the process group of a launcher; yield a single process where there is none.

    Raises: GroupError: another process has ended.
    """
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1 or "RANK" not in os.environ:
        yield Ranks()
        return
    if RENDEZVOUS in os.environ:
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        place = Path(os.environ[RENDEZVOUS]) / f"attempt-{attempt}"
        store = dist.FileStore(str(place), count)  # type: ignore[attr-defined]
        _KEPT.append(store)
        rank = int(os.environ["RANK"])
        dist.init_process_group("gloo", store=store, rank=rank, world_size=count, timeout=TIMEOUT)
    else:
        dist.init_process_group("gloo", timeout=TIMEOUT)
    _KEPT.append(dist.group.WORLD)
    try:
        yield Ranks(dist.get_rank(), dist.get_world_size())
        dist.barrier()  # no process leaves while another still waits for its data
    except (dist.DistError, RuntimeError) as error:
        connection = ("gloo", "connection", "connect", "socket", "peer")
        lost = isinstance(error, dist.DistError) or any(
            word in str(error).lower() for word in connection
        )
        if isinstance(error, HeadloomError) or not lost:
            raise
        raise GroupError("another process of this training has ended.") from error
    finally:
        dist.destroy_process_group()
