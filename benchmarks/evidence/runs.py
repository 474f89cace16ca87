"""Trainings that an evidence program asks for: each is kept in a folder, and trained once.

What was measured on a training is kept in `figures`, beside this file, one JSON file for each
program: its numbers, its seconds, the processor. A program measures what is not there yet, so that
seeds can be added on another day or machine; `--again` measures all anew. A line whose settings are
no longer those of the program is not used.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from record import machine, peak_megabytes

from headloom.formats.files import atomic_file
from headloom.training.config import load_config
from headloom.training.inference import TrainedRun, open_run
from headloom.training.loop import train
from headloom.training.measures import CorpusMeasure, Results
from headloom.training.progress import Callback

__all__ = ["ROOT", "Figures", "results_of", "trained", "value_of"]

ROOT = Path(__file__).parents[2]
FIGURES = Path(__file__).parent / "figures"


class Figures:
    """What a program has measured, kept in a file of its name.

    program: its name. again: measure anew what is there already.
    """

    def __init__(self, program: str, *, again: bool = False) -> None:
        self.path = FIGURES / f"{program}.json"
        self.kept = {} if again or not self.path.exists() else json.loads(self.path.read_text())
        self.used: list[str] = []

    def of(
        self, name: str, config: Path, changes: Sequence[str],
        measure: Callable[[], dict[str, float]],
    ) -> dict[str, float]:  # fmt: skip
        """Return the figures of a training; without stored ones for these settings, `measure`."""
        told = [change for change in changes if not change.startswith("task.folder=")]
        said = config.read_text("utf-8").split("[task]", 1)[-1] + "\n".join(told)
        settings = hashlib.sha256(said.encode()).hexdigest()[:16]
        self.used.append(name)
        if name not in self.kept or self.kept[name]["settings"] != settings:
            found = {key: round(value, 4) for key, value in measure().items()}
            found["megabytes"] = round(peak_megabytes())
            self.kept[name] = {"figures": found, "settings": settings, "machine": machine()}
            self.path.parent.mkdir(exist_ok=True)
            with atomic_file(self.path) as temporary:
                text = json.dumps(dict(sorted(self.kept.items())), indent=1, ensure_ascii=False)
                temporary.write_text(text + "\n", "utf-8")
        return dict(self.kept[name]["figures"])

    def seconds(self) -> float:
        """Those of all trainings whose figures were asked for; measuring them is not counted."""
        return sum(self.kept[name]["figures"]["seconds"] for name in self.used)

    def megabytes(self) -> float:
        """Return the most that a program held while it measured them."""
        return max(self.kept[name]["figures"]["megabytes"] for name in self.used)

    def machine(self) -> str:
        """On which their figures were measured."""
        return " and ".join(sorted({self.kept[name]["machine"] for name in self.used}))


def trained(folder: Path, config: Path, changes: Sequence[str]) -> tuple[TrainedRun, float]:
    """Return a run in a folder, and the seconds of its training; one that was stopped goes on."""
    start = time.perf_counter()
    result = train(load_config(config, [*changes, "training.history=false"]), folder, Callback())
    spent = time.perf_counter() - start
    print(f"{folder.name}: {result.steps:,} steps, {result.seconds:.0f} s ({spent:.0f} s now)")
    return open_run(folder), result.seconds


def results_of(run: TrainedRun, *, beam: int) -> Results:
    """Return the results of a run on its test data."""
    torch.manual_seed(0)
    task = run.task("test")
    run.model.eval()
    with torch.no_grad():
        return task.results(run.model, split="test", beam=beam, progress=lambda done, total: None)


def value_of(results: Results, name: str, examples: np.ndarray | None = None) -> float:
    """Return a measure by its name, of all examples or of those that are chosen."""
    measure: CorpusMeasure = next(m for m in results.measures if m.name == name)
    statistics = measure.statistics if examples is None else measure.statistics[examples]
    return float(measure.formula(statistics.sum(0)))
