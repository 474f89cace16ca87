"""Bad input: one clear line that names it, exit code 2, nothing lost."""

from __future__ import annotations

import errno
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.cli import conftest
from tests.cli.conftest import Command
from tests.forked import Loaded

from headloom.formats import files
from headloom.formats.run import RunFolder


def assert_one_line(result: Any, *parts: str) -> None:
    """One line on standard error that holds the parts; nothing else anywhere."""
    assert result.out == "" and result.err.endswith("\n")
    conftest.assert_one_line(result, *parts)


@pytest.fixture
def train(headloom_main: Command, data: Path, tmp_path: Path) -> Command:
    """A function that trains a task with settings changed; checks that no run was made."""

    def call(task: str, *overrides: str) -> Any:
        options = [part for override in overrides for part in ("--set", override)]
        result = headloom_main("train", data / f"{task}.toml", "--run", tmp_path / "run", *options)
        assert not (tmp_path / "run").exists()
        return result

    return call


@pytest.mark.parametrize(
    ("task", "change", "parts"),
    [
        ("language", "task.file=no.txt", ["no.txt: no such text", "Check the path"]),
        ("translation", "task.valid=['no.tsv']", ["no.tsv: no such text"]),
        ("translation", 'task.train=["train.en", "short"]', ["24 lines", "short 1", "Align them"]),
        ("translation", 'task.train=["empty", "empty"]', ["no pairs"]),
        ("dates", "training.sede=3", ["'training.sede'", "did you mean 'seed'?"]),
        ("dates", "model.width=17", ["width 17", "Choose a multiple"]),
        ("dates", "training.seed", ["--set", "training.seed=2"]),
    ],
)
def test_configurations(
    train: Command, data: Path, task: str, change: str, parts: list[str]
) -> None:
    (data / "short").write_text("das cat\n")
    (data / "empty").write_text("\n")
    assert_one_line(train(task, change), *parts)


def test_a_missing_file(headloom_main: Command, tmp_path: Path) -> None:
    assert_one_line(
        headloom_main("train", tmp_path / "no.toml"),
        "no.toml",
        "Try: headloom train examples/dates.toml",
    )
    for verb in (
        ("evaluate", tmp_path / "no"),
        ("predict", tmp_path / "no"),
        ("trace", tmp_path / "no", "--text", "a", "-o", tmp_path / "t"),
    ):
        assert_one_line(headloom_main(*verb), f"{tmp_path / 'no'}: no such run", "headloom ")
    assert list(tmp_path.iterdir()) == []


def test_text_that_is_not_utf8(
    headloom_process: Command, train: Command, data: Path, runs: Path
) -> None:
    (data / "latin").write_bytes(b"das\nM\xe4dchen\n")
    result = train("translation", 'task.valid=["latin"]')
    assert_one_line(result, "latin: line 2 is not UTF-8", "iconv")
    result = headloom_process("predict", runs / "translation", stdin=b"das\nM\xe4dchen\n")
    # What comes before it is translated.
    assert len(result.out.splitlines()) == 1
    assert_one_line(replace(result, out=""), "standard input: line 2 is not UTF-8", "iconv")


def test_another_configuration_in_the_same_folder(
    headloom_main: Command, data: Path, runs: Path
) -> None:
    before = (runs / "dates" / "config.json").read_bytes()
    result = headloom_main(
        "train", data / "dates.toml", "--run", runs / "dates", "--set", "training.seed=5"
    )
    assert_one_line(result, "training.seed was 1, is 5", "--run")
    assert (runs / "dates" / "config.json").read_bytes() == before


@pytest.fixture
def broken(runs: Path, tmp_path: Path) -> RunFolder:
    """A copy of the translation run, to be damaged; it thinks that it is still training."""
    shutil.copytree(runs / "translation", tmp_path / "broken")
    folder = RunFolder(tmp_path / "broken")
    folder.set_state("training")
    return folder


