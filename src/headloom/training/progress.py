"""Progress of a training: callbacks, a progress bar, and a line for each validation."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from torch import nn

from headloom.errors import InputError
from headloom.formats.files import JsonObject
from headloom.mechanism.graph_convolution import GraphLayer
from headloom.mechanism.watching import layers_of
from headloom.training.checkpoint import Position
from headloom.training.config import TrainingConfig
from headloom.training.tasks.task import Task


class Callback:
    """Base class of training callbacks; its methods do nothing.

    `headloom.train(..., callbacks=[...])` takes such objects, and functions of a report.

        class Stop(headloom.Callback):
            def reported(self, report):
                if report.get("validation_loss", 9) < 0.1:
                    raise KeyboardInterrupt       # the same call resumes from the checkpoint
    """

    def started(
        self, task: Task, model: nn.Module, position: Position, settings: TrainingConfig
    ) -> None:
        """Run when data and model are ready; position: of a resumed run, its steps so far.

        model: the module itself, which may be watched; changes to it affect the training.
        """

    def stepped(self, position: Position, loss: float, rate: float) -> None:
        """Run after a step; loss: mean over its tokens, in nats, with label smoothing."""

    def validated(self, position: Position, report: JsonObject, better: bool) -> None:
        """Run after a validation; better: its weights are kept as the best."""

    def reported(self, report: JsonObject) -> None:
        """Run after a line was added to metrics.jsonl.

        Every 20 steps: step, epoch, loss, learning_rate, gradient_norm, tokens, seconds; after a
        validation: step, epoch, validation_loss, validation_accuracy, perplexity, seconds.
        """


class Callbacks(Callback):
    """Several callbacks as one; functions are called with each report."""

    def __init__(self, callbacks: Sequence[Callback | Callable[[JsonObject], object]]) -> None:
        for item in callbacks:
            if not isinstance(item, Callback) and (isinstance(item, type) or not callable(item)):
                raise InputError(
                    f"callbacks: {item!r}; expected a function of a report (a dict), or an object "
                    "of a subclass of headloom.Callback."
                )
        self._all = callbacks
        for name in ("started", "stepped", "validated", "reported"):
            setattr(self, name, partial(self._tell, name))

    def _tell(self, name: str, *values: object) -> None:
        for item in self._all:
            if isinstance(item, Callback):
                getattr(item, name)(*values)
            elif name == "reported":
                item(*values)  # type: ignore[arg-type]


def _attention_of(model: nn.Module) -> str:
    """Describe the attention layers of a model in words."""
    graphs = [module for module in model.modules() if isinstance(module, GraphLayer)]
    heads = [layer.heads for layer in graphs] or [layer.heads for _, layer in layers_of(model)]
    if not heads:
        return "no attention layer"
    return f"{len(heads)} attention layer{'s' * (len(heads) > 1)}, {sum(heads)} heads"


class ConsoleProgress(Callback):
    """Progress on a console, as a context manager; the bar is for terminals only."""

    def __init__(self, console: Console | None = None) -> None:
        stream = sys.stderr
        while (below := getattr(stream, "rich_proxied_file", None)) is not None:
            stream = below
        # Notebooks set FORCE_COLOR, for which rich treats a pipe as a terminal: colours are fine
        # there, hundreds of bars are not.
        self.console = console or Console(
            file=stream, stderr=True, highlight=False, force_interactive=stream.isatty()
        )
        self._progress: Progress | None = None
        self._bar: TaskID | None = None
        self._mean_loss = math.nan
        self._clock, self._tokens = time.perf_counter(), 0

    def __enter__(self) -> ConsoleProgress:
        return self

    def say(self, text: str) -> None:
        """Write a line without interpreting markup in it."""
        if self.console.is_jupyter:
            self.console.print(text, markup=False, soft_wrap=True)
        else:
            print(text, file=sys.stderr)  # escapes control characters

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def started(
        self, task: Task, model: nn.Module, position: Position, settings: TrainingConfig
    ) -> None:
        parameters = sum(parameter.numel() for parameter in model.parameters())
        sizes = ", ".join(
            f"{count:,} {name.replace('_', ' ')}" for name, count in task.sizes().items()
        )
        self.console.print(f"Data: {sizes}.")
        for notice in task.notices():
            self.console.print(f"Data: {notice}", markup=False, highlight=False, soft_wrap=True)
        origin = "drawn at random."
        if "pretrained" in task.description.facts:
            origin = "pretrained."
        if position.step:
            origin = f"after {position.step} step{'s' * (position.step != 1)}."
        self.console.print(f"Model: {parameters:,} parameters; {_attention_of(model)}, {origin}")
        self._tokens = position.tokens
        self._clock = time.perf_counter()
        self._settings = settings
        # A notebook draws the bar where it has ipywidgets.
        if self.console.is_interactive or (self.console.is_jupyter and find_spec("ipywidgets")):
            self._progress = Progress(
                TextColumn("training"), BarColumn(), TextColumn("{task.fields[step]:,} steps"),
                TextColumn("loss {task.fields[loss]:.3f}"),
                TextColumn("{task.fields[speed]:,.0f} tokens/s"), TimeRemainingColumn(),
                console=self.console, transient=True,
            )  # fmt: skip
            self._bar = self._progress.add_task(
                "training", total=1.0, step=position.step, loss=math.nan, speed=0.0
            )
            self._progress.start()

    def stepped(self, position: Position, loss: float, rate: float) -> None:
        before = self._mean_loss
        self._mean_loss = loss if math.isnan(before) else 0.95 * before + 0.05 * loss
        if self._progress is not None and self._bar is not None:
            self._progress.update(
                self._bar, completed=self._settings.share_done(position.step, position.seconds),
                step=position.step, loss=self._mean_loss, speed=self._speed(position),
            )  # fmt: skip

    def validated(self, position: Position, report: JsonObject, better: bool) -> None:
        shown = "-" if math.isnan(self._mean_loss) else f"{self._mean_loss:.3f}"
        self.console.print(
            f"step {position.step:>6,}  epoch {position.epoch:>3}  loss {shown}  validation "
            f"{report['validation_loss']:.4f}  right {report['validation_accuracy']:.2%}  "
            f"{self._speed(position):,.0f} tokens/s  {position.seconds:,.0f} s"
            + ("  kept" if better else ""),
            highlight=False,
            soft_wrap=True,
        )

    def _speed(self, position: Position) -> float:
        """Compute tokens per second since the session started, padding excluded."""
        seconds = time.perf_counter() - self._clock
        return (position.tokens - self._tokens) / max(seconds, 1e-9)
