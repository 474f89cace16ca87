"""What a person sees while a model is trained."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from rich.console import Console

from headloom.training.checkpoint import Position
from headloom.training.config import RunConfig, TrainingConfig
from headloom.training.data import DataDescription
from headloom.training.loop import train
from headloom.training.progress import ConsoleProgress
from headloom.training.tasks.task import Task


@pytest.mark.parametrize("terminal", [True, False])
def test_what_is_written(tiny: Callable[..., RunConfig], tmp_path: Path, terminal: bool) -> None:
    text = io.StringIO()
    console = Console(
        file=text, force_terminal=terminal, force_interactive=terminal, width=200, color_system=None
    )
    with ConsoleProgress(console) as listener:
        train(tiny(), tmp_path / "run", listener)
    shown = text.getvalue()
    assert "Data: 1,296 train tokens, 144 valid tokens" in shown
    assert "1 attention layer, 2 heads, drawn at" in shown
    lines = [line for line in shown.splitlines() if "validation" in line]
    assert [line.split()[1] for line in lines] == ["4", "8", "12"]
    assert lines[0].endswith("kept")
    # The bar is for people only.
    assert ("tokens/s" in shown.replace(" ".join(lines), "")) and ("━" in shown) == terminal


def test_what_is_odd_in_the_data_is_said() -> None:
    text = io.StringIO()
    task = SimpleNamespace(
        sizes=lambda: {"train": 2},
        notices=lambda: ["1 of 2 [test] examples is a training example too."],
        description=DataDescription(),
    )
    listener = ConsoleProgress(Console(file=text, width=60))
    listener.started(cast(Task, task), torch.nn.Linear(2, 2), Position(), TrainingConfig())
    assert "Data: 2 train.\nData: 1 of 2 [test] examples is a training" in text.getvalue()
