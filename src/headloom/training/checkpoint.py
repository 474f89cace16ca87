"""Checkpoints: everything that a training needs to go on as if it had never stopped."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headloom.errors import DataError
from headloom.formats.files import JsonObject
from headloom.formats.run import RunFolder
from headloom.formats.shards import Shards
from headloom.formats.tensors import load_tensors, save_tensors
from headloom.training.parts import placed
from headloom.training.ranks import Ranks
from headloom.training.sharded import load_shards, save_shards

__all__ = [
    "Learner",
    "Position",
    "draw_anew",
    "load_checkpoint",
    "load_weights",
    "save_checkpoint",
    "save_weights",
]

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


def _named_optimisers(optimisers: Sequence[torch.optim.Optimizer]) -> dict[str, Tensor]:
    """The optimisers' tensors by parameter and name; the parameters are numbered through."""
    return {
        f"optimiser/{first + index}/{name}": value
        for first, optimiser in _numbered(optimisers)
        for index, state in optimiser.state_dict()["state"].items()
        for name, value in state.items()
    }


def _numbered(
    optimisers: Sequence[torch.optim.Optimizer],
) -> Iterator[tuple[int, torch.optim.Optimizer]]:
    """Each optimiser with the number of its first parameter."""
    first = 0
    for optimiser in optimisers:
        yield first, optimiser
        first += sum(len(group["params"]) for group in optimiser.param_groups)


def _parameters(optimisers: Sequence[torch.optim.Optimizer]) -> list[Tensor]:
    """The parameters in the order of their numbers."""
    return [p for o in optimisers for group in o.param_groups for p in group["params"]]


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

    def tensors(self) -> dict[str, Tensor]:
        """Everything by its name in a checkpoint."""
        tensors = {f"model/{name}": value for name, value in _weights(self.model).items()}
        tensors |= {f"average/{name}": value for name, value in (self.average or {}).items()}
        return tensors | _named_optimisers(self.optimisers)


def save_checkpoint(folder: RunFolder, learner: Learner, position: Position, ranks: Ranks) -> None:
    """Write a checkpoint, whole or not at all.

    It holds the weights, their running mean if there is one, the optimisers' moments, torch's
    random states and the position. Batches follow from seed and position, so they need no state.
    Every process that trains the model calls this.
    """
    states = ranks.random_states()
    notes: JsonObject = {"position": asdict(position)}
    if ranks.sharded:
        tensors = {**learner.tensors(), f"random_state/{ranks.number}": states[ranks.number]}
        save_shards(Shards.of_step(folder.shards, position.step), tensors, notes, ranks)
        if ranks.leader:
            folder.checkpoint.unlink(missing_ok=True)
    elif ranks.leader:
        tensors = learner.tensors()
        if ranks.count == 1:
            tensors["random_state"] = states[0]
        else:
            tensors |= {f"random_state/{rank}": state for rank, state in enumerate(states)}
        save_tensors(folder.checkpoint, tensors, notes, _FULL_DISK)
        shutil.rmtree(folder.shards, ignore_errors=True)


def load_checkpoint(folder: RunFolder, learner: Learner, seed: int, ranks: Ranks) -> Position:
    """Put everything back as `save_checkpoint` found it, torch's random state too.

    Where another number of processes goes on, their random states are drawn anew from the seed.

    Raises: DataError: damaged, or of another model.
    """
    last = folder.last_checkpoint()
    if last is None:
        return Position()
    path = last.path if isinstance(last, Shards) else last
    if isinstance(last, Shards):
        last.check(ranks.number, ranks.count)
        notes = last.notes()
        tensors = load_shards(last, lambda name: _room(name, learner), ranks.number)
    else:
        tensors, notes = load_tensors(last, "checkpoint")
    _put_back(path, tensors, learner)
    try:
        position = _position(notes["position"])
        states = {name: value for name, value in tensors.items() if name.startswith("random_state")}
        name = "random_state" if ranks.count == 1 else f"random_state/{ranks.number}"
        if name in states and (isinstance(last, Shards) or len(states) == ranks.count):
            torch.set_rng_state(states[name])
        else:
            draw_anew(seed, position.step, ranks)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise _of_another_version(path) from error
    return position


def draw_anew(seed: int, step: int, ranks: Ranks) -> None:
    """Give each of several processes, or one that goes on from several, numbers of its own."""
    if ranks.count > 1 or step:
        torch.manual_seed(((seed * 1_000_003 + step) * 1_009 + ranks.number + 1) % 2**63)


def _room(name: str, learner: Learner) -> Tensor | None:
    """Where a tensor of a sharded checkpoint is to be read to; None: it is as large as there."""
    part, _, rest = name.partition("/")
    if part == "model":
        return _weights(learner.model).get(rest)
    if part == "average":
        return (learner.average or {}).get(rest)
    if part == "optimiser":
        parameters, (index, _, key) = _parameters(learner.optimisers), rest.partition("/")
        if key != "step" and index.isdecimal() and int(index) < len(parameters):
            return torch.zeros_like(parameters[int(index)])
    return None


def _put_back(path: Path, tensors: dict[str, Tensor], learner: Learner) -> None:
    """Fill a learner with the tensors of a checkpoint."""
    parts: dict[str, dict[str, Tensor]] = {"model": {}, "average": {}, "optimiser": {}}
    for name, tensor in tensors.items():
        part, _, rest = name.partition("/")
        if part in parts:
            parts[part][rest] = tensor
    _fill(path, learner.model, parts["model"])
    average, optimisers = learner.average or {}, learner.optimisers
    if set(parts["average"]) != set(average):
        raise DataError(
            f"{path}: this checkpoint and the run's config.json disagree about training.average."
        )
    try:
        for name, value in average.items():
            value.copy_(placed(parts["average"][name], value))
        parameters = _parameters(optimisers)
        state: dict[int, dict[str, Tensor]] = {}
        for name, tensor in parts["optimiser"].items():
            index, _, key = name.partition("/")
            state.setdefault(int(index), {})[key] = placed(tensor, parameters[int(index)])
        for first, optimiser in _numbered(optimisers):
            whole: dict[str, Any] = optimiser.state_dict()
            count = sum(len(group["params"]) for group in optimiser.param_groups)
            mine = {i: state[first + i] for i in range(count) if first + i in state}
            optimiser.load_state_dict({**whole, "state": mine})
    except (KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
        raise _of_another_version(path) from error


def _of_another_version(path: Path) -> DataError:
    return DataError(f"{path}: this checkpoint is of another version of headloom.")


def _position(notes: JsonObject) -> Position:
    """A position from the notes of a checkpoint. Raises: ValueError, TypeError: it is none."""
    position = Position(**notes)
    numbers = asdict(position)
    losses = numbers.pop("losses")
    if position.best_loss is None:
        del numbers["best_loss"]
    real = ("seconds", "best_loss", "best_accuracy")
    whole = [value for name, value in numbers.items() if name not in real]
    if (
        not isinstance(losses, list)
        or any(type(value) not in (int, float) for value in (*losses, *numbers.values()))
        or any(type(value) is not int or not 0 <= value < 2**53 for value in whole)
    ):
        raise ValueError("a position of numbers")
    return position


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


def _fill(path: Path, model: nn.Module, tensors: dict[str, Tensor]) -> None:
    weights = _weights(model)
    if {name: tensor.shape for name, tensor in tensors.items()} != {
        name: tensor.shape for name, tensor in weights.items()
    }:
        raise DataError(
            f"{path}: these weights are of another model than the run's config.json describes."
        )
    with torch.no_grad():
        for name, value in weights.items():
            value.copy_(placed(tensors[name], value))
