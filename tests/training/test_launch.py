"""`headloom train --processes`: torch's own launcher, real processes, real kills."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.forked import Forked, Loaded
from tests.training.conftest import TEXT, toml

from headloom.api.launch import ENOUGH, Attempts
from headloom.errors import InputError
from headloom.formats.run import RunFolder
from headloom.formats.tensors import load_tensors
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
    assert "as learned in" in errors  # the second start
    assert errors.count("Trained 160 steps") == 1
    assert "Traceback" not in errors
    assert json.loads(out)["steps"] == 160
    steps = [report["step"] for report in run.read_metrics() if "loss" in report]
    assert steps == list(range(20, 161, 20))


@pytest.mark.slow
def test_twenty_kills_at_random_moments_change_no_bit(loaded: Loaded, tmp_path: Path) -> None:
    numbers, left = random.Random(5), 20
    settings = {"max_steps": 4_000, "checkpoint_every": 25, "validate_every": 500, "average": 0.9}
    for name in ("whole", "pieces"):
        (tmp_path / name).mkdir()
    with start(loaded, config_of(tmp_path / "whole", **settings), tmp_path / "whole") as whole:
        _, errors = ended(whole)
    assert whole.returncode == 0, errors
    config, metrics = (
        config_of(tmp_path / "pieces", **settings),
        tmp_path / "pieces/run/metrics.jsonl",
    )
    with start(loaded, config, tmp_path / "pieces") as pieces:
        while left:
            size = metrics.stat().st_size if metrics.exists() else 0
            # While it starts, or a little later than the first report after the start.
            if numbers.random() < 0.75:
                until(lambda size=size: metrics.exists() and metrics.stat().st_size != size, pieces)  # type: ignore[misc]
            time.sleep(numbers.uniform(0, 1))
            ranks = children(pieces)
            if ranks:
                os.kill(numbers.choice(ranks), signal.SIGKILL)
                left -= 1
        _, errors = ended(pieces)
    assert pieces.returncode == 0, errors
    one, two = (
        load_tensors(tmp_path / name / "run" / "checkpoint.safetensors", "checkpoint")[0]
        for name in ("whole", "pieces")
    )
    assert one.keys() == two.keys()
    assert [name for name in one if not torch.equal(one[name], two[name])] == []


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
def test_stopped_by_a_person_no_process_is_left(loaded: Loaded, tmp_path: Path) -> None:
    """And the step that they were in is kept: none is lost, all agree which it is."""
    run = RunFolder(tmp_path / "run")
    never = config_of(tmp_path, max_steps=100_000, checkpoint_every=100_000)
    with start(loaded, never, tmp_path) as process:
        until(lambda: run.metrics.exists() and bool(run.read_metrics()), process)
        ranks = children(process)
        process.send_signal(signal.SIGINT)
        _, errors = ended(process)
    assert process.returncode == 130
    assert errors.splitlines()[-1].startswith("headloom: stopped. The same command goes on")
    assert run.steps_done() >= run.read_metrics()[-1]["step"] >= 20
    assert errors.count("stopped") == 1
    assert [rank for rank in ranks if Path(f"/proc/{rank}").exists()] == []


@pytest.mark.slow
def test_where_the_launcher_dies_the_processes_end(loaded: Loaded, tmp_path: Path) -> None:
    with start(loaded, config_of(tmp_path, max_steps=100_000), tmp_path) as process:
        until(RunFolder(tmp_path / "run").checkpoint.exists, process)
        ranks = children(process)
        process.send_signal(signal.SIGKILL)
        process.wait()
    end = time.monotonic() + 60
    while any(Path(f"/proc/{rank}").exists() for rank in ranks):
        assert time.monotonic() < end
        time.sleep(0.1)


def test_processes_inside_of_torchruns_are_refused(loaded: Loaded, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(toml(config_of(tmp_path)))
    torchruns = {"RANK": "0", "WORLD_SIZE": "2"}
    with loaded.start("train", file, "--processes", "2", **torchruns) as process:
        _, errors = ended(process)
    assert process.returncode == 2
    assert "torchrun has started processes already" in errors


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
