"""`weft train --processes`: torch's own launcher, real processes, real kills."""

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
from tests.training.conftest import TEXT, toml

from weft.errors import InputError
from weft.formats.run import RunFolder
from weft.jobs.launch import ENOUGH, Attempts
from weft.training.config import RunConfig, check_config


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


def start(config: RunConfig, folder: Path, *options: str) -> subprocess.Popen[str]:
    file = folder / "config.toml"
    file.write_text(toml(config))
    command = [sys.executable, "-m", "weft", "train", str(file), "--run", str(folder / "run")]
    return subprocess.Popen(
        [*command, "--processes", "2", *options],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def children(process: subprocess.Popen[str]) -> list[int]:
    listing = subprocess.run(
        ["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=False
    )
    return [int(line) for line in listing.stdout.split()]


def until(done: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Wait until something is there, as long as the process lives."""
    while not done():
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


def test_a_killed_process_makes_all_go_on_from_the_checkpoint(tmp_path: Path) -> None:
    config = config_of(tmp_path, max_steps=3_000, checkpoint_every=10, validate_every=1_000)
    run = RunFolder(tmp_path / "run")
    process = start(config, tmp_path, "--json")
    until(run.checkpoint.exists, process)
    first = children(process)
    assert len(first) == 2
    os.kill(first[1], signal.SIGKILL)
    out, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert "as learned in" in errors  # the second start
    assert errors.count("Trained 3,000 steps") == 1
    assert "Traceback" not in errors
    assert json.loads(out.splitlines()[-1])["steps"] == 3_000
    steps = [report["step"] for report in run.read_metrics() if "loss" in report]
    assert steps == list(range(20, 3_001, 20))


def test_an_error_is_one_line_and_is_not_tried_again(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    (tmp_path / "text.txt").unlink()
    process = start(config, tmp_path)
    out, errors = process.communicate(timeout=300)
    assert process.returncode == 2
    assert out == ""
    assert errors.count("\n") == 1, errors
    assert "text.txt: no such text" in errors


def test_stopped_by_a_person_no_process_is_left(tmp_path: Path) -> None:
    process = start(config_of(tmp_path, max_steps=100_000), tmp_path)
    until(RunFolder(tmp_path / "run").checkpoint.exists, process)
    ranks = children(process)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    assert errors.splitlines()[-1].startswith("weft: stopped. A training goes on")
    assert errors.count("stopped") == 1
    assert [rank for rank in ranks if Path(f"/proc/{rank}").exists()] == []


def test_where_the_launcher_dies_the_processes_end(tmp_path: Path) -> None:
    process = start(config_of(tmp_path, max_steps=100_000), tmp_path)
    until(RunFolder(tmp_path / "run").checkpoint.exists, process)
    ranks = children(process)
    process.kill()
    process.communicate()
    end = time.monotonic() + 60
    while any(Path(f"/proc/{rank}").exists() for rank in ranks):
        assert time.monotonic() < end
        time.sleep(0.1)


def test_processes_inside_of_torchruns_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(toml(config_of(tmp_path)))
    ended = subprocess.run(
        [sys.executable, "-m", "weft", "train", str(file), "--processes", "2"],
        capture_output=True, text=True, check=False,
        env={**os.environ, "RANK": "0", "WORLD_SIZE": "2"},
    )  # fmt: skip
    assert ended.returncode == 2
    assert "torchrun has started processes already" in ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize("dashes", [True, False])
def test_the_documented_lines_of_torchrun_work(dashes: bool, tmp_path: Path) -> None:
    file, run = tmp_path / "config.toml", tmp_path / "run"
    file.write_text(toml(config_of(tmp_path)))
    arguments = (
        ["--", "train", str(file), "--run"] if dashes else ["train", str(file), "--run-folder"]
    )
    ended = subprocess.run(
        [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
            "-m", "weft", *arguments, str(run),
        ],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("Trained 40 steps") == 1
    assert RunFolder(run).state == "finished"


def test_starts_of_no_avail_are_given_up(tmp_path: Path) -> None:
    attempts = Attempts(tmp_path)
    for step in (0, 0, 5):
        attempts.begin()
        attempts.begun_at(step)
    for _ in range(ENOUGH - 1):
        attempts.begin()  # killed before it went on, or at the same checkpoint
    with pytest.raises(InputError, match=f"ended {ENOUGH} times without a new checkpoint, at step"):
        attempts.begin()


def test_the_first_error_is_heard(tmp_path: Path) -> None:
    attempts = Attempts(tmp_path)
    assert attempts.error == ""
    attempts.end("disk full")
    attempts.end("connection lost")
    assert attempts.error == "disk full"
