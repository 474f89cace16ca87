"""Checkpoints: the full state that resumes a training exactly."""

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

#: Advice where a checkpoint cannot be written.
_FULL_DISK = (
    "The previous file is intact; free some space and run the command again: it resumes from the "
    "last checkpoint."
)


@dataclass
class Position:
    """Position of a training.

    step: optimiser steps done.
    epoch, batch: of the next batch.
    best_loss, best_accuracy: best so far, possibly of different validations.
    best_step: step of the kept weights.
    without_better: validations since then.
    seconds: of training, over all sessions.
    tokens: trained on, without padding.
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
        """Add a validation; return whether its weights are the best, and whether patience restarts.

            loss                a lower loss is better, and restarts patience
            loss-and-accuracy   better where loss and accuracy both equal or improve on their best;
                                either of them restarts patience

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
    """State of a training beside the position and the random numbers.

    model: its parameters and buffers.
    average: EMA of its parameters, if configured.
    optimisers: with their moments.
    """

    model: nn.Module
    average: dict[str, Tensor] | None
    optimisers: Sequence[torch.optim.Optimizer]

    @torch.no_grad()
    def update_average(self, decay: float, steps: int) -> None:
        """Update the EMA: ``average <- decay * average + (1 - decay) * weights``.

        The decay is lower in the first steps. steps: done, including this one.
        """
        if self.average is not None:
            decay = min(decay, steps / (steps + 10))
            weights = [parameter.detach() for parameter in self.model.parameters()]
            torch._foreach_lerp_(list(self.average.values()), weights, 1 - decay)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Replace the model's weights by their EMA, if there is one, inside the block."""
        if self.average is None:
            yield
            return
        weights = {name: p.detach().clone() for name, p in self.model.named_parameters()}
        self._set(self.average)
        try:
            yield
        finally:
            self._set(weights)

    @torch.no_grad()
    def _set(self, weights: dict[str, Tensor]) -> None:
        for name, parameter in self.model.named_parameters():
            parameter.copy_(weights[name])

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors by their checkpoint names; optimiser states by parameter number."""
        tensors = {f"model/{name}": value for name, value in _weights(self.model).items()}
        tensors |= {f"average/{name}": value for name, value in (self.average or {}).items()}
        for first, optimiser in self._numbered():
            for index, state in optimiser.state_dict()["state"].items():
                for name, value in state.items():
                    tensors[f"optimiser/{first + index}/{name}"] = value
        return tensors

    def _numbered(self) -> Iterator[tuple[int, torch.optim.Optimizer]]:
        """Yield each optimiser with the number of its first parameter."""
        first = 0
        for optimiser in self.optimisers:
            yield first, optimiser
            first += sum(len(group["params"]) for group in optimiser.param_groups)

    def fill(self, path: Path, tensors: dict[str, Tensor]) -> None:
        """Restore the tensors of a checkpoint.

        Raises: DataError: they are of another model. KeyError, ValueError, TypeError, IndexError,
            RuntimeError: not written by `tensors`.
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
                f"{path}: this checkpoint and the run's config.json have different "
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
    """Write a checkpoint atomically; every process calls this, the first one writes.

    It holds the weights, their EMA if configured, the optimisers' moments, torch's random states
    and the position. Batches follow from seed and position, so they need no state.
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
    """Restore the state saved by `save_checkpoint`, including torch's random state.

    With another number of processes, their random states are seeded again.

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
    """Seed torch per process, for several processes or after their number has changed."""
    if ranks.count > 1 or step:
        torch.manual_seed(((seed * 1_000_003 + step) * 1_009 + ranks.number + 1) % 2**63)


def save_weights(path: Path, model: nn.Module, notes: JsonObject) -> None:
    """Write a model's weights atomically."""
    save_tensors(path, _weights(model), notes, _FULL_DISK)


def load_weights(path: Path, model: nn.Module) -> JsonObject:
    """Load saved weights into a model; return the notes."""
    tensors, notes = load_tensors(path, "checkpoint")
    _fill(path, model, tensors)
    return notes


def _weights(model: nn.Module) -> dict[str, Tensor]:
    """Return a model's parameters and buffers; tied ones once, under their first name."""
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
