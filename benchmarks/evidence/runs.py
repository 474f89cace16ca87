"""Trainings that an evidence program asks for: each is kept in a folder, and trained once."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from weft.training.config import load_config
from weft.training.inference import TrainedRun, open_run
from weft.training.loop import train
from weft.training.measures.corpus import CorpusMeasure, Results
from weft.training.progress import SilentListener
from weft.training.tasks import make_task

__all__ = ["ROOT", "captions", "results_of", "trained", "value_of"]

ROOT = Path(__file__).parents[2]


def captions(folder: Path, seed: int, steps: int) -> list[str]:
    """Changes of examples/multi30k.toml to compare many trainings: 2 + 2 layers, fewer words and
    steps.
    """
    return [
        f"task.folder={folder}", "task.vocabulary=4000", "model.encoder_layers=2",
        "model.decoder_layers=2", f"training.seed={seed}", f"training.max_steps={steps}",
        f"training.warmup={steps // 5}", "training.average=0.99",
        f"training.validate_every={steps // 2}", f"training.checkpoint_every={steps // 2}",
    ]  # fmt: skip


def trained(folder: Path, config: Path, changes: Sequence[str]) -> tuple[TrainedRun, float]:
    """A run in a folder, and the seconds of its training; one that was stopped goes on."""
    start = time.perf_counter()
    result = train(
        load_config(config, [*changes, "training.history=false"]), folder, SilentListener()
    )
    spent = time.perf_counter() - start
    print(f"{folder.name}: {result.steps:,} steps, {result.seconds:.0f} s ({spent:.0f} s now)")
    return open_run(folder), result.seconds


def results_of(run: TrainedRun, *, beam: int) -> Results:
    """What a run reaches on its test data."""
    torch.manual_seed(0)
    task = make_task(run.config, run.data)
    run.model.eval()
    with torch.no_grad():
        return task.results(run.model, split="test", beam=beam, progress=lambda done, total: None)


def value_of(results: Results, name: str, examples: np.ndarray | None = None) -> float:
    """A measure by its name, of all examples or of those that are chosen."""
    measure: CorpusMeasure = next(m for m in results.measures if m.name == name)
    statistics = measure.statistics if examples is None else measure.statistics[examples]
    return float(measure.formula(statistics.sum(0)))
