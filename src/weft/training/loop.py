"""The training loop: from random matrices, by back-propagation, to learned ones.

The result depends on the configuration and the seed alone: a run that was killed and started
again ends with the same bits as one that never stopped.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from weft.errors import DataError, InputError
from weft.formats.files import JsonObject
from weft.formats.history import History, is_snapshot_step, write_snapshot
from weft.formats.run import RunFolder
from weft.formats.tensors import load_tensors
from weft.mechanism.linear import products
from weft.mechanism.watching import layers_of
from weft.models.predictor import Predictor
from weft.training.batches import Batch
from weft.training.checkpoint import Position, load_checkpoint, save_checkpoint, save_weights
from weft.training.config import RunConfig, TrainingConfig, check_config
from weft.training.data import DataDescription
from weft.training.loss import predictor_loss
from weft.training.memory import memory_errors
from weft.training.optimisation import learning_rate
from weft.training.optimisers import make_optimisers
from weft.training.recording import snapshot
from weft.training.stopping import judged
from weft.training.tasks import build_model, make_task
from weft.training.tasks.task import Task
from weft.training.validation import evaluate_batches

__all__ = ["Listener", "TrainingResult", "train"]

#: Steps between two lines of training loss in metrics.jsonl.
REPORT_EVERY = 20


class Listener(Protocol):
    """Who is told how a training goes."""

    def started(self, task: Task, model: nn.Module, position: Position, last: int) -> None:
        """The data are read, the model is drawn or loaded."""

    def stepped(self, position: Position, loss: float, rate: float) -> None:
        """A step was done; loss: mean of its tokens, in nats, smoothed labels included."""

    def validated(self, position: Position, report: JsonObject, better: bool) -> None:
        """The validation data were looked at."""

    def reported(self, report: JsonObject) -> None:
        """A line was added to metrics.jsonl."""


@dataclass(frozen=True)
class TrainingResult:
    """How a training ended.

    seconds: of training, over all sessions, setting up left out.
    """

    folder: RunFolder
    steps: int
    seconds: float
    tokens: int
    best_loss: float
    best_step: int
    reason: str


def train(config: RunConfig, path: Path, listener: Listener) -> TrainingResult:
    """Train a run to its end, or go on with it.

    Args:
        config: what to learn and how.
        path: the run's folder; made if it is not there, gone on with if it is, also where it is
            finished and max_steps, max_epochs or patience are larger now.
        listener: told how it goes.

    Raises: WeftError: the data cannot be used, the folder holds another run or is damaged.
    """
    content = config.model_dump(mode="json")
    going_on = (path / "run.json").exists()
    if not going_on:
        # Read the data and try the model before anything is made on disk: a mistake there leaves
        # nothing behind.
        task = make_task(config)
        with torch.no_grad():
            trial = build_model(config, task.description)
            task.initialise(trial)
            trial(**task.probe().inputs)
        with RunFolder.training_lock(path):
            folder = RunFolder.create_or_open(path, content)
            task.description.save(folder)
            return _Training(config, folder, task, listener).run()
    with RunFolder.training_lock(path):
        folder = RunFolder.create_or_open(path, content, _completed)
        _check_finished(folder)
        # Before the first checkpoint nothing depends on what is there, which may be unfinished.
        known = DataDescription.load(folder) if folder.checkpoint.exists() else None
        task = make_task(config, known)
        if known is None:
            task.description.save(folder)
        training = _Training(config, folder, task, listener)
        folder.extend(content, _completed)
        return training.run()


def _completed(saved: JsonObject) -> JsonObject:
    """A configuration on disk with the defaults of keys that came after it was written."""
    return check_config(saved, "config.json").model_dump(mode="json")


def _check_finished(folder: RunFolder) -> None:
    """Raise a DataError where a run says that it is finished, and its weights are gone."""
    if folder.state != "finished":
        return
    remedy = "Put a copy back, or train again in another folder with --run."
    for path in (folder.checkpoint, folder.best):
        if not path.exists():
            raise DataError(
                f"{folder.path}: this run is finished, but its {path.name} is missing. {remedy}"
            )
    try:
        load_tensors(folder.best, "checkpoint")
    except DataError:
        raise DataError(
            f"{folder.path}: this run is finished, but its {folder.best.name} is damaged. {remedy}"
        ) from None


class _Training:
    """One session of a training: what the steps share."""

    def __init__(
        self, config: RunConfig, folder: RunFolder, task: Task, listener: Listener
    ) -> None:
        self.settings: TrainingConfig = config.training
        self.folder, self.task, self.listener = folder, task, listener
        torch.manual_seed(self.settings.seed)
        self.model: Predictor = build_model(config, task.description)
        if not folder.checkpoint.exists():
            task.initialise(self.model)
        #: Whether a history is kept: of the layers that have W_Q, W_K, W_V and W_O.
        self.follows = self.settings.history and bool(layers_of(self.model))
        self.average = (
            {name: value.detach().clone() for name, value in self.model.named_parameters()}
            if self.settings.average
            else None
        )
        self.optimisers = make_optimisers(self.model, self.settings)
        self.probe = task.probe()
        self.validation = task.validation(self.settings.batch_tokens)
        self.position = Position()
        if folder.checkpoint.exists():
            self.position = load_checkpoint(
                folder.checkpoint, self.model, self.average, self.optimisers
            )

    def run(self) -> TrainingResult:
        """Step until the end. Raises: InputError: the memory, or numbers that are none, end it."""
        with memory_errors(self.settings, self.folder, self.position):
            return self._run()

    def _run(self) -> TrainingResult:
        settings, position = self.settings, self.position
        self._rewind()
        self.listener.started(self.task, self.model, position, settings.max_steps)
        self._clock = time.perf_counter()
        reason = self._reason_to_stop()
        if not reason:
            self.model.train()
            for group in self._groups():
                self._step(group)
                stopping = self._reason_to_stop()
                if stopping or position.step % settings.validate_every == 0:
                    self._validate()
                    stopping = stopping or self._reason_to_stop()
                if stopping or position.step % settings.checkpoint_every == 0:
                    self._checkpoint()
                if stopping:
                    reason = stopping
                    break
        self._finish()
        if position.best_loss is None:
            raise RuntimeError("a training ended without a validation")
        return TrainingResult(
            self.folder,
            position.step,
            position.seconds,
            position.tokens,
            position.best_loss,
            position.best_step,
            reason,
        )

    def _rewind(self) -> None:
        """Forget what was written after the checkpoint, before the run goes on from there."""
        position, history = self.position, History(self.folder.history)
        self.folder.rewind_metrics(position.step)
        history.rewind(position.step)
        # The snapshot that ended a run which now goes on: a run planned so long has none there.
        growth = self.settings.history_growth
        if self.folder.state != "finished" and not is_snapshot_step(position.step, growth):
            history.remove(position.step)

    def _reason_to_stop(self) -> str:
        settings, position = self.settings, self.position
        if position.step >= settings.max_steps:
            return "max_steps"
        if settings.max_epochs is not None and position.epoch >= settings.max_epochs:
            return "max_epochs"
        if settings.patience is not None and position.without_better >= settings.patience:
            return "patience"
        return ""

    def _groups(self) -> Iterator[list[Batch]]:
        """The batches of each step, from the position on; the position moves along."""
        position, accumulate = self.position, self.settings.accumulate
        while True:
            plans = self.task.plan_epoch(position.epoch, self.settings.batch_tokens)
            while position.batch < len(plans):
                chosen = plans[position.batch : position.batch + accumulate]
                position.batch += len(chosen)
                if position.batch >= len(plans):
                    # The step that ends an epoch leaves the position at the next one's start.
                    position.epoch, position.batch = position.epoch + 1, 0
                    yield [self.task.batch(plan) for plan in chosen]
                    break
                yield [self.task.batch(plan) for plan in chosen]

    def _step(self, group: list[Batch]) -> None:
        settings, position, model = self.settings, self.position, self.model
        count = sum(int((batch.targets != self.task.ignored).sum()) for batch in group)
        loss = 0.0
        for batch in group:
            part = self._loss(batch, settings.label_smoothing) / count
            torch.autograd.backward(part)
            loss += float(part.detach())
        self._check_finite("loss", loss)
        if self.follows and is_snapshot_step(position.step, settings.history_growth):
            self._snapshot(loss, gradients=True)
        norm = (
            nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
            if settings.clip_norm
            else None
        )
        if norm is not None:
            self._check_finite("gradient's norm", float(norm))
        for optimiser in self.optimisers:
            for parameters in optimiser.param_groups:
                parameters["lr"] = self._rate(parameters["peak"])
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        rate = self._rate(settings.peak_learning_rate)
        if self.average is not None:
            self._update_average()

        position.step += 1
        position.tokens += sum(batch.tokens for batch in group)
        now = time.perf_counter()
        position.seconds += now - self._clock
        self._clock = now
        position.losses.append(loss)
        if position.step % REPORT_EVERY == 0:
            self._report(
                {
                    "step": position.step,
                    "epoch": position.epoch,
                    "loss": sum(position.losses) / len(position.losses),
                    "learning_rate": rate,
                    "gradient_norm": None if norm is None else float(norm),
                    "tokens": position.tokens,
                    "seconds": round(position.seconds, 3),
                }
            )
            position.losses.clear()
        self.listener.stepped(position, loss, rate)

    def _rate(self, peak: float) -> float:
        """The learning rate of this step."""
        settings = self.settings
        return learning_rate(
            self.position.step,
            peak=peak,
            warmup=settings.warmup,
            last=settings.max_steps,
            schedule=settings.schedule,
            floor=settings.floor,
        )

    def _loss(self, batch: Batch, smoothing: float) -> Tensor:
        """Summed over the real targets only: nothing is scored for padding."""
        real = batch.targets != self.task.ignored
        with products(self.settings.products):
            outputs = self.model.outputs(**batch.inputs)[real]
            return predictor_loss(self.model, outputs, batch.targets[real], smoothing=smoothing)

    @torch.no_grad()
    def _update_average(self) -> None:
        """``average <- decay * average + (1 - decay) * weights``; early on with less decay."""
        if self.average is None:
            return
        steps = self.position.step + 1
        decay = min(self.settings.average, steps / (steps + 10))
        torch._foreach_lerp_(
            list(self.average.values()), [p.detach() for p in self.model.parameters()], 1 - decay
        )

    @contextmanager
    def _averaged(self) -> Iterator[None]:
        """The model with the running mean of its weights, where there is one."""
        if self.average is None:
            yield
            return
        own = {name: value.detach().clone() for name, value in self.model.named_parameters()}
        parameters = dict(self.model.named_parameters())
        with torch.no_grad():
            for name, value in self.average.items():
                parameters[name].copy_(value)
        try:
            yield
        finally:
            with torch.no_grad():
                for name, value in own.items():
                    parameters[name].copy_(value)

    @torch.no_grad()
    def _validate(self) -> None:
        position = self.position
        self.model.eval()
        with self._averaged():
            found = evaluate_batches(self.model, self.validation, self.task.ignored)
            loss = found.loss
            self._check_finite("validation loss", loss)
            better, progress = judged(position, loss, found.accuracy, self.settings.better)
            if better:
                position.best_step = position.step
                notes = {"step": position.step, "validation_loss": loss}
                save_weights(self.folder.best, self.model, notes)
            position.without_better = 0 if progress else position.without_better + 1
        self.model.train()
        report = {
            "step": position.step,
            "epoch": position.epoch,
            "validation_loss": loss,
            "validation_accuracy": found.accuracy,
            "perplexity": math.exp(min(loss, 700)),
            "seconds": round(position.seconds, 3),
        }
        self._report(report)
        self.listener.validated(position, report, better)

    def _report(self, report: JsonObject) -> None:
        self.folder.append_metrics(report)
        self.listener.reported(report)

    def _snapshot(self, loss: float | None, *, gradients: bool) -> None:
        state = snapshot(self.model, self.probe, self.position.step, loss, gradients=gradients)
        write_snapshot(self.folder.history, state)

    def _check_finite(self, what: str, value: float) -> None:
        """Stop before anything that was learned is lost under numbers that are none."""
        if not math.isfinite(value):
            raise InputError(
                f"step {self.position.step + 1}: the {what} is {value}. Lower "
                f"training.peak_learning_rate (now {self.settings.peak_learning_rate:g}) and train "
                "in another folder; the last checkpoint is kept."
            )

    def _checkpoint(self) -> None:
        for parameter in self.model.parameters():
            self._check_finite("sum of a matrix", float(parameter.detach().sum()))
        now = time.perf_counter()
        self.position.seconds += now - self._clock
        self._clock = now
        save_checkpoint(
            self.folder.checkpoint, self.model, self.average, self.optimisers, self.position
        )

    def _finish(self) -> None:
        """The last snapshot, of what was learned; the run says that it is finished."""
        if self.folder.state == "finished":
            return
        if self.follows:
            self._snapshot(None, gradients=False)
        self.folder.set_state("finished")
