"""kill -9 at any moment, start again: the same bits as a run that was never killed.

Real processes and real SIGKILLs. One process imports weft and forks a child for each start, so
that a start costs no import; the child does what the command ``weft train`` does.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training.conftest import toml

from weft.formats.run import RunFolder
from weft.formats.tensors import load_tensors
from weft.training.config import RunConfig

#: Reads lines "KIND NUMBER" and answers each with the child's exit status. KIND "seconds": killed
#: after so long; "writing": killed at the n-th time that a file or folder is synced to the disk,
#: before and after its renaming by turns; "never": left alone.
PARENT = """
import os, signal, sys, time
import weft.training.loop, weft.training.progress
from weft.cli import main
from weft.formats import files

config, run = sys.argv[1:]

def start(kind, number):
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if kind == "writing":
        synced, left = files.sync, [int(number)]
        def sync(path):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            synced(path)
        files.sync = sync
    main(["train", config, "--run", run, "--threads", "1"])

for line in sys.stdin:
    kind, number = line.split()
    child = os.fork()
    if child == 0:
        try:
            start(kind, number)
        except SystemExit as stop:
            sys.stderr.flush()
            os._exit(stop.code or 0)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
        os._exit(1)
    if kind == "seconds":
        time.sleep(float(number))
        os.kill(child, signal.SIGKILL)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Starter:
    """Starts a training again and again, and kills it."""

    def __init__(self, config: Path, run: Path) -> None:
        command = [sys.executable, "-W", "error", "-c", PARENT, str(config), str(run)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip

    def start(self, kind: str, number: float = 0) -> int:
        """The exit status: 0, or -9 where it was killed in time."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{kind} {number}\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def end(self) -> str:
        """What was written to standard error."""
        return self.process.communicate()[1]


def left_by(path: Path) -> tuple[dict[str, torch.Tensor], list[Any]]:
    """All that a run leaves, but for the clock."""
    tensors: dict[str, torch.Tensor] = {}
    others: list[Any] = [sorted(str(file.relative_to(path)) for file in path.rglob("*"))]
    for file in sorted(path.rglob("*.safetensors")):
        content, notes = load_tensors(file, "file")
        tensors |= {f"{file.name}:{key}": tensor for key, tensor in content.items()}
        notes.get("position", {}).pop("seconds", None)
        others.append((file.name, notes))
    for report in RunFolder(path).read_metrics():
        report.pop("seconds")
        others.append(report)
    others.append((path / "run.json").read_text())
    return tensors, others


@pytest.mark.parametrize(
    ("writes", "moments"),
    [
        pytest.param((1, 2, 4, 7, 13, 16, 9), (0.02, 0.1, 0.3), id="some"),
        pytest.param(
            (1, 2, 3, 4, 5, 6, 7, 8, 13, 14, 16, 23, 9, 18),
            (0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.3, 0.05, 0.4),
            id="many",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_killed_at_any_moment(
    tiny: Callable[..., RunConfig], tmp_path: Path, writes: Sequence[int], moments: Sequence[float]
) -> None:
    settings = tiny(
        model={"dropout": 0.2, "attention_dropout": 0.1}, average=0.9, max_steps=24,
        batch_tokens=128, validate_every=3, checkpoint_every=2, accumulate=2,
    )  # fmt: skip
    config = tmp_path / "config.toml"
    config.write_text(toml(settings))

    whole = Starter(config, tmp_path / "whole")
    status, errors = whole.start("never"), whole.end()
    assert status == 0, errors
    assert "Trained 24 steps" in errors

    pieces = Starter(config, tmp_path / "pieces")
    # First writes of a new folder; then among checkpoints, weights and snapshots.
    statuses = [pieces.start("writing", number) for number in writes]
    statuses += [pieces.start("seconds", seconds) for seconds in moments]
    statuses.append(pieces.start("never"))
    errors = pieces.end()
    assert set(statuses) <= {-9, 0}, errors
    assert statuses.count(-9) >= (len(writes) + len(moments)) // 2
    assert statuses[-1] == 0

    (tensors, others), (found, found_others) = (
        left_by(tmp_path / name) for name in ("whole", "pieces")
    )
    assert found_others == others
    assert found.keys() == tensors.keys()
    assert [name for name in tensors if not torch.equal(tensors[name], found[name])] == []


def test_a_checkpoint_is_never_half_written(tiny: Callable[..., RunConfig], tmp_path: Path) -> None:
    """Whenever a training is killed, each file that is there can be read."""
    config = tmp_path / "config.toml"
    config.write_text(toml(tiny(max_steps=30, checkpoint_every=1, validate_every=1)))
    starter = Starter(config, tmp_path / "run")
    for number in (9, 12, 15, 18):
        starter.start("writing", number)
        files = list((tmp_path / "run").rglob("[!.]*.safetensors"))
        for file in files:
            load_tensors(file, "file")
    assert files
    starter.end()


@pytest.mark.parametrize("content", [b"", b"half"])
def test_a_damaged_checkpoint_stops_a_run_and_is_kept(
    tiny: Callable[..., RunConfig], tmp_path: Path, content: bytes
) -> None:
    """A checkpoint that something else damaged: nothing is overwritten."""
    from weft.errors import DataError
    from weft.training.loop import train
    from weft.training.progress import SilentListener

    config = tiny(max_steps=3)
    train(config, tmp_path / "run", SilentListener())
    folder = RunFolder(tmp_path / "run")
    folder.set_state("training")
    folder.checkpoint.write_bytes(content)
    before = folder.metrics.read_text()
    with pytest.raises(DataError, match=r"checkpoint\.safetensors: this checkpoint is damaged"):
        train(config, tmp_path / "run", SilentListener())
    assert folder.checkpoint.read_bytes() == content
    assert folder.metrics.read_text() == before
