"""The demo: quickly with a tiny model, and once as it is, to see that it reaches what it says."""

from __future__ import annotations

import json
import runpy
from functools import partial
from importlib import import_module
from pathlib import Path

import pytest
import torch
from matplotlib import pyplot
from tests.cli.conftest import Command

import headloom
from headloom.api import demo
from headloom.formats.history import History
from headloom.formats.tensors import load_tensors
from headloom.studio import page
from headloom.studio.arrays import few_digits
from headloom.training.config import RunConfig, check_config

#: The embedded configuration, also where a test puts another in its place.
demo_config = demo.demo_config


def small_demo(seed: int) -> RunConfig:
    """The demo's task and choices, with a tiny model and few steps."""
    content = demo_config(seed).model_dump(mode="json")
    content["task"] |= {"train_examples": 3000, "test_examples": 20}
    content["model"] |= {"width": 16, "feed_forward": 16}
    content["training"] |= {"max_steps": 20, "validate_every": 10, "batch_tokens": 512}
    return check_config(content, "small demo")


def test_a_small_demo_leaves_all_that_it_names(
    headloom_main: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "demo_config", small_demo)
    drawn, described = [], []
    history = import_module("headloom.studio.pictures.history")
    draw, export = history.snapshots, page.export_live_page
    monkeypatch.setattr(
        history, "snapshots", lambda *given, **named: drawn.append(given) or draw(*given, **named)
    )
    described_by = lambda *given: described.append(given) or export(*given)  # noqa: E731
    monkeypatch.setattr(page, "export_live_page", described_by)
    run = tmp_path / "[red]demo"
    result = headloom_main("demo", "--run", run, "--seed", 3, "--json")
    report = result.json()
    assert 0 <= report["exact_match"] <= 1
    assert report["train_seconds"] > 0
    assert report["run"] == str(run)
    assert "<script src=" not in Path(report["page"]).read_text("utf-8")
    assert f"the model inside answers. {report['page']}" in result.err
    assert all(Path(file).exists() for file in report["files"].values())
    traces = sorted((run / "traces").glob("*.loom"))
    assert len(traces) == len(demo.TRACED)
    kinds = {layer.kind for layer in headloom.open(traces[0]).layers}
    assert kinds == {"encoder", "decoder", "cross"}
    # The curve of the loss begins with the random matrices and ends where the training did, in the
    # pictures as on the page.
    reports = [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
    steps, losses = zip(*drawn[0][2]["loss"], strict=True)
    assert (steps[0], losses[0]) == (0, History(run / "history")[0].loss)
    assert (steps[-1], losses[-1]) == (20, next(r["loss"] for r in reports if r["step"] == 20))
    curve = described[0][1].history.description["curves"]["training loss"]
    assert curve == [[step, few_digits(loss)] for step, loss in zip(steps, losses, strict=True)]
    # Started again, it has nothing to learn and draws the same.
    again = headloom_main("demo", "--run", run, "--seed", 3, "--json")
    assert json.loads(again.out)["exact_match"] == report["exact_match"]


TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorials" / "demo_in_python.py"


def test_the_tutorial_trains_what_the_demo_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[RunConfig] = []

    def train(config: RunConfig, *_: object) -> None:
        trained.append(config)
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("headloom.api.train.loop.train", train)
    with pytest.raises(KeyboardInterrupt):
        runpy.run_path(str(TUTORIAL))
    assert trained == [demo_config(1)]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_demo_reaches_what_it_says_and_python_gives_the_same(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At least 98 % of 1,000 held-out dates exactly right; the tutorial's calls: the same bits."""
    request.addfinalizer(partial(torch.set_num_threads, torch.get_num_threads()))
    torch.set_num_threads(2)  # as `make demo` on two cores; other numbers round otherwise
    first = demo.demo(tmp_path / "first", 1)
    assert demo_config(1).task.test_examples == 1000  # type: ignore[union-attr]
    assert first["exact_match"] >= 0.98
    monkeypatch.chdir(tmp_path)
    pyplot.switch_backend("Agg")
    names = runpy.run_path(str(TUTORIAL))
    assert names["scores"]["exact_match"] == first["exact_match"]
    for name in ("best.safetensors", "checkpoint.safetensors"):
        folders = (tmp_path / "first", tmp_path / "runs" / "demo")
        one, other = (load_tensors(folder / name, "file")[0] for folder in folders)
        assert one.keys() == other.keys()
        assert all(torch.equal(one[key], other[key]) for key in one)
