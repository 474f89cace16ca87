"""A run that goes on to a later end: as if it had been planned so long, and safe at any moment."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.forked import Loaded
from tests.training.conftest import assert_same, everything, toml
from tests.training.test_kill import Starter
from tests.training.test_loop import run

from headloom.errors import InputError
from headloom.formats.history import History
from headloom.formats.run import RunFolder
from headloom.training.config import RunConfig

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
    before = everything(tmp_path / "run")[1], (tmp_path / "run" / "config.json").read_bytes()
    with pytest.raises(InputError, match=message) as error:
        run(tiny(**{"patience": 4} | change), tmp_path / "run")
    assert "\n" not in str(error.value)
    assert before == (
        everything(tmp_path / "run")[1], (tmp_path / "run" / "config.json").read_bytes(),
    )  # fmt: skip


@pytest.mark.slow
def test_killed_while_it_is_extended(loaded: Loaded, tiny: ConfigMaker, tmp_path: Path) -> None:
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
    assert_same(tmp_path / "long", path)
