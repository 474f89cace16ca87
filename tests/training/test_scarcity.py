"""A training without memory or disk: one line, the last checkpoint whole, and it goes on."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.forked import Loaded
from tests.training.conftest import ConfigMaker, toml
from tests.training.test_loop import assert_same, run

from headloom.errors import DataError
from headloom.formats.run import RunFolder
from headloom.training.checkpoint import Position
from headloom.training.loop import train
from headloom.training.progress import SilentListener

#: Lets `headloom train` have 4 MB more than it holds after step 4. Large blocks of memory come from
# the #: system, and go back to it: none is there from the steps before.
LIMITED = """
import ctypes, resource, sys
from pathlib import Path
from headloom.cli import main
from headloom.training.progress import ConsoleListener

def stepped(self, position, loss, rate):
    if position.step == 4:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + 4 * 2**20
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

M_MMAP_THRESHOLD = -3
assert ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1 << 18)
ConsoleListener.stepped = stepped
main(sys.argv[1:])
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux")
def test_out_of_memory_is_one_line_and_the_run_goes_on(
    loaded: Loaded, tiny: ConfigMaker, text_file: Path, tmp_path: Path
) -> None:
    """By a real limit: a batch makes tensors of 16 MB, 4 MB are left."""

    def headloom(*arguments: object, program: str | None = None) -> tuple[int, list[str]]:
        """The exit status, and the lines of standard error."""
        with loaded.start(*arguments, program=program) as process:
            _, errors = process.communicate()
            return process.wait(), errors.decode().splitlines()

    sizes = {"width": 8, "feed_forward": 512}
    text = tmp_path / "long.txt"
    text.write_text(text_file.read_text() * 8)
    config = tiny(
        model=sizes, batch_tokens=8_192, max_steps=6, checkpoint_every=3, validate_every=3
    )
    content = toml(config).replace(str(text_file), str(text))
    (tmp_path / "c.toml").write_text(content)
    command = ("train", tmp_path / "c.toml", "--run", tmp_path / "run", "--threads", "1")
    code, lines = headloom(*command, program=LIMITED)
    assert code == 2, lines
    assert not [line for line in lines if "Traceback" in line]
    assert lines[-1] == (
        "headloom: step 5: not enough memory. With more of it the same command goes on from step "
        "3, "
        "its last checkpoint; or train in another folder, by --run, with smaller batches: --set "
        "training.batch_tokens=4096 --set training.accumulate=2 (now 8192 and 1)."
    )
    folder = RunFolder.open(tmp_path / "run")
    assert (folder.steps_done(), folder.state) == (3, "training")

    # What the line says is true: smaller batches need another folder, and fit there; with more
    # memory the run goes on, and ends as one that never stopped.
    smaller = ("--set", "training.batch_tokens=512", "--set", "training.accumulate=2")
    code, lines = headloom(*command, *smaller, program=LIMITED)
    assert "started with another configuration: training." in lines[-1]
    other = ("train", tmp_path / "c.toml", "--run", tmp_path / "other", "--threads", "1", *smaller)
    code, lines = headloom(*other, program=LIMITED)
    assert code == 0, lines
    for name in ("run", "whole"):
        code, lines = headloom(
            "train", tmp_path / "c.toml", "--run", tmp_path / name, "--threads", "1"
        )
        assert code == 0, lines
    assert_same(tmp_path / "run", tmp_path / "whole")


class AtStep(SilentListener):
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

        with pytest.raises(DataError, match=r"no space left.*file before it is whole; free some"):
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
                train(tiny(), run_folder, SilentListener())
            assert sorted(entry.name for entry in disk.rglob("*")) == ["filler", "mine"]