@pytest.mark.parametrize("damage", ["half", "bit", "nothing"])
def test_a_damaged_checkpoint(
    headloom_main: Command, data: Path, broken: RunFolder, damage: str
) -> None:
    for path, command in (
        (broken.checkpoint, ("train", data / "translation.toml", "--run", broken.path)),
        (broken.best, ("evaluate", broken.path)),
    ):
        content = path.read_bytes()
        changed = {
            "half": content[: len(content) // 2],
            "bit": content[:-9] + bytes([content[-9] ^ 16]) + content[-8:],
            "nothing": b"",
        }[damage]
        path.write_bytes(changed)
        assert_one_line(
            headloom_main(*command), path.name, "this checkpoint is damaged", "Remove it"
        )
        assert path.read_bytes() == changed


@pytest.mark.parametrize("name", ["run.json", "config.json", "vocabulary.json"])
def test_other_damaged_files_of_a_run(headloom_main: Command, broken: RunFolder, name: str) -> None:
    (broken.path / name).write_text('{"half')
    assert_one_line(headloom_main("evaluate", broken.path), name, "damaged")
    (broken.path / name).unlink()
    assert_one_line(headloom_main("evaluate", broken.path), name)


def test_a_damaged_trace(headloom_main: Command, trace_path: Path, tmp_path: Path) -> None:
    assert list(trace_path.iterdir())
    for number, file in enumerate(sorted(trace_path.iterdir())):
        copy = tmp_path / f"{number}.loom"
        shutil.copytree(trace_path, copy)
        page = tmp_path / "page.html"
        content = file.read_bytes()
        (copy / file.name).write_bytes(content[: len(content) // 2])
        result = headloom_main("export", copy, "--html", page, "--parquet", tmp_path / "t.parquet")
        if result.code:  # queries and keys are not read by every picture
            assert_one_line(result, str(copy))
        (copy / file.name).unlink()
        result = headloom_main("export", copy, "--html", page)
        if result.code:
            assert_one_line(result, str(copy))
    assert_one_line(headloom_main("export", tmp_path, "--html", page), str(tmp_path))


def test_nothing_to_read_or_write(
    headloom_main: Command, runs: Path, trace_path: Path, tmp_path: Path
) -> None:
    result = headloom_main("trace", runs / "dates", "--text", "", "-o", tmp_path / "t")
    assert_one_line(result, "the text is empty")
    options = ("--text", "3 May 2001", "--target", " ", "-o", tmp_path / "t")
    assert_one_line(headloom_main("trace", runs / "dates", *options), "--target", "it is empty")
    assert_one_line(headloom_main("export", trace_path), "nothing to write", "Give html")
    result = headloom_main("export", trace_path, "--graphml", tmp_path / "g", "--layer", 9)
    assert_one_line(result, "layer 9", "0 to 2")
    result = headloom_main("trace", runs / "dates", "--text", "x", "-o", tmp_path / "no" / "t")
    assert_one_line(result, "cannot write", "exists and is writable")
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fills_while_a_checkpoint_is_written(
    headloom_main: Command, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run before the error is kept, and goes on when there is space again."""
    command = ("train", data / "language.toml", "--run", tmp_path / "run")
    written: list[str] = []
    sync = files.sync

    def full(path: Path) -> None:
        written.append(path.name)
        if path.name.startswith(".checkpoint") and "run.json" in str(written):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(path)

    with monkeypatch.context() as patch:
        patch.setattr(files, "sync", full)
        result = headloom_main(*command)
    assert result.code == 2
    last = result.err.splitlines()[-1]
    assert last.startswith("headloom: cannot write ")
    assert "no space left on device" in last
    assert "free some space" in last
    assert "Traceback" not in result.err
    assert not list((tmp_path / "run").rglob(".*"))
    assert headloom_main(*command).code == 0
    assert RunFolder(tmp_path / "run").state == "finished"


def test_a_disk_that_is_really_full(
    headloom_main: Command, data: Path, runs: Path, trace_path: Path, small_disk: Path
) -> None:
    result = headloom_main("train", data / "dates.toml", "--run", small_disk / "run")
    assert result.code == 2
    assert "Traceback" not in result.err
    last = result.err.splitlines()[-1]
    assert last.startswith(f"headloom: cannot write {small_disk}")
    assert "no space left on device" in last.lower()
    assert not list(small_disk.rglob(".*"))
    # Whatever is there is whole.
    for file in small_disk.rglob("*.safetensors"):
        from headloom.formats.tensors import load_tensors

        load_tensors(file, "file")
    filler = small_disk / "filler"
    with filler.open("wb", buffering=0) as file_object, pytest.raises(OSError, match="No space"):
        while True:
            file_object.write(b"x" * 4096)
    before = sorted(small_disk.rglob("*"))
    result = headloom_main("trace", runs / "dates", "--text", "de: 1", "-o", small_disk / "t.loom")
    assert_one_line(result, str(small_disk))
    for option in ("--html", "--parquet", "--picture", "--graphml"):
        suffix = {"--picture": ".png"}.get(option, ".x")
        result = headloom_main("export", trace_path, option, small_disk / f"out{suffix}")
        assert_one_line(result, str(small_disk))
    assert sorted(small_disk.rglob("*")) == before


def test_a_training_that_diverges(headloom_main: Command, data: Path, tmp_path: Path) -> None:
    options = ("--set", "training.peak_learning_rate=1e30", "--set", "training.max_steps=20")
    result = headloom_main("train", data / "language.toml", "--run", tmp_path / "run", *options)
    assert result.code == 2
    last = result.err.splitlines()[-1]
    assert "Lower training.peak_learning_rate" in last
    assert (
        last.endswith("; the last checkpoint is kept.")
        == (tmp_path / "run" / "checkpoint.safetensors").exists()
    )
    assert "Traceback" not in result.err


def test_output_that_cannot_be_written(loaded: Loaded, runs: Path) -> None:
    command = ("heads", runs / "language")
    with (
        Path("/dev/full").open("wb") as full,
        loaded.start(*command, stdout=full.fileno()) as process,
    ):
        _, errors = process.communicate()
    assert process.returncode == 2
    (line,) = errors.decode().splitlines()
    assert line.startswith("headloom: cannot write the output: no space left")
