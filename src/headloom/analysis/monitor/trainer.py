"""`MonitorCallback`: the monitor for `Trainer` of Transformers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from headloom.analysis.monitor.monitor import Monitor
from headloom.tracing.sources.transformers import transformers

if TYPE_CHECKING:

    class TrainerCallback:
        """As Transformers has it: a method for each event."""
else:
    TrainerCallback = transformers().TrainerCallback

#: What Trainer calls its numbers, and headloom's metrics.
_NUMBERS = {
    "loss": "loss",
    "eval_loss": "validation_loss",
    "learning_rate": "learning_rate",
    "grad_norm": "gradient_norm",
    "epoch": "epoch",
}


class MonitorCallback(TrainerCallback):
    """Watch the attention of the model that a `Trainer` of Transformers trains.

        Trainer(model, arguments, ..., callbacks=[headloom.MonitorCallback("runs/mine")])

    Args:
        folder: of the run, as for `headloom.monitor`.
        options: as for `headloom.monitor`. The tokenizer is the Trainer's, unless one is given; a
            training that goes on from a checkpoint goes on in its folder.

    monitor: the `Monitor` of the last training; None before there is one.

    Raises: InputError: Transformers is not installed.
    """

    def __init__(self, folder: Path | str, **options: Any) -> None:
        self._folder, self._options = Path(folder), options
        self.monitor: Monitor | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **event: Any) -> None:
        """The training begins, or goes on from a checkpoint."""
        if self.monitor is not None:  # of a training that ended in an error
            self.monitor.__exit__(InterruptedError, None, None)
        if state.is_world_process_zero:
            options: dict[str, Any] = {"tokenizer": event.get("processing_class")} | self._options
            options["step"] = state.global_step or None
            self.monitor = Monitor(event["model"], self._folder, **options)
            self.monitor.__enter__()

    def on_step_end(self, args: Any, state: Any, control: Any, **event: Any) -> None:
        """A step of the optimiser is done."""
        if self.monitor is not None:
            self.monitor.reach(state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, **event: Any) -> None:
        """The Trainer reports numbers."""
        logs = event.get("logs") or {}
        numbers = {
            name: logs[said]
            for said, name in _NUMBERS.items()
            if isinstance(logs.get(said), int | float)
        }
        if self.monitor is not None and ("loss" in numbers or "validation_loss" in numbers):
            self.monitor.report(**numbers)

    def on_train_end(self, args: Any, state: Any, control: Any, **event: Any) -> None:
        """The training has ended."""
        if self.monitor is not None:
            self.monitor.__exit__(None, None, None)
