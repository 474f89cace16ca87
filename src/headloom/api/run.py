"""`headloom.Run`: a training run, as a model with its history."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self

from headloom.api.asking import studio_of
from headloom.api.run_model import RunModel
from headloom.errors import InputError
from headloom.formats.files import JsonObject
from headloom.formats.history import History
from headloom.formats.run import RunFolder
from headloom.formats.tensors import read_notes
from headloom.mechanism.drawn import Drawn
from headloom.studio.serving import Viewer, view
from headloom.training.checkpoint import Position
from headloom.training.config import RunConfig, check_config
from headloom.training.inference import TrainedRun

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class Run(Drawn, RunModel):
    """Training run: a `Model`, its configuration, and the measurements of its training.

    The weights are read on first use, so that a run in training can be opened, and one that
    `headloom.monitor` watches, which has none.

    path: of its folder.
    """

    def __init__(self, path: Path | str | TrainedRun, *, data: Path | None = None) -> None:
        super().__init__(path, data=data)
        self._folder = RunFolder.open(self.path)

    @property
    def model(self) -> Self:
        """Run itself, which is a model."""
        return self

    @property
    def state(self) -> str:
        """State: "training" (also if interrupted) or "finished"."""
        return self._folder.state

    @cached_property
    def config(self) -> RunConfig:
        """Configuration, as in a TOML file. Raises: InputError: a watched run has none."""
        if self._folder.monitored() is not None:
            raise InputError(
                f"{self.name}: a training watched by headloom.monitor has no configuration of "
                "headloom, only .history and .metrics."
            )
        return check_config(self._folder.config(), str(self.path / "config.json"))

    @property
    def outcome(self) -> JsonObject:
        """Outcome of the training, as ``headloom train --json`` prints it.

        steps; tokens trained on; train_seconds; best_loss and best_step, of the kept weights;
        reason: the key of [training] that ended it, "" while it trains.
        """
        place = Position(**read_notes(self._folder.checkpoint, "checkpoint")["position"])
        best, settings = read_notes(self._folder.best, "checkpoint"), self.config.training
        return {
            "run": self.name, "steps": place.step, "train_seconds": place.seconds,
            "tokens": place.tokens, "best_loss": float(best["validation_loss"]),
            "best_step": place.best_step,
            "reason": settings.ended_by(
                place.step, place.epoch, place.seconds, place.without_better
            ),
        }  # fmt: skip

    @property
    def metrics(self) -> pandas.DataFrame:
        """Reports of the training: a row for each, with its step, loss, validation and times."""
        import pandas

        return pandas.DataFrame(self._folder.reports.read())

    @property
    def history(self) -> History:
        """W_Q, W_K, W_V, W_O of every layer while they were learned."""
        return History(self._folder.history)

    def plot(
        self, ax: Axes | Figure | None = None, width: float | None = None, **options: object
    ) -> Axes:
        """Draw the losses of the training, reported and validated, over its steps.

        ax, width: see `headloom.TraceLayer.plot`; options: of `matplotlib.axes.Axes.plot`.
        """
        settings: dict[str, object] = {"ax": ax, "width": width, "log": False}
        axes: Axes = self._plot("history", self.history, "loss", **(settings | options))
        return axes

    def view(self, *, port: int | None = None, browser: bool = True) -> Viewer:
        """Open the run's studio in a browser, served in the background until the program ends."""
        return view(studio_of(self), port=port, browser=browser)

    def __repr__(self) -> str:
        if self._folder.monitored() is not None:
            return f"Run({self.name!r}: a training watched by headloom.monitor)"
        task, model = self.config.task.kind, self.config.model.kind
        reports = self._folder.reports.read()
        step = f", step {reports[-1]['step']:,}" if reports else ""
        return f"Run({self.name!r}: task {task}, model {model}, {self.state}{step})"
