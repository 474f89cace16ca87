"""kill -9 at any moment, start again: the same bits as a run that was never killed.

Real processes and real SIGKILLs, forked from one that has loaded headloom (tests/forked.py).
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.forked import Loaded
from tests.training.conftest import assert_same, toml

from headloom.formats.run import RunFolder
from headloom.training.config import RunConfig

#: `headloom train`, killed at the n-th time that a file or folder is synced to the disk, before and
#: after its renaming by turns; at 0 never.
PROGRAM = """
import os, signal, sys, warnings
from headloom.cli import main
from headloom.formats import files

warnings.simplefilter("error")
left, synced = [int(sys.argv.pop(1))], files.sync

def sync(path):
    left[0] -= 1
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    synced(path)

files.sync = sync
main(sys.argv[1:])
"""


class Starter:
    """Starts a training again and again, and kills it."""

    def __init__(self, loaded: Loaded, config: Path, run: Path) -> None:
        self._loaded, self._command = loaded, ("train", config, "--run", run, "--threads", "1")
        self.errors = ""

    def start(self, *, writing: int = 0, seconds: float | None = None) -> int:
        """The exit status: 0, or -9 where it was killed in time; neither given, it is not."""
        with self._loaded.start(writing, *self._command, program=PROGRAM) as process:
            if seconds is not None:
                time.sleep(seconds)
                process.send_signal(signal.SIGKILL)
            _, errors = process.communicate()
        self.errors += errors.decode()
        return process.wait()


@pytest.mark.parametrize(
    ("writes", "moments"),
    [
        pytest.param((2, 7, 16, 9), (0.1,), id="some"),
        pytest.param(
            (1, 2, 3, 4, 5, 6, 7, 8, 13, 14, 16, 23, 9, 18),
            (0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.3, 0.05, 0.4),
            id="many",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_killed_at_any_moment(
    loaded: Loaded,
    tiny: Callable[..., RunConfig],
    tmp_path: Path,
    writes: Sequence[int],
    moments: Sequence[float],
) -> None:
    settings = tiny(
        model={"dropout": 0.2, "attention_dropout": 0.1}, average=0.9, max_steps=24,
        batch_tokens=128, validate_every=3, checkpoint_every=2, accumulate=2,
    )  # fmt: skip
    config = tmp_path / "config.toml"
    config.write_text(toml(settings))

    whole = Starter(loaded, config, tmp_path / "whole")
    assert whole.start() == 0, whole.errors
    assert "Trained 24 steps" in whole.errors

    pieces = Starter(loaded, config, tmp_path / "pieces")
    # First writes of a new folder; then among checkpoints, weights and snapshots.
    statuses = [pieces.start(writing=number) for number in writes]
    statuses += [pieces.start(seconds=seconds) for seconds in moments]
    statuses.append(pieces.start())
    assert set(statuses) <= {-9, 0}, pieces.errors
    assert statuses.count(-9) >= (len(writes) + len(moments)) // 2
    assert statuses[-1] == 0

    assert_same(tmp_path / "whole", tmp_path / "pieces")


#: `headloom train`, which adds a line to a file after each step.
STEPS = """
import sys
from headloom.cli import main
from headloom.training.progress import ConsoleProgress

stepped, steps = ConsoleProgress.stepped, open(sys.argv.pop(1), "a", buffering=1)

def noted(self, position, loss, rate):
    print(position.step, loss, file=steps)
    stepped(self, position, loss, rate)

ConsoleProgress.stepped = noted
main(sys.argv[1:])
"""


@pytest.mark.parametrize(
    ("moments", "number"),
    [
        (2, signal.SIGINT),
        pytest.param(10, signal.SIGINT, marks=pytest.mark.slow),
        pytest.param(3, signal.SIGTERM, marks=pytest.mark.slow),
    ],
)
def test_told_to_stop_at_any_moment_a_training_loses_nothing(
    loaded: Loaded, tiny: Callable[..., RunConfig], tmp_path: Path, moments: int, number: int
) -> None:
    """No step is computed twice, although no checkpoint is due before the end."""
    config, steps, total = tmp_path / "config.toml", tmp_path / "steps", 40 * (moments + 1)
    settings = tiny(
        model={"dropout": 0.2}, average=0.9, max_steps=total, validate_every=15,
        checkpoint_every=total,
    )  # fmt: skip
    config.write_text(toml(settings))
    assert Starter(loaded, config, tmp_path / "whole").start() == 0
    command = (steps, "train", config, "--run", tmp_path / "pieces", "--threads", "1")
    numbers = random.Random(7)
    steps.touch()
    for _ in range(moments):
        before, later = steps.read_text().count("\n"), numbers.randint(1, 35)
        with loaded.start(*command, program=STEPS) as process:
            while steps.read_text().count("\n") < before + later:
                assert process.poll() is None, process.errors()
            time.sleep(numbers.uniform(0, 0.02))
            process.send_signal(number)
            _, errors = process.communicate()
        assert process.wait() == (130 if number == signal.SIGINT else -number), errors
        done = steps.read_text().splitlines()
        assert RunFolder(tmp_path / "pieces").steps_done() == len(done) < total
    with loaded.start(*command, program=STEPS) as process:
        assert process.wait() == 0, process.errors()
    assert [int(line.split()[0]) for line in steps.read_text().splitlines()] == [
        *range(1, total + 1)
    ]
    assert_same(tmp_path / "whole", tmp_path / "pieces")


@pytest.mark.parametrize("content", [b"", b"half"])
def test_a_damaged_checkpoint_stops_a_run_and_is_kept(
    tiny: Callable[..., RunConfig], tmp_path: Path, content: bytes
) -> None:
    """A checkpoint that something else damaged: nothing is overwritten."""
    from headloom.errors import DataError
    from headloom.training.loop import train
    from headloom.training.progress import Callback

    config = tiny(max_steps=3)
    train(config, tmp_path / "run", Callback())
    folder = RunFolder(tmp_path / "run")
    folder.set_state("training")
    folder.checkpoint.write_bytes(content)
    before = folder.reports.path.read_text()
    with pytest.raises(DataError, match=r"checkpoint\.safetensors: this checkpoint is damaged"):
        train(config, tmp_path / "run", Callback())
    assert folder.checkpoint.read_bytes() == content
    assert folder.reports.path.read_text() == before
