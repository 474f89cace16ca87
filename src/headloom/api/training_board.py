"""TensorBoard of headloom's own trainings: the lines of metrics.jsonl as curves."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch import nn

from headloom.analysis.monitor.sinks import TensorBoard, check_tensorboard
from headloom.errors import DataError
from headloom.formats.files import JsonMapping, JsonObject, is_there, reason_of
from headloom.formats.run import RunFolder
from headloom.training.checkpoint import Position
from headloom.training.progress import SilentListener
from headloom.training.tasks.task import Task

__all__ = ["BoardListener", "values_of"]

#: The curves, and where metrics.jsonl has them.
_CURVES = {
    "training/loss": "loss",
    "training/learning_rate": "learning_rate",
    "training/gradient_norm": "gradient_norm",
    "validation/loss": "validation_loss",
    "validation/accuracy": "validation_accuracy",
    "validation/perplexity": "perplexity",
}


def values_of(report: JsonMapping, before: JsonMapping) -> dict[str, float]:
    """The values of a line of metrics.jsonl, by the names of their curves.

    before: the last line with `tokens`, from which on the speed is counted.
    """
    values = {
        curve: float(report[name])
        for curve, name in _CURVES.items()
        if report.get(name) is not None
    }
    if "tokens" in report:
        seconds = report["seconds"] - before["seconds"]
        if seconds > 0:
            values["training/tokens_per_second"] = (report["tokens"] - before["tokens"]) / seconds
    return values


class BoardListener(SilentListener):
    """Sends what a run reports to TensorBoard's event files. A context manager.

    A run that goes on makes the events that are there void, and writes those of its steps so far
    anew: also what it learned in the meantime without a board, or lost.

    Args:
        folder: where the events go.
        run: the training run.

    Raises: InputError: TensorBoard is not installed; DataError: the folder is none, or cannot be
        written.
    """

    def __init__(self, folder: Path, run: Path) -> None:
        check_tensorboard()
        if is_there(folder) and not folder.is_dir():
            raise DataError(f"{folder}: not a folder. Give --tensorboard a folder, or a new name.")
        self.folder, self.run = folder, run
        self._board: TensorBoard | None = None
        self._before: JsonObject = {"tokens": 0, "seconds": 0.0}

    def __enter__(self) -> BoardListener:
        return self

    def __exit__(self, *_: object) -> None:
        if self._board is not None:
            with self._errors():
                self._board.close()

    def started(self, task: Task, model: nn.Module, position: Position, last: int) -> None:
        """See Listener.started; metrics.jsonl holds nothing after the checkpoint any more."""
        reports = RunFolder(self.run).read_metrics()
        with self._errors():
            self._board = TensorBoard(self.folder, 1)
        for report in reports:
            self.reported(report)

    def reported(self, report: JsonObject) -> None:
        """See Listener.reported."""
        if self._board is not None:
            with self._errors():
                self._board.log(report["step"], values_of(report, self._before))
        if "tokens" in report:
            self._before = report

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn what the disk says into one line."""
        # TensorBoard writes in a thread of its own, whose error it raises here too.
        others = threading.excepthook

        def unless_of_the_disk(fault: threading.ExceptHookArgs) -> None:
            if not isinstance(fault.exc_value, OSError):
                others(fault)

        threading.excepthook = unless_of_the_disk
        try:
            yield
        except OSError as error:
            # Closing it would write again.
            self._board = None
            raise DataError(
                f"cannot write {self.folder}: {reason_of(error)}. Free some space, or choose "
                "another folder with --tensorboard; the same command goes on."
            ) from error
        finally:
            threading.excepthook = others
