"""`headloom runs`: what is known of runs without their weights."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path

import pytest
from tests.cli.conftest import Command

from headloom.api.run_list import ListedRun, find_runs, list_runs


def test_each_run_has_its_figures(runs: Path, headloom_main: Command) -> None:
    result = headloom_main("runs", runs, "--json")
    assert result.code == 0
    listed = {Path(run["path"]).name: run for run in json.loads(result.out)["runs"]}
    table = headloom_main("runs", runs).out.splitlines()
    assert set(listed) == {"dates", "translation", "language"}
    for name, run in listed.items():
        reports = [
            json.loads(line) for line in (runs / name / "metrics.jsonl").read_text().splitlines()
        ]
        losses = {r["validation_loss"]: r["step"] for r in reports if "validation_loss" in r}
        assert run["task"] == name and run["state"] == "finished"
        assert (run["step"], run["steps"]) == (3, 3)
        assert run["best"] == min(losses) and run["best_step"] == losses[min(losses)]
        assert run["seconds"] == reports[-1]["seconds"]
        (row,) = [line for line in table if str(runs / name) in line]
        assert "3 of 3" in row and f"{run['best']:.4f}" in row
    rows = list(csv.DictReader(io.StringIO(headloom_main("runs", runs, "--csv").out)))
    assert [row["path"] for row in rows] == [str(runs / name) for name in sorted(listed)]


def test_speed_is_that_between_the_last_two_reports(tmp_path: Path, runs: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(runs / "dates", run)
    reports = [
        {"step": 10, "loss": 2.0, "tokens": 1_000, "seconds": 2.0},
        {"step": 10, "validation_loss": float("nan"), "seconds": 2.5},
        {"step": 20, "loss": 1.0, "tokens": 4_000, "seconds": 3.5},
        {"step": 20, "validation_loss": 1.5, "seconds": 9.0},
        {"step": 30, "validation_loss": 1.75, "seconds": 11.0},
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(report) + "\n" for report in reports))
    (listed,) = list_runs([run])
    assert listed.speed == 2_000
    assert (listed.best, listed.best_step, listed.step, listed.seconds) == (1.5, 20, 30, 11.0)


def test_a_run_that_trains_and_a_damaged_one(
    runs: Path, headloom_main: Command, tmp_path: Path
) -> None:
    for name in ("a", "b", "c"):
        shutil.copytree(runs / "dates", tmp_path / name)
    text = (tmp_path / "a" / "run.json").read_text()
    (tmp_path / "a" / "run.json").write_text(text.replace("finished", "training"))
    (tmp_path / "b" / "metrics.jsonl").write_text("{\n{}\n")
    (tmp_path / "c" / "metrics.jsonl").unlink()
    result = headloom_main("runs", tmp_path)
    assert result.code == 0
    first, second, third = result.out.splitlines()[1:]
    assert "training, " in first and " ago " in first
    assert "damaged" in second and second.split()[-5:] == ["-"] * 5
    assert "finished" in third and third.split()[-5:] == ["-"] * 5
    assert "metrics.jsonl: line 1 is damaged." in result.err


def test_a_watched_training_is_listed(tmp_path: Path) -> None:
    import torch

    import headloom

    model = torch.nn.TransformerEncoderLayer(8, 2, 8, batch_first=True, dropout=0.0)
    probe = torch.randn(1, 4, 8)
    with headloom.monitor(model, tmp_path / "watched", probe=probe, every=1) as monitor:
        monitor.step()
    (listed,) = list_runs(find_runs([tmp_path]))
    assert isinstance(listed, ListedRun)
    assert (listed.task, listed.step, listed.problem) == ("watched", 1, None)


def test_bad_input(headloom_main: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert headloom_main("runs").one_line().startswith("headloom: runs: no such folder.")
    (tmp_path / "runs").mkdir()
    assert "runs: no run is in it. Train one: headloom train." in headloom_main("runs").one_line()
