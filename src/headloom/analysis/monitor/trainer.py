"""`MonitorCallback`: the monitor for `Trainer` of Transformers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from headloom.analysis.monitor.monitor import Monitor
from headloom.formats.files import JsonObject
from headloom.tracing.sources.transformers import transformers

if TYPE_CHECKING:

    class TrainerCallback:
        """Base class of Transformers, with a method for each event."""
else:
    TrainerCallback = transformers().TrainerCallback

#: Names of numbers in the Trainer, and of headloom's metrics.
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
        options: as for `headloom.monitor`. The tokenizer is the Trainer's by default; a training
            that resumes from a checkpoint continues in its folder.

    monitor: the `Monitor` of the last training; None: no training yet.

    Raises: InputError: Transformers is not installed.
    """

    def __init__(self, folder: Path | str, **options: Any) -> None:
        self._folder, self._options = Path(folder), options
        self.monitor: Monitor | None = None

    def on_train_begin(self, args: object, state: Any, control: object, **event: Any) -> None:
        """Begin, or resume from a checkpoint."""
        if self.monitor is not None:  # the last training ended by an error
            self.monitor.__exit__(InterruptedError, None, None)
        if state.is_world_process_zero:
            options: JsonObject = {"tokenizer": event.get("processing_class")} | self._options
            options["step"] = state.global_step or None
            self.monitor = Monitor(event["model"], self._folder, **options)
            self.monitor.__enter__()

    def on_step_end(self, args: object, state: Any, control: object, **event: Any) -> None:
        """Count a step of the optimizer."""
        if self.monitor is not None:
            self.monitor.reach(state.global_step)

    def on_log(self, args: object, state: Any, control: object, **event: Any) -> None:
        """Report the numbers of the Trainer."""
        logs = event.get("logs") or {}
        numbers = {
            name: logs[key]
            for key, name in _NUMBERS.items()
            if isinstance(logs.get(key), int | float)
        }
        if self.monitor is not None and ("loss" in numbers or "validation_loss" in numbers):
            self.monitor.report(**numbers)

    def on_train_end(self, args: object, state: Any, control: object, **event: Any) -> None:
        """End the monitor."""
        if self.monitor is not None:
            self.monitor.__exit__(None, None, None)
