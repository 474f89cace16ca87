"""The folder of a run: made, gone on with, refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headloom.errors import DataError, InputError
from headloom.formats.files import atomic_file
from headloom.formats.run import RunFolder

CONFIG: dict[str, Any] = {"model": {"width": 8, "norm": "pre"}, "training": {"seed": 1}}


def test_made_then_opened(tmp_path: Path) -> None:
    made = RunFolder.create_or_open(tmp_path / "a" / "b", CONFIG)
    assert made.state == "training"
    assert made.history.is_dir()
    assert RunFolder.open(made.path).config() == CONFIG
    made.set_state("finished")
    assert RunFolder.create_or_open(made.path, CONFIG).state == "finished"


def test_another_configuration_is_refused_by_its_first_difference(tmp_path: Path) -> None:
    RunFolder.create_or_open(tmp_path / "a", CONFIG)
    other = {"model": {"width": 16, "norm": "pre"}, "training": {"seed": 2}}
    with pytest.raises(
        InputError, match=r"model\.width was 8, is 16 \(and 1 more\)\. Choose another folder"
    ):
        RunFolder.create_or_open(tmp_path / "a", other)
    assert RunFolder.open(tmp_path / "a").config() == CONFIG


def test_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "config.json").write_text("mine")
    for name in ("file", "folder"):
        with pytest.raises(InputError, match="exists and is not a run"):
            RunFolder.create_or_open(tmp_path / name, CONFIG)
    assert (tmp_path / "file").read_text() == "mine"
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["config.json"]
    with pytest.raises(DataError, match="cannot make"):
        RunFolder.create_or_open(tmp_path / "file" / "below", CONFIG)


@pytest.mark.parametrize("stage", range(5))
def test_killed_while_it_was_made(tmp_path: Path, stage: int) -> None:
    """A folder in any state on the way to run.json is finished by the next start."""
    path = tmp_path / "a"
    path.mkdir()
    if stage > 0:
        (path / "history").mkdir()
    if stage > 1:
        with atomic_file(path / "config.json") as temporary:
            part = temporary.name
        (path / part).write_text("{half")
        (path / "config.json").unlink()
    if stage > 2:
        (path / "config.json").write_text(json.dumps({"another": "try"}))
    if stage > 3:
        (path / part.replace("config", "run")).write_text("")
    assert RunFolder.create_or_open(path, CONFIG).config() == CONFIG
    assert sorted(entry.name for entry in path.iterdir()) == ["config.json", "history", "run.json"]


def test_leftovers_go_when_a_run_goes_on(tmp_path: Path) -> None:
    folder = RunFolder.create_or_open(tmp_path / "a", CONFIG)
    for place in (folder.checkpoint, folder.history / "step-00000001.safetensors"):
        with atomic_file(place) as temporary:
            part = temporary.name
        place.rename(place.with_name(part))
    RunFolder.create_or_open(tmp_path / "a", CONFIG)
    assert not list((tmp_path / "a").rglob(".*"))


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
    folder = RunFolder.create_or_open(tmp_path / "a", CONFIG)
    assert folder.read_metrics() == []
    reports = [{"step": step, "loss": 1 / 3 / step} for step in (10, 20, 30)]
    for report in reports:
        folder.append_metrics(report)
    assert folder.read_metrics() == reports
    # Killed while a line was written: the line does not count, the others do.
    folder.metrics.write_text(folder.metrics.read_text() + '{"step": 4')
    assert folder.read_metrics() == reports
    folder.rewind_metrics(20)
    folder.append_metrics({"step": 21})
    assert folder.read_metrics() == [*reports[:2], {"step": 21}]
    folder.metrics.write_text('{"step": 1}\n{"st\n{"step": 3}\n')
    with pytest.raises(DataError, match=r"metrics\.jsonl: line 2 is damaged"):
        folder.read_metrics()
    for line in ("[1]", "{}", '{"step": "1"}'):
        folder.metrics.write_text(line + "\n")
        with pytest.raises(DataError, match=r"line 1 is damaged: expected an object"):
            folder.read_metrics()
