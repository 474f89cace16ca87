"""The training runs of a folder, with their figures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from headloom.errors import DataError
from headloom.formats.files import JsonMapping, is_there
from headloom.formats.run import RunFolder, is_run

__all__ = ["ListedRun", "find_runs", "list_runs"]


@dataclass(frozen=True)
class ListedRun:
    """What is known of a run without its weights.

    path: its folder.
    task: its kind, "watched" of a training that `headloom.monitor` watches.
    state: "finished"; "training", also where it was stopped; or "damaged".
    step: of its last report; steps: at which it ends; None: not known.
    best: its lowest validation loss, nats a prediction; best_step: when.
    seconds: of training.
    speed: tokens a second, of its last report that has it.
    reported: when its last report was written, seconds since 1970.
    problem: of a damaged run.
    """

    path: Path
    task: str
    state: str
    step: int | None = None
    steps: int | None = None
    best: float | None = None
    best_step: int | None = None
    seconds: float | None = None
    speed: float | None = None
    reported: float | None = None
    problem: str | None = None


def find_runs(folders: Iterable[Path]) -> list[Path]:
    """The folders of runs: each that is given, and those inside it, however deep.

    Raises: DataError: a folder is missing, or neither it nor what it holds is a run.
    """
    found: list[Path] = []
    for folder in folders:
        if not is_there(folder, "run"):
            raise DataError(
                f"{folder}: no such folder. Check the path, or train a run: headloom train."
            )
        inside = [folder] if is_run(folder) else sorted(p.parent for p in folder.rglob("run.json"))
        if not inside:
            raise DataError(f"{folder}: no run is in it. Train one: headloom train.")
        found += inside
    return list(dict.fromkeys(found))


def list_runs(paths: Sequence[Path]) -> list[ListedRun]:
    """What is known of each run; one that cannot be read is listed as damaged."""
    runs = []
    for path in paths:
        try:
            runs.append(_listed(path))
        except DataError as error:
            runs.append(ListedRun(path, "-", "damaged", problem=str(error)))
    return runs


def _listed(path: Path) -> ListedRun:
    folder = RunFolder.open(path)
    config = folder.config()
    if folder.monitored() is not None:
        return _watched(folder)
    task, training = config.get("task"), config.get("training")
    if not isinstance(task, dict) or not isinstance(training, dict):
        raise DataError(f"{path / 'config.json'}: this configuration is damaged. Put a copy back.")
    steps = training.get("max_steps")
    reports = folder.read_metrics()
    losses = [(_number(report, "validation_loss"), report["step"]) for report in reports]
    best, best_step = min(
        ((loss, step) for loss, step in losses if loss is not None), default=(None, None)
    )
    return ListedRun(
        path,
        str(task.get("kind", "-")),
        folder.state,
        step=reports[-1]["step"] if reports else None,
        steps=steps if isinstance(steps, int) else None,
        best=best,
        best_step=best_step,
        seconds=_number(reports[-1], "seconds") if reports else None,
        speed=_speed(reports),
        reported=folder.metrics.stat().st_mtime if reports else None,
    )


def _watched(folder: RunFolder) -> ListedRun:
    reports = folder.measures.read()
    return ListedRun(
        folder.path,
        "watched",
        folder.state,
        step=reports[-1]["step"] if reports else None,
        reported=folder.measures.path.stat().st_mtime if reports else None,
    )


def _number(report: JsonMapping, name: str) -> float | None:
    """A number of a report; None where it has none, or one that is not finite."""
    value = report.get(name)
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None


def _speed(reports: Sequence[JsonMapping]) -> float | None:
    """Tokens a second between the last two reports that count them, of one process."""
    counted = [
        (tokens, seconds)
        for report in reports
        if (tokens := _number(report, "tokens")) is not None
        and (seconds := _number(report, "seconds")) is not None
    ][-2:]
    if len(counted) < 2 or counted[1][1] <= counted[0][1]:
        return None
    return (counted[1][0] - counted[0][0]) / (counted[1][1] - counted[0][1])
