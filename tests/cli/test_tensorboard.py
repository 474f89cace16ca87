"""`headloom train --tensorboard`, read back by TensorBoard's own reader."""

from __future__ import annotations

import resource
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Command

from headloom.api.training_board import BoardListener
from headloom.errors import DataError, InputError
from headloom.formats.run import RunFolder
from headloom.training.checkpoint import Position
from headloom.training.config import load_config
from headloom.training.loop import train
from headloom.training.progress import SeveralListeners, SilentListener

CHANGES = [
    "training.max_steps=60", "training.validate_every=30", "training.checkpoint_every=25",
    "training.history=false",
]  # fmt: skip


def curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard shows of a folder: each curve's steps and values."""
    pytest.importorskip("tensorboard", reason="needs tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {
        name: [(scalar.step, scalar.value) for scalar in events.Scalars(name)]
        for name in events.Tags()["scalars"]
    }


def expected(run: Path) -> dict[str, list[tuple[int, float]]]:
    """The same from metrics.jsonl, written out by hand; the speed is left out."""
    reports = RunFolder(run).read_metrics()
    names = {
        "training/loss": "loss", "training/learning_rate": "learning_rate",
        "training/gradient_norm": "gradient_norm", "validation/loss": "validation_loss",
        "validation/accuracy": "validation_accuracy", "validation/perplexity": "perplexity",
    }  # fmt: skip
    return {
        curve: [(report["step"], report[name]) for report in reports if name in report]
        for curve, name in names.items()
    }


def assert_shows(folder: Path, run: Path) -> dict[str, list[tuple[int, float]]]:
    shown = curves(folder)
    speed = shown.pop("training/tokens_per_second")
    assert {step for step, _ in speed} <= {20, 40, 60}
    assert all(value > 0 for _, value in speed)
    known = expected(run)
    assert shown.keys() == known.keys()
    for name, points in known.items():
        assert [step for step, _ in shown[name]] == [step for step, _ in points], name
        values = [value for _, value in points]
        assert [value for _, value in shown[name]] == pytest.approx(values, rel=1e-5), name
    return known


def test_the_curves_are_the_lines_of_metrics(
    headloom_main: Command, data: Path, tmp_path: Path
) -> None:
    run, board = tmp_path / "run", tmp_path / "board"
    options = [part for change in CHANGES for part in ("--set", change)]
    command = ("train", data / "language.toml", "--run", run, "--tensorboard", board, *options)
    result = headloom_main(*command)
    assert result.code == 0, result.err
    known = assert_shows(board, run)
    assert [step for step, _ in known["training/loss"]] == [20, 40, 60]
    assert [step for step, _ in known["validation/loss"]] == [30, 60]
    # Given again, and then extended, the curves have no point twice.
    assert headloom_main(*command).code == 0
    assert_shows(board, run)
    longer = [option.replace("=60", "=90") for option in map(str, command)]
    assert headloom_main(*longer).code == 0
    shown = curves(board)
    assert [step for step, _ in shown["training/loss"]] == [20, 40, 60, 80]
    assert [step for step, _ in shown["validation/loss"]] == [30, 60, 90]


def test_a_run_that_was_killed_goes_on_without_doubled_points(data: Path, tmp_path: Path) -> None:
    """Killed at step 45, it goes on from the checkpoint at 25: 30 and 40 come anew."""

    class Interruption(SilentListener):
        def stepped(self, position: Position, loss: float, rate: float) -> None:
            if position.step == 45:
                raise KeyboardInterrupt

    run, board = tmp_path / "run", tmp_path / "board"
    config = load_config(data / "language.toml", CHANGES)
    with BoardListener(board, run) as listener, pytest.raises(KeyboardInterrupt):
        train(config, run, SeveralListeners(listener, Interruption()))
    assert [step for step, _ in curves(board)["training/loss"]] == [20, 40]
    first = len(list(board.iterdir()))
    with BoardListener(board, run) as listener:
        train(config, run, listener)
    assert len(list(board.iterdir())) > first
    assert_shows(board, run)


