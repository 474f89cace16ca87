"""Checkpoints: everything that a training needs to go on as if it had never stopped."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from headloom.errors import DataError
from headloom.formats.files import JsonObject
from headloom.formats.run import RunFolder
from headloom.formats.tensors import load_tensors, save_tensors
from headloom.training.config import Better
from headloom.training.ranks import Ranks

#: What to do where a checkpoint cannot be written.
_FULL_DISK = (
    "The file before it is whole; free some space, and give the command again: it goes on from its "
    "last checkpoint."
)


@dataclass
class Position:
    """Where a training is.

    step: optimiser steps done.
    epoch, batch: the next batch to learn from.
    best_loss, best_accuracy: of the best validations so far, perhaps not one and the same.
    best_step: when the weights were kept.
    without_better: validations since then.
    seconds: spent training, over all sessions.
    tokens: real tokens learned from.
    """

    step: int = 0
    epoch: int = 0
    batch: int = 0
    best_loss: float | None = None
    best_accuracy: float = 0.0
    best_step: int = 0
    without_better: int = 0
    seconds: float = 0.0
    tokens: int = 0
    losses: list[float] = field(default_factory=list)

    def add_validation(self, loss: float, accuracy: float, rule: Better) -> tuple[bool, bool]:
        """Take in a validation: whether its weights are the best, and whether patience begins anew.

            loss                the weights of the lowest loss are kept; only they renew patience
            loss-and-accuracy   the weights are kept where loss and accuracy are both as good as
                                the best of either before; one of the two renews patience

        Source: "loss-and-accuracy", the program of Velickovic et al. 2018,
        https://github.com/PetarV-/GAT.

        >>> position = Position()
        >>> position.add_validation(2.0, 0.5, "loss-and-accuracy")
        (True, True)
        >>> position.add_validation(1.0, 0.4, "loss-and-accuracy")          # a lower loss alone
        (False, True)
        >>> position.add_validation(1.5, 0.4, "loss-and-accuracy")
        (False, False)
        """
        lowest = math.inf if self.best_loss is None else self.best_loss
        as_right = accuracy >= self.best_accuracy
        self.best_loss = min(loss, lowest)
        self.best_accuracy = max(accuracy, self.best_accuracy)
        if rule == "loss":
            return loss < lowest, loss < lowest
        return loss <= lowest and as_right, loss <= lowest or as_right


@dataclass(frozen=True, eq=False)
class Learner:
    """What a training changes, beside the position and the random numbers.

    model: its parameters and buffers.
    average: the running mean of its parameters, where there is one.
    optimisers: with their moments.
    """

    model: nn.Module
    average: dict[str, Tensor] | None
    optimisers: Sequence[torch.optim.Optimizer]

    @torch.no_grad()
    def update_average(self, decay: float, steps: int) -> None:
        """``average <- decay * average + (1 - decay) * weights``; early on with less decay.

        steps: done, this one too.
        """
        if self.average is not None:
            decay = min(decay, steps / (steps + 10))
            weights = [parameter.detach() for parameter in self.model.parameters()]
            torch._foreach_lerp_(list(self.average.values()), weights, 1 - decay)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """The model has the running mean as its weights, where there is one, in the block."""
        if self.average is None:
            yield
            return
        own = {name: p.detach().clone() for name, p in self.model.named_parameters()}
        self._take(self.average)
        try:
            yield
        finally:
            self._take(own)

    @torch.no_grad()
    def _take(self, weights: dict[str, Tensor]) -> None:
        for name, parameter in self.model.named_parameters():
            parameter.copy_(weights[name])

    def tensors(self) -> dict[str, Tensor]:
        """Everything by its name in a checkpoint; the optimisers' parameters by their numbers."""
        tensors = {f"model/{name}": value for name, value in _weights(self.model).items()}
        tensors |= {f"average/{name}": value for name, value in (self.average or {}).items()}
        for first, optimiser in self._numbered():
            for index, state in optimiser.state_dict()["state"].items():
                for name, value in state.items():
                    tensors[f"optimiser/{first + index}/{name}"] = value
        return tensors

    def _numbered(self) -> Iterator[tuple[int, torch.optim.Optimizer]]:
        """Each optimiser with the number of its first parameter."""
        first = 0
        for optimiser in self.optimisers:
            yield first, optimiser
            first += sum(len(group["params"]) for group in optimiser.param_groups)

    def fill(self, path: Path, tensors: dict[str, Tensor]) -> None:
        """Take the tensors of a checkpoint.

        Raises: DataError: they are of another model. KeyError, ValueError, TypeError, IndexError,
            RuntimeError: nothing that `tensors` has written.
        """
        parts: dict[str, dict[str, Tensor]] = {"model": {}, "average": {}, "optimiser": {}}
        for name, tensor in tensors.items():
            part, _, rest = name.partition("/")
            if part in parts:
                parts[part][rest] = tensor
        _fill(path, self.model, parts["model"])
        average = self.average or {}
        if set(parts["average"]) != set(average):
            raise DataError(
                f"{path}: this checkpoint and the run's config.json disagree about "
                "training.average."
            )
        for name, value in average.items():
            value.copy_(parts["average"][name])
        state: dict[int, dict[str, Tensor]] = {}
        for name, tensor in parts["optimiser"].items():
            index, _, key = name.partition("/")
            state.setdefault(int(index), {})[key] = tensor
        for first, optimiser in self._numbered():
            content = optimiser.state_dict()
            count = sum(len(group["params"]) for group in optimiser.param_groups)
            mine = {i: state[first + i] for i in range(count) if first + i in state}
            optimiser.load_state_dict({**content, "state": mine})


