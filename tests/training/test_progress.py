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

import headloom
from headloom.training.checkpoint import Position
from headloom.training.config import RunConfig
from headloom.training.data import DataDescription
from headloom.training.loop import train
from headloom.training.progress import ConsoleListener
from headloom.training.tasks.task import Task


@pytest.mark.parametrize("terminal", [True, False])
def test_what_is_written(tiny: Callable[..., RunConfig], tmp_path: Path, terminal: bool) -> None:
    text = io.StringIO()
    console = Console(
        file=text, force_terminal=terminal, force_interactive=terminal, width=200, color_system=None
    )
    with ConsoleListener(console) as listener:
        train(tiny(), tmp_path / "run", listener)
    shown = text.getvalue()
    assert "Data: 1,296 train tokens, 144 valid tokens" in shown
    assert "1 attention layer, 2 heads, each with its own W_Q, W_K, W_V, W_O, drawn at" in shown
    lines = [line for line in shown.splitlines() if "validation" in line]
    assert [line.split()[1] for line in lines] == ["4", "8", "12"]
    assert lines[0].endswith("kept")
    # The bar is for people only.
    assert ("tokens/s" in shown.replace(" ".join(lines), "")) and ("━" in shown) == terminal


def test_every_kind_of_model_says_what_attends_in_it() -> None:
    from headloom.models.graph_attention import GraphAttentionNetwork
    from headloom.training.progress import _attention_of

    graph = GraphAttentionNetwork(features=5, classes=3, layers=2, heads=8, depth=2)
    # Eight heads of the hidden layer and one of the last.
    assert _attention_of(graph) == (
        "2 graph attention layers, 9 heads, each with its own matrix and score"
    )
    block = headloom.ImageSelfAttention(8)
    assert _attention_of(block) == (
        "1 attention layer, 1 head, each with its own W_Q, W_K, W_V, W_O"
    )
    assert _attention_of(headloom.MultiHeadAttention(8, 4, kv_heads=2)) == (
        "1 attention layer, 4 heads, each with its own W_Q and W_O, every 2 with one W_K and W_V"
    )
    assert _attention_of(torch.nn.Linear(2, 2)) == "no attention layer"


def test_a_run_that_goes_on_says_so(tiny: Callable[..., RunConfig], tmp_path: Path) -> None:
    text = io.StringIO()
    for steps in (1, 2, 2):
        with ConsoleListener(Console(file=text, width=200)) as listener:
            train(tiny(max_steps=steps), tmp_path / "run", listener)
    assert "as learned in 1 step." in text.getvalue()
    assert "as learned in 2 steps." in text.getvalue()


def test_what_is_odd_in_the_data_is_said() -> None:
    text = io.StringIO()
    task = SimpleNamespace(
        sizes=lambda: {"train": 2},
        notices=lambda: ["1 of 2 [test] examples is a training example too."],
        description=DataDescription(),
    )
    listener = ConsoleListener(Console(file=text, width=60))
    listener.started(cast(Task, task), torch.nn.Linear(2, 2), Position(), 1)
    assert "Data: 2 train.\nData: 1 of 2 [test] examples is a training" in text.getvalue()
