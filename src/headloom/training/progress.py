"""What a person sees while matrices are learned: a progress bar, and a line a validation."""

from __future__ import annotations

import math
import time

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from torch import nn

from headloom.formats.files import JsonObject
from headloom.mechanism.graph_convolution import GraphLayer
from headloom.mechanism.watching import layers_of
from headloom.training.checkpoint import Position
from headloom.training.tasks.task import Task


class Listener:
    """Who is told how a training goes; each method does nothing but in a subclass."""

    def started(self, task: Task, model: nn.Module, position: Position, last: int) -> None:
        """The data are read, the model is drawn or loaded."""

    def stepped(self, position: Position, loss: float, rate: float) -> None:
        """A step was done; loss: mean of its tokens, in nats, smoothed labels included."""

    def validated(self, position: Position, report: JsonObject, better: bool) -> None:
        """The validation data were looked at."""


#: Says nothing.
SilentListener = Listener


def _attention_of(model: nn.Module) -> str:
    """The attention layers of a model in words."""
    graphs = [module for module in model.modules() if isinstance(module, GraphLayer)]
    heads = [layer.heads for layer in graphs] or [layer.heads for _, layer in layers_of(model)]
    if not heads:
        return "no attention layer"
    return f"{len(heads)} attention layer{'s' * (len(heads) > 1)}, {sum(heads)} heads"


class ConsoleListener(Listener):
    """Writes to a console; the bar is drawn on terminals only. A context manager."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._progress: Progress | None = None
        self._bar: TaskID | None = None
        self._mean_loss = math.nan
        self._clock, self._tokens = time.perf_counter(), 0

    def __enter__(self) -> ConsoleListener:
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def started(self, task: Task, model: nn.Module, position: Position, last: int) -> None:
        """See Listener.started."""
        parameters = sum(parameter.numel() for parameter in model.parameters())
        sizes = ", ".join(
            f"{count:,} {name.replace('_', ' ')}" for name, count in task.sizes().items()
        )
        self.console.print(f"Data: {sizes}.")
        for notice in task.notices():
            self.console.print(f"Data: {notice}", markup=False, highlight=False, soft_wrap=True)
        began = "drawn at random."
        if "pretrained" in task.description.facts:
            began = "as they were pretrained."
        if position.step:
            began = f"as learned in {position.step} step{'s' * (position.step != 1)}."
        self.console.print(f"Model: {parameters:,} parameters; {_attention_of(model)}, {began}")
        self._tokens = position.tokens
        self._clock = time.perf_counter()
        if self.console.is_interactive:
            self._progress = Progress(
                TextColumn("training"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("loss {task.fields[loss]:.3f}"),
                TextColumn("{task.fields[speed]:,.0f} tokens/s"),
                TimeRemainingColumn(),
                console=self.console,
                transient=True,
            )
            self._bar = self._progress.add_task(
                "training", total=last, completed=position.step, loss=math.nan, speed=0.0
            )
            self._progress.start()

    def stepped(self, position: Position, loss: float, rate: float) -> None:
        """See Listener.stepped."""
        before = self._mean_loss
        self._mean_loss = loss if math.isnan(before) else 0.95 * before + 0.05 * loss
        if self._progress is not None and self._bar is not None:
            speed = self._speed(position)
            self._progress.update(
                self._bar, completed=position.step, loss=self._mean_loss, speed=speed
            )

    def validated(self, position: Position, report: JsonObject, better: bool) -> None:
        """See Listener.validated."""
        shown = "-" if math.isnan(self._mean_loss) else f"{self._mean_loss:.3f}"
        self.console.print(
            f"step {position.step:>6,}  epoch {position.epoch:>3}  "
            f"loss {shown}  validation {report['validation_loss']:.4f}  "
            f"right {report['validation_accuracy']:.2%}  "
            f"{self._speed(position):,.0f} tokens/s  {position.seconds:,.0f} s"
            + ("  kept" if better else ""),
            highlight=False,
            soft_wrap=True,
        )

    def _speed(self, position: Position) -> float:
        """Real tokens a second since the session began."""
        seconds = time.perf_counter() - self._clock
        return (position.tokens - self._tokens) / max(seconds, 1e-9)
