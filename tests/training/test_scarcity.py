"""A training without memory or disk: one line, the last checkpoint whole, and it goes on."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.training.conftest import ConfigMaker, assert_same
from tests.training.test_loop import run

from headloom.errors import DataError
from headloom.formats.run import RunFolder
from headloom.training.checkpoint import Position
from headloom.training.loop import train
from headloom.training.progress import Callback


class AtStep(Callback):
    """Does something after a step."""

    def __init__(self, step: int, deed: Callable[[], None]) -> None:
        self.step, self.deed = step, deed

    def stepped(self, position: Position, loss: float, rate: float) -> None:
        if position.step == self.step:
            self.deed()


@contextmanager
def small_disk(path: Path) -> Iterator[Path]:
    """A file system of 1 MB."""
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(path)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount")
    try:
        yield path
    finally:
        # At once, whatever a process that was just started still has open.
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def fill(path: Path, room: int = 8192) -> None:
    """Leave so many bytes: 8 kB are less than a checkpoint takes."""
    with pytest.raises(OSError, match="No space left"), (path / "filler").open("wb") as file:
        while True:
            file.write(b"x" * 4096)
            file.flush()
    os.truncate(path / "filler", (path / "filler").stat().st_size - room)


def assert_kept(path: Path, before: bytes) -> None:
    """The former checkpoint is whole, and nothing half-written lies beside it."""
    assert (path / "checkpoint.safetensors").read_bytes() == before
    assert not [file for file in path.iterdir() if "headloom-part" in file.name]


def test_a_full_disk_keeps_the_former_checkpoint(tiny: ConfigMaker, tmp_path: Path) -> None:
    config = tiny(history=False, validate_every=12)
    before = b""
    with small_disk(tmp_path / "disk") as disk:
        path = disk / "run"

        def deed() -> None:
            nonlocal before
            before = (path / "checkpoint.safetensors").read_bytes()
            fill(disk)

        with pytest.raises(DataError, match=r"no space left.*previous file is intact; free some"):
            train(config, path, AtStep(7, deed))
        assert_kept(path, before)
        assert RunFolder(path).steps_done() == 5
        (disk / "filler").unlink()
        run(config, path)
        run(config, tmp_path / "whole")
        assert_same(path, tmp_path / "whole")


@pytest.mark.parametrize("room", range(0, 16384, 4096))
def test_a_disk_on_which_no_run_can_begin_is_left_as_it_was(
    tiny: ConfigMaker, tmp_path: Path, room: int
) -> None:
    """No room for config.json, for run.json, for vocabulary.json, for data.json."""
    with small_disk(tmp_path / "disk") as disk:
        fill(disk, room)
        (disk / "mine").mkdir()
        for run_folder in (disk / "runs" / "run", disk / "mine"):
            with pytest.raises(DataError, match="no space left on device"):
                train(tiny(), run_folder, Callback())
            assert sorted(entry.name for entry in disk.rglob("*")) == ["filler", "mine"]
