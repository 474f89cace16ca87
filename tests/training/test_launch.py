"""`headloom train --processes`: torch's own launcher, real processes, real kills."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.forked import Forked, Loaded
from tests.training.conftest import TEXT, toml

from headloom.formats.run import RunFolder
from headloom.training.config import RunConfig, check_config


def config_of(folder: Path, **training: object) -> RunConfig:
    """A tiny language model."""
    (folder / "text.txt").write_text(TEXT)
    return check_config(
        {
            "task": {"kind": "language", "file": str(folder / "text.txt"), "block": 8},
            "model": {"width": 16, "heads": 2, "feed_forward": 16, "decoder_layers": 1},
            "training": {
                "max_steps": 40, "batch_tokens": 32, "validate_every": 20, "checkpoint_every": 20,
                "warmup": 2, **training,
            },
        },
        "test",
    )  # fmt: skip


def start(loaded: Loaded, config: RunConfig, folder: Path, *options: str) -> Forked:
    file = folder / "config.toml"
    file.write_text(toml(config))
    return loaded.start("train", file, "--run", folder / "run", "--processes", "2", *options)


def ended(process: Forked) -> tuple[str, str]:
    """Standard output and error, as soon as there are all of them."""
    out, errors = process.communicate()
    return out.decode(), errors.decode()


def children(process: Forked) -> list[int]:
    listing = subprocess.run(
        ["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=False
    )
    return [int(line) for line in listing.stdout.split()]


def until(done: Callable[[], bool], process: Forked) -> None:
    """Wait until something is there, as long as the process lives."""
    while not done():
        assert process.poll() is None, ended(process)
        time.sleep(0.02)


@pytest.mark.slow
def test_a_killed_process_makes_all_go_on_from_the_checkpoint(
    loaded: Loaded, tmp_path: Path
) -> None:
    config = config_of(tmp_path, max_steps=160, checkpoint_every=20, validate_every=80)
    run = RunFolder(tmp_path / "run")
    with start(loaded, config, tmp_path, "--json") as process:
        until(run.checkpoint.exists, process)
        first = children(process)
        assert len(first) == 2
        os.kill(first[1], signal.SIGKILL)
        out, errors = ended(process)
    assert process.returncode == 0, errors
    assert "heads, after " in errors  # the second start
    assert errors.count("Trained 160 steps") == 1
    assert "Traceback" not in errors
    assert json.loads(out)["steps"] == 160
    steps = [report["step"] for report in run.reports.read() if "loss" in report]
    assert steps == list(range(20, 161, 20))


@pytest.mark.slow
def test_an_error_is_one_line_and_is_not_tried_again(loaded: Loaded, tmp_path: Path) -> None:
    config = config_of(tmp_path)
    (tmp_path / "text.txt").unlink()
    with start(loaded, config, tmp_path) as process:
        out, errors = ended(process)
    assert process.returncode == 2
    assert out == ""
    assert errors.count("\n") == 1, errors
    assert "text.txt: no such text" in errors


@pytest.mark.slow
@pytest.mark.parametrize("dashes", [True, False])
def test_the_documented_lines_of_torchrun_work(dashes: bool, tmp_path: Path) -> None:
    file, run = tmp_path / "config.toml", tmp_path / "run"
    file.write_text(toml(config_of(tmp_path)))
    arguments = (
        ["--", "train", str(file), "--run"] if dashes else ["train", str(file), "--run-folder"]
    )
    done = subprocess.run(
        [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
            "-m", "headloom", *arguments, str(run),
        ],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("Trained 40 steps") == 1
    assert RunFolder(run).state == "finished"