@pytest.mark.slow
def test_a_board_that_comes_late_has_the_steps_before_it(data: Path, tmp_path: Path) -> None:
    run, board = tmp_path / "run", tmp_path / "board"
    train(load_config(data / "language.toml", CHANGES), run, SilentListener())
    longer = load_config(data / "language.toml", [*CHANGES[1:], "training.max_steps=80"])
    with BoardListener(board, run) as listener:
        train(longer, run, listener)
    shown = curves(board)
    assert [step for step, _ in shown["training/loss"]] == [20, 40, 60, 80]
    assert {name: len(points) for name, points in expected(run).items()} == {
        name: len(points) for name, points in shown.items() if "per_second" not in name
    }


def test_steps_without_a_board_are_not_lost(data: Path, tmp_path: Path) -> None:
    """40 steps with the board, 20 without it, 20 more with it."""
    run, board = tmp_path / "run", tmp_path / "board"
    for steps, watched in ((40, True), (60, False), (80, True)):
        config = load_config(data / "language.toml", [*CHANGES[1:], f"training.max_steps={steps}"])
        if not watched:
            train(config, run, SilentListener())
            continue
        with BoardListener(board, run) as listener:
            train(config, run, listener)
    shown = curves(board)
    assert [step for step, _ in shown["training/loss"]] == [20, 40, 60, 80]
    assert [step for step, _ in shown["training/tokens_per_second"]] == [20, 40, 60, 80]
    assert [step for step, _ in shown["validation/loss"]] == [30, 40, 60, 80]


@pytest.mark.slow
def test_a_disk_that_is_full_is_one_line(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """TensorBoard's own thread says nothing of it."""
    pytest.importorskip("tensorboard", reason="needs tensorboard")
    run, board = tmp_path / "run", tmp_path / "board"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    class Filled(SilentListener):
        def stepped(self, position: Position, loss: float, rate: float) -> None:
            if position.step == 39:
                (events,) = board.iterdir()
                resource.setrlimit(resource.RLIMIT_FSIZE, (events.stat().st_size + 50, hard))

    config = load_config(data / "language.toml", CHANGES)
    try:
        with (
            pytest.raises(DataError, match=r"cannot write .*board: file too large\. Free some"),
            BoardListener(board, run) as listener,
        ):
            # The board before the limit, which would stop the other files as well.
            train(config, run, SeveralListeners(listener, Filled()))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "Traceback" not in capfd.readouterr().err
    with BoardListener(board, run) as listener:
        train(config, run, listener)
    assert_shows(board, run)


def test_the_speed_is_tokens_over_seconds_between_two_lines() -> None:
    from headloom.api.training_board import values_of

    report = {"step": 40, "tokens": 900, "seconds": 2.5, "gradient_norm": None, "loss": 1.0}
    values: dict[str, Any] = values_of(report, {"tokens": 400, "seconds": 0.5})
    assert values == {"training/loss": 1.0, "training/tokens_per_second": 250.0}


def test_without_tensorboard_nothing_is_begun(
    headloom_main: Command, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    command = ("train", data / "language.toml", "--run", tmp_path / "run")
    result = headloom_main(*command, "--tensorboard", tmp_path / "board")
    assert "is not installed. pip install tensorboard" in result.one_line()
    assert not list(tmp_path.iterdir())
    with pytest.raises(InputError, match="not installed"):
        BoardListener(tmp_path / "board", tmp_path / "run")


def test_a_folder_that_cannot_be_written(
    headloom_main: Command, data: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    command = ("train", data / "language.toml", "--run", tmp_path / "run")
    line = headloom_main(*command, "--tensorboard", tmp_path / "file").one_line()
    assert "file: not a folder. Give --tensorboard a folder" in line
    assert not (tmp_path / "run").exists()