def save_checkpoint(folder: RunFolder, learner: Learner, position: Position, ranks: Ranks) -> None:
    """Write a checkpoint, whole or not at all; every process calls this, the first one writes.

    It holds the weights, their running mean if there is one, the optimisers' moments, torch's
    random states and the position. Batches follow from seed and position, so they need no state.
    """
    states = ranks.random_states()
    if not ranks.leader:
        return
    tensors = learner.tensors()
    if ranks.count == 1:
        tensors["random_state"] = states[0]
    else:
        tensors |= {f"random_state/{rank}": state for rank, state in enumerate(states)}
    save_tensors(folder.checkpoint, tensors, {"position": asdict(position)}, _FULL_DISK)


def load_checkpoint(folder: RunFolder, learner: Learner, seed: int, ranks: Ranks) -> Position:
    """Put everything back as `save_checkpoint` found it, torch's random state too.

    Where another number of processes goes on, their random states are drawn anew from the seed.

    Raises: DataError: damaged, or of another model.
    """
    path = folder.checkpoint
    if not path.exists():
        return Position()
    tensors, notes = load_tensors(path, "checkpoint")
    states = {name: value for name, value in tensors.items() if name.startswith("random_state")}
    mine = "random_state" if ranks.count == 1 else f"random_state/{ranks.number}"
    try:
        learner.fill(path, tensors)
        position = Position(**notes["position"])
        if mine in states and len(states) == ranks.count:
            torch.set_rng_state(states[mine])
        else:
            seed_ranks(seed, position.step, ranks)
    except (KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path}: this checkpoint is of another version of headloom.") from error
    return position


def seed_ranks(seed: int, step: int, ranks: Ranks) -> None:
    """Give each of several processes, or one that goes on from several, numbers of its own."""
    if ranks.count > 1 or step:
        torch.manual_seed(((seed * 1_000_003 + step) * 1_009 + ranks.number + 1) % 2**63)


def save_weights(path: Path, model: nn.Module, notes: JsonObject) -> None:
    """Write a model's weights, whole or not at all."""
    save_tensors(path, _weights(model), notes, _FULL_DISK)


def load_weights(path: Path, model: nn.Module) -> JsonObject:
    """Fill a model with saved weights; returns the notes."""
    tensors, notes = load_tensors(path, "checkpoint")
    _fill(path, model, tensors)
    return notes


def _weights(model: nn.Module) -> dict[str, Tensor]:
    """A model's parameters and buffers, each once: tied ones under their first name."""
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    kept = set(model.state_dict())
    return weights | {name: buffer for name, buffer in model.named_buffers() if name in kept}


@torch.no_grad()
def _fill(path: Path, model: nn.Module, tensors: dict[str, Tensor]) -> None:
    weights = _weights(model)
    if {name: tensor.shape for name, tensor in tensors.items()} != {
        name: tensor.shape for name, tensor in weights.items()
    }:
        raise DataError(
            f"{path}: these weights are of another model than the run's config.json describes."
        )
    for name, value in weights.items():
        value.copy_(tensors[name])
