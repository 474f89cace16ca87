"""Training loop.

The result depends on the configuration and the seed alone: a run that was killed and resumed ends
with the same bits as one that never stopped.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from headloom.errors import InputError, is_out_of_memory
from headloom.formats.files import JsonObject
from headloom.formats.history import History, is_snapshot_step, write_snapshot
from headloom.formats.run import RunFolder, is_run
from headloom.formats.tensors import read_notes
from headloom.mechanism.watching import layers_of
from headloom.models.dense import Products, products
from headloom.models.predictor import Predictor
from headloom.training.batches import Batch
from headloom.training.checkpoint import (
    Learner,
    load_checkpoint,
    save_checkpoint,
    save_weights,
    seed_ranks,
)
from headloom.training.config import RunConfig
from headloom.training.model_sections import PretrainedConfig
from headloom.training.optimisers import learning_rate, make_optimisers
from headloom.training.progress import Callback
from headloom.training.ranks import GroupError, Ranks, join_group
from headloom.training.recording import snapshot
from headloom.training.run_setup import (
    build_new_model,
    check_best,
    deferred_signals,
    extend,
    prepare_run,
)
from headloom.training.tasks import begin_model, build_model, make_task
from headloom.training.tasks.task import Task
from headloom.training.validation import evaluate_batches, predictor_loss

#: Steps between two lines of training loss in metrics.jsonl.
REPORT_EVERY = 20


@dataclass(frozen=True)
class TrainingResult:
    """Result of a training.

    seconds: of training, over all sessions, without setup.
    best_loss, best_step: of the kept weights.
    already: whether the run had been finished before.
    """

    folder: RunFolder
    steps: int
    seconds: float
    tokens: int
    best_loss: float
    best_step: int
    reason: str
    already: bool = False


def train(config: RunConfig, path: Path, callback: Callback) -> TrainingResult:
    """Train a run to its end, or resume it.

    Args:
        config: of the run.
        path: the run's folder; created if missing, else resumed, also where the run is finished
            and max_steps, max_epochs or patience are larger now.
        callback: called at the start, and after steps, validations and reports.

    Raises: HeadloomError: the data cannot be used, the folder holds another run or is damaged.
    """
    with join_group() as ranks, ExitStack() as stack:
        if ranks.count > 1 and not config.task.divisible:
            raise InputError(
                f"task.kind {config.task.kind!r}: a graph is learned as a whole, by one process. "
                "Leave --processes out."
            )
        with ranks.leader_first():
            task = None
            if ranks.leader and not is_run(path):
                # Errors of the data or the model leave nothing on disk.
                task = make_task(config)
                with torch.no_grad():
                    build_new_model(config, task)(**task.probe().inputs)
            folder, task = prepare_run(config, path, ranks, stack, task)
        training = _Training(config, folder, task, callback, ranks)
        if ranks.leader:
            extend(folder, config)
        return training.run()


class _Loss(nn.Module):
    """Loss of a model on a batch, summed over the targets, padding excluded."""

    def __init__(self, model: Predictor, ignored: int, kind: Products) -> None:
        super().__init__()
        self.model, self.ignored, self.kind = model, ignored, kind

    def forward(self, batch: Batch, smoothing: float) -> Tensor:
        """Compute the loss; smoothing: see `smoothed_cross_entropy`."""
        real = batch.targets != self.ignored
        with products(self.kind):
            outputs = self.model.outputs(**batch.inputs)[real]
            return predictor_loss(self.model, outputs, batch.targets[real], smoothing=smoothing)


class _Training:
    """Session of a training: the state that its steps share."""

    def __init__(
        self, config: RunConfig, folder: RunFolder, task: Task, callback: Callback, ranks: Ranks
    ) -> None:
        self.settings = settings = config.training
        #: Whether the initial weights are validated.
        self.pretrained = isinstance(config.model, PretrainedConfig)
        self.folder, self.task, self.callback, self.ranks = folder, task, callback, ranks
        torch.manual_seed(settings.seed)
        self.model: Predictor = build_model(config, task.description)
        if not folder.checkpoint.exists():
            begin_model(config, task, self.model)
        #: Whether to keep a history, of layers with W_Q, W_K, W_V and W_O.
        self.keeps_history = settings.history and bool(layers_of(self.model))
        self.objective = ranks.distribute(_Loss(self.model, task.ignored, settings.products))
        seed_ranks(settings.seed, 0, ranks)
        parameters = self.model.named_parameters()
        mean = {name: p.detach().clone() for name, p in parameters} if settings.average else None
        self.learner = Learner(self.model, mean, make_optimisers(self.model, settings))
        self.probe = task.probe()
        self.validation = task.validation(settings.batch_tokens)[ranks.number :: ranks.count]
        self.position = load_checkpoint(folder, self.learner, settings.seed, ranks)
        if self.position.best_loss is not None:
            with ranks.leader_first():
                if ranks.leader:
                    check_best(folder, self.position.best_step)

    def run(self) -> TrainingResult:
        """Train until the end, or until a signal is received.

        Raises: InputError: out of memory, or the loss or the gradient is not finite.
        """
        try:
            with deferred_signals(repeated=self.ranks.count > 1) as signals:
                return self._run(signals)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            raise InputError(
                f"step {self.position.step + 1:,}: not enough memory. With more of it the same "
                "command resumes from the last checkpoint; or train in another folder, by --run, "
                "with half of training.batch_tokens and twice training.accumulate (now "
                f"{self.settings.batch_tokens} and {self.settings.accumulate})."
            ) from error

    def _run(self, signals: list[int]) -> TrainingResult:
        settings, position = self.settings, self.position
        # Read by the leader before it changes the folder.
        finished = self.ranks.leader and self.folder.state == "finished"
        self.finished = bool(self.ranks.total(float(finished))[0])
        if self.ranks.leader:
            self._rewind()
        self.callback.started(self.task, self.model, position, settings)
        self._clock = time.perf_counter()
        reason = self._reason_to_stop()
        already = self.finished and bool(reason)
        if not reason:
            if self.pretrained and not position.step:
                self._validate()
            self.model.train()
            for group in self._groups():
                self._step(group)
                stopping = self._reason_to_stop()
                if stopping or position.step % settings.validate_every == 0:
                    self._validate()
                    stopping = stopping or self._reason_to_stop()
                interrupted = bool(self.ranks.total(float(bool(signals)))[0])
                if stopping or interrupted or position.step % settings.checkpoint_every == 0:
                    self._checkpoint()
                if stopping:
                    reason = stopping
                    break
                if interrupted:
                    raise KeyboardInterrupt
        self._finish()
        return TrainingResult(
            self.folder, position.step, position.seconds, position.tokens, self._kept_loss(),
            position.best_step, reason, already,
        )  # fmt: skip

    def _kept_loss(self) -> float:
        """Return the validation loss of the kept weights, the lowest unless accuracy counts too."""
        lowest = self.position.best_loss
        if lowest is None:
            raise RuntimeError("a training ended without a validation")
        if self.settings.better == "loss" or not self.ranks.leader:
            return lowest
        return float(read_notes(self.folder.best, "checkpoint")["validation_loss"])

    def _rewind(self) -> None:
        """Delete records written after the checkpoint, before the run resumes from it."""
        position, history = self.position, History(self.folder.history)
        # Before the first checkpoint even the validation of step 0 is repeated.
        self.folder.reports.rewind(position.step or -1)
        history.rewind(position.step)
        # The last snapshot of an extended run: a run configured that long would not have it.
        growth = self.settings.history_growth
        if not self.finished and not is_snapshot_step(position.step, growth):
            history.remove(position.step)

    def _reason_to_stop(self) -> str:
        place = self.position
        seconds = 0.0 if self.settings.max_minutes is None else self._seconds()
        return self.settings.ended_by(place.step, place.epoch, seconds, place.without_better)

    def _groups(self) -> Iterator[list[Batch]]:
        """Yield the batches of each step from the position on, and advance the position."""
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
        settings, position, ranks = self.settings, self.position, self.ranks
        ranks.check_launcher()
        count = sum(int((batch.targets != self.task.ignored).sum()) for batch in group)
        loss = 0.0
        for place, batch in enumerate(group, 1):
            with ranks.learning(self.objective, place == len(group)):
                share = ranks.share(batch, self.task.ignored)
                part = self.objective(share, settings.label_smoothing) / count
                # DDP averages gradients over processes; the loss is a sum.
                torch.autograd.backward(part * ranks.count if ranks.count > 1 else part)
            loss += float(part.detach())
        (loss,) = ranks.total(loss)
        self._check_finite("loss", loss)
        if self.keeps_history and is_snapshot_step(position.step, settings.history_growth):
            self._snapshot(loss, gradients=True)
        norm = self._clip()
        minutes, done = settings.max_minutes, 0.0
        if minutes is not None and settings.schedule in ("cosine", "linear"):
            done = self._seconds() / 60 / minutes
        for optimiser in self.learner.optimisers:
            for parameters in optimiser.param_groups:
                parameters["lr"] = self._rate(parameters["peak"], done)
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        rate = self._rate(settings.peak_learning_rate, done)
        self.learner.update_average(settings.average, position.step + 1)

        position.step += 1
        position.tokens += sum(batch.tokens for batch in group)
        self._take_time()
        position.losses.append(loss)
        if position.step % REPORT_EVERY == 0:
            self._report(
                {
                    "step": position.step, "epoch": position.epoch,
                    "loss": sum(position.losses) / len(position.losses), "learning_rate": rate,
                    "gradient_norm": norm, "tokens": position.tokens,
                    "seconds": round(position.seconds, 3),
                }
            )  # fmt: skip
            position.losses.clear()
        self.callback.stepped(position, loss, rate)

    def _clip(self) -> float | None:
        """Clip the gradient's norm; return the norm before."""
        if not self.settings.clip_norm:
            return None
        length = nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip_norm)
        norm = float(length)
        self._check_finite("gradient's norm", norm)
        return norm

    def _take_time(self) -> None:
        now = time.perf_counter()
        self.position.seconds += now - self._clock
        self._clock = now

    def _report(self, content: JsonObject) -> None:
        """Add a line to metrics.jsonl."""
        if self.ranks.leader:
            self.folder.reports.append(content)
        self.callback.reported(content)

    def _rate(self, peak: float, done: float) -> float:
        """Compute the learning rate of this step; done: the share of the time limit."""
        settings = self.settings
        return learning_rate(
            self.position.step, peak=peak, warmup=settings.warmup, last=settings.max_steps,
            schedule=settings.schedule, floor=settings.floor, done=done,
        )  # fmt: skip

    def _seconds(self) -> float:
        """Return the training time of the first process, which all processes use."""
        (seconds,) = self.ranks.total(self.position.seconds if self.ranks.leader else 0.0)
        return seconds

    @torch.no_grad()
    def _validate(self) -> None:
        position, ranks = self.position, self.ranks
        ranks.align(self.model)
        self.model.eval()
        with self.learner.averaged():
            mine = evaluate_batches(self.model, self.validation, self.task.ignored)
            evaluation = ranks.combined(mine)
            loss = evaluation.loss
            self._check_finite("validation loss", loss)
            better, progress = position.add_validation(
                loss, evaluation.accuracy, self.settings.better
            )
            if better:
                position.best_step = position.step
                notes = {"step": position.step, "validation_loss": loss}
                if ranks.leader:
                    save_weights(self.folder.best, self.model, notes)
            position.without_better = 0 if progress else position.without_better + 1
        self.model.train()
        report = {
            "step": position.step, "epoch": position.epoch, "validation_loss": loss,
            "validation_accuracy": evaluation.accuracy, "perplexity": math.exp(min(loss, 700)),
            "seconds": round(position.seconds, 3),
        }  # fmt: skip
        self._report(report)
        self.callback.validated(position, report, better)

    def _snapshot(self, loss: float | None, *, gradients: bool) -> None:
        if self.ranks.leader:
            step = self.position.step
            state = snapshot(self.model, self.probe, step, loss, gradients=gradients)
            write_snapshot(self.folder.history, state)

    def _check_finite(self, what: str, value: float) -> None:
        """Raise an error where a value is not finite, before a checkpoint is overwritten."""
        if not math.isfinite(value):
            if not self.ranks.leader:  # all processes see the same number
                raise GroupError(f"the {what} is {value}.")
            settings = self.settings
            rates = {"peak_learning_rate": settings.peak_learning_rate}
            if settings.optimiser == "muon":
                rates["matrix_learning_rate"] = settings.matrix_learning_rate
            lower = " or ".join(f"training.{name} (now {rate:g})" for name, rate in rates.items())
            kept = "; the last checkpoint is kept" if self.folder.checkpoint.exists() else ""
            raise InputError(
                f"step {self.position.step + 1}: the {what} is {value}. Lower {lower} and train in "
                f"another folder{kept}."
            )

    def _checkpoint(self) -> None:
        for parameter in self.model.parameters():
            self._check_finite("sum of a matrix", float(parameter.detach().sum()))
        self._take_time()
        self.ranks.align(self.model)
        save_checkpoint(self.folder, self.learner, self.position, self.ranks)

    def _finish(self) -> None:
        """Write the last snapshot, and mark the run as finished."""
        if self.finished:
            return
        if self.keeps_history:
            self._snapshot(None, gradients=False)
        if self.ranks.leader:
            self.folder.set_state("finished")
