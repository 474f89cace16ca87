"""The processes that train one model together: what each learns from, and how they agree.

Each step's batch is the same for any number of processes: each holds the whole model and learns
from its share of the batch, and the gradients are summed (Li et al. 2020). `torchrun` or `headloom
train --processes` starts the processes; torch.distributed carries what they send.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from headloom.errors import HeadloomError
from headloom.training.batches import Batch
from headloom.training.validation import Evaluation

#: Where the processes of one machine meet: a folder, so that nothing listens on the network.
MEETING = "HEADLOOM_MEETING"
#: Kept until the process ends. A store that is given up while others use its file waits for them; a
#: group that is given up with DDP's reducer waits for a thread that waits for Python's lock.
_KEPT: list[object] = []
#: How long one waits for the others: reading the data may take the first some time.
PATIENCE = timedelta(minutes=60)


class GroupError(HeadloomError):
    """Another process of the training ended, or has said already what is wrong."""


class Ranks:
    """One of the processes that train a model: alone, or with others, each of which calls the same.

    number: of this process, from 0; count: how many there are.
    """

    def __init__(self, number: int = 0, count: int = 1) -> None:
        self.number, self.count = number, count
        self._launcher = os.getppid()

    @property
    def leader(self) -> bool:
        """Whether this process writes the run's folder and says how it goes."""
        return self.number == 0

    def share(self, batch: Batch, ignored: int) -> Batch:
        """What this process learns from."""
        return batch if self.count == 1 else batch.share(self.number, self.count, ignored)

    def distribute(self, objective: nn.Module) -> nn.Module:
        """The same function, computed on all processes; its model is the same before on all."""
        if self.count == 1:
            return objective
        # Without a look for unused parameters, torch orders the gradients anew after the first
        # step, and a training that goes on would then round other sums than one that never stopped.
        # Buffers are the same everywhere: none is learned from a share of a batch but those of
        # batch norms, which are of the first process then.
        norms = any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in objective.modules())
        # Of a convolution that reads one channel; each process would say it in its first step.
        warnings.filterwarnings("ignore", message="Grad strides do not match bucket view strides")
        with warnings.catch_warnings():  # torch 2.13 has another name for it, which older ones lack
            warnings.filterwarnings("ignore", message=".*broadcast_buffers", category=FutureWarning)
            return nn.parallel.DistributedDataParallel(
                objective, find_unused_parameters=True, broadcast_buffers=norms
            )

    @contextmanager
    def learning(self, objective: nn.Module, last: bool) -> Iterator[None]:
        """Round the passes over a batch; last: of its step, after which gradients are the sums."""
        if last or not isinstance(objective, nn.parallel.DistributedDataParallel):
            yield
        else:
            with objective.no_sync():
                yield

    def total(self, *values: float) -> list[float]:
        """The sum of each value over all processes."""
        if self.count == 1:
            return list(values)
        sums = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(sums)
        return [float(value) for value in sums]

    def validated_by(self, batches: Sequence[Batch]) -> Sequence[Batch]:
        """The batches of the validation data that this process looks at."""
        return batches[self.number :: self.count]

    def pooled(self, part: Evaluation) -> Evaluation:
        """The evaluation of all batches, from those of the processes."""
        if self.count == 1:
            return part
        targets = part.targets
        loss, right, count = self.total(part.loss * targets, part.accuracy * targets, targets)
        return Evaluation(loss / max(count, 1), right / max(count, 1), round(count))

    def random_states(self) -> list[Tensor]:
        """Those of torch's random numbers, of all processes in order."""
        mine = torch.get_rng_state()
        states = [mine] if self.count == 1 else [mine.clone() for _ in range(self.count)]
        if self.count > 1:
            dist.all_gather(states, mine)
        return states

    @contextmanager
    def leader_first(self) -> Iterator[None]:
        """A block that the leader runs before the others do.

        Raises: GroupError: in the others, where the leader could not.
        """
        flag = torch.zeros(1)
        if not self.leader:
            dist.broadcast(flag, src=0)
            if not flag:
                raise GroupError("the first process could not begin.")
        try:
            yield
            flag += 1
        finally:
            if self.leader and self.count > 1:
                dist.broadcast(flag, src=0)

    def align(self, model: nn.Module) -> None:
        """Give all processes the first one's buffers, as the running means of batch norms are."""
        kept = model.state_dict().keys() if self.count > 1 else ()
        for name, buffer in model.named_buffers():
            if name in kept:
                dist.broadcast(buffer, src=0)

    def check_launcher(self) -> None:
        """Raise GroupError where nobody is there any more who started this process."""
        if self.count > 1 and os.getppid() != self._launcher:
            raise GroupError("the process that started this training is gone.")


@contextmanager
def joined() -> Iterator[Ranks]:
    """The processes that were started to train together; alone where this one was not started so.

    Raises: GroupError: another process ended.
    """
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1 or "RANK" not in os.environ:
        yield Ranks()
        return
    if MEETING in os.environ:
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        place = Path(os.environ[MEETING]) / f"attempt-{attempt}"
        store = dist.FileStore(str(place), count)  # type: ignore[attr-defined]
        _KEPT.append(store)
        rank = int(os.environ["RANK"])
        dist.init_process_group("gloo", store=store, rank=rank, world_size=count, timeout=PATIENCE)
    else:
        dist.init_process_group("gloo", timeout=PATIENCE)
    _KEPT.append(dist.group.WORLD)
    try:
        yield Ranks(dist.get_rank(), dist.get_world_size())
        dist.barrier()  # nobody leaves while another still waits for what was sent
    except (dist.DistError, RuntimeError) as error:
        connection = ("gloo", "connection", "connect", "socket", "peer")
        lost = isinstance(error, dist.DistError) or any(
            word in str(error).lower() for word in connection
        )
        if isinstance(error, HeadloomError) or not lost:
            raise
        raise GroupError("another process of this training ended.") from error
    finally:
        dist.destroy_process_group()
