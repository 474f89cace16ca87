"""The folder of a run: made, gone on with, refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headloom.errors import DataError, InputError
from headloom.formats.run import RunFolder

CONFIG: dict[str, Any] = {"model": {"width": 8, "norm": "pre"}, "training": {"seed": 1}}


def test_made_then_opened(tmp_path: Path) -> None:
    made = RunFolder.create(tmp_path / "a" / "b", CONFIG)
    assert made.state == "training"
    assert made.history.is_dir()
    assert RunFolder.open(made.path).config() == CONFIG
    made.set_state("finished")
    assert RunFolder.open(made.path).state == "finished"


def test_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "config.json").write_text("mine")
    for name in ("file", "folder"):
        for begin in (lambda path: RunFolder.create(path, CONFIG), locked):
            with pytest.raises(InputError, match="exists and is not a run"):
                begin(tmp_path / name)
    assert (tmp_path / "file").read_text() == "mine"
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["config.json"]
    with pytest.raises(DataError, match="cannot write"):
        locked(tmp_path / "file" / "below")


def locked(path: Path) -> None:
    with RunFolder.training_lock(path):
        pass


@pytest.mark.parametrize("stage", range(4))
def test_killed_while_it_was_made(tmp_path: Path, stage: int) -> None:
    """A folder in any state on the way to run.json is finished by the next start."""
    path = tmp_path / "a"
    path.mkdir()
    if stage > 0:
        (path / "history").mkdir()
    if stage > 1:
        (path / ".config.json.headloom-part-x").write_text("{half")
    if stage > 2:
        (path / "config.json").write_text(json.dumps({"another": "try"}))
    with RunFolder.training_lock(path):
        assert RunFolder.create(path, CONFIG).config() == CONFIG
    names = sorted(entry.name for entry in path.iterdir())
    assert names == ["config.json", "history", "lock", "run.json"]


def test_of_a_run_that_does_not_begin_nothing_is_left(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no data"), RunFolder.training_lock(tmp_path / "a" / "b"):
        (tmp_path / "a" / "b" / "data.json").write_text("{}")
        raise ValueError("no data")
    assert not list(tmp_path.iterdir())


def test_one_training_at_a_time(tmp_path: Path) -> None:
    with (
        RunFolder.training_lock(tmp_path / "a"),
        pytest.raises(InputError, match="is being trained already, in this or another process"),
    ):
        locked(tmp_path / "a")
    locked(tmp_path / "a")


def test_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no such run\. Check the path, or train one"):
        RunFolder.open(tmp_path / "no")
    with pytest.raises(DataError, match=r"not a headloom run \(it has no run.json\)"):
        RunFolder.open(tmp_path)
    file = tmp_path / "run.json"
    for text, message in (
        ("{", "this run is damaged"),
        ("[]", "not a headloom run"),
        ('{"format": "other"}', "not a headloom run"),
        ('{"format": "headloom run", "version": 99}', "a run of version 99; this headloom reads 1"),
    ):
        file.write_text(text)
        with pytest.raises(DataError, match=message):
            RunFolder.open(tmp_path)
    folder = RunFolder(tmp_path)
    folder.set_state("training")
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(DataError, match="this configuration is damaged"):
        RunFolder.open(tmp_path).config()


def test_metrics(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "a", CONFIG)
    assert folder.reports.read() == []
    reports = [{"step": step, "loss": 1 / 3 / step} for step in (10, 20, 30)]
    for report in reports:
        folder.reports.append(report)
    assert folder.reports.read() == reports
    # Killed while a line was written: the line does not count, the others do.
    folder.reports.path.write_text(folder.reports.path.read_text() + '{"step": 4')
    assert folder.reports.read() == reports
    folder.reports.rewind(20)
    folder.reports.append({"step": 21})
    assert folder.reports.read() == [*reports[:2], {"step": 21}]
    folder.reports.path.write_text('{"step": 1}\n{"st\n{"step": 3}\n')
    with pytest.raises(DataError, match=r"metrics\.jsonl: line 2 is damaged"):
        folder.reports.read()
    for line in ("[1]", "{}", '{"step": "1"}'):
        folder.reports.path.write_text(line + "\n")
        with pytest.raises(DataError, match=r"line 1 is damaged: expected an object"):
            folder.reports.read()
