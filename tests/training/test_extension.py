"""A run that goes on to a later end: as if it had been planned so long, and safe at any moment."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.forked import Loaded
from tests.training.test_kill import Starter, left_by
from tests.training.test_loop import Interruption, assert_same, everything, run, weights

from headloom.errors import DataError, InputError
from headloom.formats.history import History
from headloom.formats.run import RunFolder
from headloom.training.config import RunConfig
from headloom.training.loop import train

ConfigMaker = Callable[..., RunConfig]

#: All that has a state: dropout, moments, running mean, accumulation, epochs.
STATEFUL: dict[str, Any] = {
    "model": {"dropout": 0.2, "attention_dropout": 0.1}, "average": 0.9, "accumulate": 2,
    "batch_tokens": 128, "validate_every": 3, "checkpoint_every": 5,
}  # fmt: skip


@pytest.mark.parametrize("end", [9, 12], ids=["no snapshot is due", "a snapshot is due"])
def test_extended_equals_planned_long(tiny: ConfigMaker, tmp_path: Path, end: int) -> None:
    """The inverse square root does not know where a training ends."""
    long = tiny(**STATEFUL, max_steps=24)
    result = run(long, tmp_path / "long")
    run(tiny(**STATEFUL, max_steps=end), tmp_path / "run")
    assert History(tmp_path / "run" / "history").steps[-1] == end
    again = run(long, tmp_path / "run")
    assert_same(tmp_path / "long", tmp_path / "run")
    assert (again.steps, again.best_loss, again.tokens) == (24, result.best_loss, result.tokens)
    assert RunFolder(tmp_path / "run").config() == long.model_dump(mode="json")
    assert RunFolder(tmp_path / "run").state == "finished"


def test_the_validation_at_the_first_end_stays(tiny: ConfigMaker, tmp_path: Path) -> None:
    run(tiny(**STATEFUL, max_steps=24), tmp_path / "long")
    run(tiny(**STATEFUL, max_steps=10), tmp_path / "run")
    run(tiny(**STATEFUL, max_steps=24), tmp_path / "run")
    long, extended = weights(tmp_path / "long"), weights(tmp_path / "run")
    assert all(torch.equal(long[name], extended[name]) for name in long)
    reports = [everything(tmp_path / name)[1] for name in ("long", "run")]
    more = [report for report in reports[1] if report not in reports[0]]
    assert [report["step"] for report in more if "validation_loss" in report] == [10]


def test_other_ends(tiny: ConfigMaker, tmp_path: Path) -> None:
    """Epochs and patience are raised, then given up."""
    settings = {
        "peak_learning_rate": 3.0, "warmup": 6, "schedule": "constant", "validate_every": 2,
        "checkpoint_every": 50, "max_steps": 60,
    }  # fmt: skip
    first = run(tiny(**settings, patience=2), tmp_path / "run")
    assert (first.reason, first.steps) == ("patience", first.best_step + 2 * 2)
    second = run(tiny(**settings, patience=4), tmp_path / "run")
    assert second.steps > first.steps
    assert second.reason == "patience"
    last = run(tiny(**settings), tmp_path / "run")
    assert (last.reason, last.steps) == ("max_steps", 60)
    run(tiny(**settings), tmp_path / "long")
    assert_same(tmp_path / "long", tmp_path / "run")

    one = run(tiny(max_epochs=1, batch_tokens=256, max_steps=99), tmp_path / "epochs")
    two = run(tiny(max_epochs=2, batch_tokens=256, max_steps=99), tmp_path / "epochs")
    assert two.steps == 2 * one.steps


def test_the_schedule_is_that_of_the_new_end(tiny: ConfigMaker, tmp_path: Path) -> None:
    """At the end a cosine has reached 0; from there on it is the cosine of the longer run."""
    settings = {"schedule": "cosine", "warmup": 0}
    run(tiny(**settings, max_steps=20), tmp_path / "run")
    rate = RunFolder(tmp_path / "run").read_metrics()[-2]["learning_rate"]
    assert rate == pytest.approx(0, abs=1e-9)
    run(tiny(**settings, max_steps=60), tmp_path / "run")
    rates = {
        report["step"]: report["learning_rate"]
        for report in RunFolder(tmp_path / "run").read_metrics()
        if "loss" in report
    }
    assert rates[40] == pytest.approx(1e-3 * (1 + math.cos(math.pi * 40 / 60)) / 2)


def test_a_run_that_is_not_finished_may_get_a_later_end(tiny: ConfigMaker, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(tiny(**STATEFUL, max_steps=12), tmp_path / "run", Interruption(7))
    run(tiny(**STATEFUL, max_steps=24), tmp_path / "run")
    run(tiny(**STATEFUL, max_steps=24), tmp_path / "long")
    assert_same(tmp_path / "long", tmp_path / "run")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_steps": 5}, r"training\.max_steps was 12, is 5, and 12 steps are done: a run can"),
        ({"max_epochs": 5}, r"training\.max_epochs was None, is 5, and 12 steps are done"),
        ({"patience": 3}, r"training\.patience was 4, is 3, and 12 steps are done"),
        ({"max_steps": 20, "patience": 1}, r"training\.patience was 4, is 1"),
        ({"max_steps": 20, "warmup": 3}, r"another configuration: training\.warmup was 2, is 3\."),
    ],
)
def test_nothing_else_may_change(
    tiny: ConfigMaker, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    run(tiny(patience=4), tmp_path / "run")
    before = left_by(tmp_path / "run")[1], (tmp_path / "run" / "config.json").read_bytes()
    with pytest.raises(InputError, match=message) as error:
        run(tiny(**{"patience": 4} | change), tmp_path / "run")
    assert "\n" not in str(error.value)
    assert before == (
        left_by(tmp_path / "run")[1], (tmp_path / "run" / "config.json").read_bytes(),
    )  # fmt: skip


def test_a_run_that_cannot_be_extended_keeps_its_configuration(
    tiny: ConfigMaker, tmp_path: Path
) -> None:
    run(tiny(), tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    config = folder.config()
    folder.checkpoint.write_bytes(b"half")
    with pytest.raises(DataError, match="damaged"):
        run(tiny(max_steps=20), tmp_path / "run")
    assert (folder.config(), folder.state) == (config, "finished")


@pytest.mark.slow
def test_killed_while_it_is_extended(loaded: Loaded, tiny: ConfigMaker, tmp_path: Path) -> None:
    from tests.training.conftest import toml

    config, path = tmp_path / "config.toml", tmp_path / "run"
    for name, end in (("long", 24), ("run", 9)):
        config.write_text(toml(tiny(**STATEFUL, max_steps=end)))
        starter = Starter(loaded, config, tmp_path / name)
        assert starter.start() == 0, starter.errors
    config.write_text(toml(tiny(**STATEFUL, max_steps=24)))
    starter = Starter(loaded, config, path)
    states, statuses = set(), []
    for number in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12):
        statuses.append(starter.start(writing=number))
        state = json.loads((path / "run.json").read_text())["state"]
        states.add((state, RunFolder(path).config()["training"]["max_steps"]))
    statuses.append(starter.start())
    assert set(statuses) == {-9, 0}, starter.errors
    assert statuses[-1] == 0, starter.errors
    # Killed before the extension, between its two writes, and after them.
    assert {("finished", 9), ("training", 9), ("training", 24)} <= states
    assert left_by(path)[1] == left_by(tmp_path / "long")[1]
    assert_same(tmp_path / "long", path)
