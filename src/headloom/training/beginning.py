"""How a training begins, or goes on: its folder, locked, and its task with the data."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import torch
from torch import nn

from headloom.errors import DataError, InputError
from headloom.formats.files import JsonObject
from headloom.formats.run import Completed, RunFolder
from headloom.formats.shards import remove_unfinished
from headloom.formats.tensors import load_tensors
from headloom.models.configuration import Architecture
from headloom.training.config import RunConfig, check_config
from headloom.training.data import DataDescription
from headloom.training.ranks import Ranks
from headloom.training.tasks import begin_model, build_model, make_task
from headloom.training.tasks.task import Task

__all__ = ["begin", "check_best", "completed_in"]

_PUT_BACK = "Put a copy back, or train again in another folder with --run."


def begin(config: RunConfig, path: Path, ranks: Ranks, stack: ExitStack) -> tuple[RunFolder, Task]:
    """The folder of a run, which is this training's until the stack ends, and its task.

    Of several processes the first makes the folder, and the vocabulary; the others read them.

    Raises: HeadloomError: the data cannot be used, the folder holds another run or is damaged.
    """
    if ranks.count > 1 and not config.task.divisible:
        raise InputError(
            f"task.kind {config.task.kind!r}: a graph is learned as a whole, by one process. "
            "Leave --processes out."
        )
    if ranks.leader:
        with ranks.led():
            folder, task = _lead(config, path, ranks, stack)
            if config.task.place is not None:
                folder.keep_place(Path(getattr(config.task, config.task.place)))
            return folder, task
    ranks.follow()
    if not (path / "run.json").exists():
        raise InputError(
            f"{path}: process {ranks.number} of {ranks.count} does not see this folder, which "
            "process 0 has made. Choose one that all machines share, with --run-folder."
        )
    folder = RunFolder.open(path)
    return folder, make_task(config, DataDescription.load(folder))


def _check_shareable(model: nn.Module, ranks: Ranks) -> None:
    """Raise an InputError where a model has what processes cannot share."""
    single = [name for name, parameter in model.named_parameters() if parameter.dim() == 0]
    if ranks.sharded and single:
        raise InputError(
            f'training.parallel = "fsdp": {single[0]} is a single number, of which there are no '
            'shares. Choose "ddp".'
        )


def _check_length(task: Task, model: nn.Module) -> None:
    """Raise an InputError where the positions of a model end before the longest text does."""
    architecture = getattr(model, "architecture", None)
    room = architecture.room if isinstance(architecture, Architecture) else None
    if room is not None and (longest := task.longest()) > room:
        raise InputError(
            f"model.max_length is {room}, the longest text {task.has} {longest} tokens. Set "
            f"model.max_length to {longest} or more, or {task.shorter}."
        )


def _lead(config: RunConfig, path: Path, ranks: Ranks, stack: ExitStack) -> tuple[RunFolder, Task]:
    content = config.model_dump(mode="json")
    if not (path / "run.json").exists():
        # Read the data and try the model before anything is made on disk: a mistake there leaves
        # nothing behind.
        task = make_task(config)
        with torch.no_grad():
            trial = build_model(config, task.description)
            begin_model(config, task, trial)
            _check_shareable(trial, ranks)
            _check_length(task, trial)
            trial(**task.probe().inputs)
        stack.enter_context(RunFolder.training_lock(path))
        if not (path / "run.json").exists():
            folder = RunFolder.create_or_open(path, content)
            try:
                task.description.save(folder)
            except BaseException:
                # Without its data it has not begun: where the lock ends, what was made is removed.
                (path / "run.json").unlink(missing_ok=True)
                raise
            return folder, task
        # Another process has begun the same run meanwhile, and ended.
    else:
        stack.enter_context(RunFolder.training_lock(path))
    folder = RunFolder.create_or_open(path, content, completed_in(path))
    _check_finished(folder)
    remove_unfinished(folder.shards)
    # Before the first checkpoint nothing depends on what is there, which may be unfinished.
    known = DataDescription.load(folder) if folder.has_checkpoint else None
    task = make_task(config, known)
    if known is None or task.description.tokens is not known.tokens:
        task.description.save(folder)
    return folder, task


def completed_in(path: Path) -> Completed:
    """Gives the configuration in a run's folder the defaults of keys that came after it."""

    def completed(saved: JsonObject) -> JsonObject:
        return check_config(saved, str(path / "config.json")).model_dump(mode="json")

    return completed


def check_best(folder: RunFolder, step: int) -> None:
    """Raise a DataError unless the best weights, which were kept at a step, are still there."""
    what = "damaged" if folder.best.exists() else "missing"
    try:
        load_tensors(folder.best, "checkpoint")
    except DataError:
        raise DataError(
            f"{folder.best}: {what}; the run's best weights (step {step:,}) were there. {_PUT_BACK}"
        ) from None


def _check_finished(folder: RunFolder) -> None:
    """Raise a DataError where a run says that it is finished, and its checkpoint is gone."""
    if folder.state == "finished" and not folder.has_checkpoint:
        raise DataError(
            f"{folder.path}: this run is finished, but its {folder.checkpoint.name} is missing. "
            f"{_PUT_BACK}"
        )
