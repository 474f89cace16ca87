"""Checkpoints: everything that a training needs to go on as if it had never stopped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from weft.errors import DataError
from weft.formats.files import JsonObject
from weft.formats.tensors import load_tensors, save_tensors

__all__ = ["Position", "load_checkpoint", "load_weights", "save_checkpoint", "save_weights"]

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


def _flat_optimisers(optimisers: Sequence[torch.optim.Optimizer]) -> dict[str, Tensor]:
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


def save_checkpoint(
    path: Path,
    model: nn.Module,
    average: dict[str, Tensor] | None,
    optimisers: Sequence[torch.optim.Optimizer],
    position: Position,
) -> None:
    """Write a checkpoint, whole or not at all.

    It holds the weights, their running mean if there is one, the optimisers' moments, torch's
    random state and the position. Batches follow from seed and position, so they need no state.
    """
    tensors = {f"model/{name}": value for name, value in _weights(model).items()}
    tensors |= {f"average/{name}": value for name, value in (average or {}).items()}
    tensors |= _flat_optimisers(optimisers)
    tensors["random_state"] = torch.get_rng_state()
    save_tensors(path, tensors, {"position": asdict(position)}, _FULL_DISK)


def load_checkpoint(
    path: Path,
    model: nn.Module,
    average: dict[str, Tensor] | None,
    optimisers: Sequence[torch.optim.Optimizer],
) -> Position:
    """Put everything back as `save_checkpoint` found it, torch's random state too."""
    tensors, notes = load_tensors(path, "checkpoint")
    parts: dict[str, dict[str, Tensor]] = {"model": {}, "average": {}, "optimiser": {}}
    for name, tensor in tensors.items():
        part, _, rest = name.partition("/")
        if part in parts:
            parts[part][rest] = tensor
    _fill(path, model, parts["model"])
    if set(parts["average"]) != set(average or {}):
        raise DataError(
            f"{path}: this checkpoint and the run's config.json disagree about training.average."
        )
    try:
        for name, value in (average or {}).items():
            value.copy_(parts["average"][name])
        state: dict[int, dict[str, Tensor]] = {}
        for name, tensor in parts["optimiser"].items():
            index, _, key = name.partition("/")
            state.setdefault(int(index), {})[key] = tensor
        for first, optimiser in _numbered(optimisers):
            whole: dict[str, Any] = optimiser.state_dict()
            count = sum(len(group["params"]) for group in optimiser.param_groups)
            mine = {i: state[first + i] for i in range(count) if first + i in state}
            optimiser.load_state_dict({**whole, "state": mine})
        torch.set_rng_state(tensors["random_state"])
        return _position(notes["position"])
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"{path}: this checkpoint is of another version of weft.") from error


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
            value.copy_(tensors[name])
