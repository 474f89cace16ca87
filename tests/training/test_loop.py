"""The training loop: its arithmetic, when it stops, and that interruptions change nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training.conftest import assert_same, measures_of
from torch import Tensor, nn

from headloom.errors import DataError, InputError
from headloom.formats.history import History
from headloom.formats.run import RunFolder
from headloom.formats.tensors import load_tensors
from headloom.mechanism.watching import layers_of
from headloom.training.checkpoint import Position
from headloom.training.config import RunConfig, TrainingConfig
from headloom.training.inference import generate_text, open_run
from headloom.training.loop import TrainingResult, train
from headloom.training.progress import Callback
from headloom.training.tasks import build_model, make_task
from headloom.training.tasks.task import Task

ConfigMaker = Callable[..., RunConfig]


def run(config: RunConfig, path: Path) -> TrainingResult:
    return train(config, path, Callback())


def weights(path: Path) -> dict[str, Tensor]:
    """The model of the last checkpoint."""
    tensors, _ = load_tensors(path / "checkpoint.safetensors", "checkpoint")
    return {
        name.removeprefix("model/"): tensor
        for name, tensor in tensors.items()
        if name.startswith("model/")
    }


def test_the_loss_falls(tiny: ConfigMaker, tmp_path: Path) -> None:
    result = run(tiny(max_steps=100, peak_learning_rate=1e-2, validate_every=50), tmp_path / "a")
    first, *_, last = (r for r in result.folder.reports.read() if "validation_loss" in r)
    characters = len(make_task(tiny()).vocabulary) - 4
    assert last["validation_loss"] < first["validation_loss"]
    assert last["validation_loss"] < 0.7 * math.log(characters)
    assert last["perplexity"] == pytest.approx(math.exp(last["validation_loss"]))
    assert 0 < last["validation_accuracy"] < 1


def test_the_kept_weights_are_those_of_the_best_loss(tiny: ConfigMaker, tmp_path: Path) -> None:
    result = run(tiny(average=0.9), tmp_path / "a")
    opened = open_run(tmp_path / "a")
    assert opened.step == result.best_step
    measures = measures_of(opened, "valid")
    assert measures["loss"] == pytest.approx(result.best_loss, rel=1e-5)


class Interruption(Callback):
    """Stops a training after a step, as a crash would: with no word to anyone."""

    def __init__(self, step: int) -> None:
        self.step = step

    def stepped(self, position: Position, loss: float, rate: float) -> None:
        if position.step == self.step:
            raise KeyboardInterrupt


def test_interruptions_change_nothing(tiny: ConfigMaker, tmp_path: Path) -> None:
    """With all that has a state: dropout, moments, running mean, accumulation, epochs."""
    config = tiny(
        model={"dropout": 0.2, "attention_dropout": 0.1}, average=0.9, accumulate=2, max_steps=24,
        batch_tokens=128, validate_every=3, checkpoint_every=5, schedule="cosine",
    )  # fmt: skip
    result = run(config, tmp_path / "whole")
    for step in (1, 4, 5, 6, 6, 14, 19, 24):
        with pytest.raises(KeyboardInterrupt):
            train(config, tmp_path / "pieces", Interruption(step))
        assert RunFolder(tmp_path / "pieces").state == "training"
    again = run(config, tmp_path / "pieces")
    assert_same(tmp_path / "whole", tmp_path / "pieces")
    assert (again.best_loss, again.best_step) == (result.best_loss, result.best_step)
    assert (again.tokens, again.reason) == (result.tokens, result.reason)
    _, notes = load_tensors(tmp_path / "pieces" / "checkpoint.safetensors", "checkpoint")
    assert notes["position"]["epoch"] > 0


def test_a_finished_run_is_left_as_it_is(tiny: ConfigMaker, tmp_path: Path) -> None:
    first = run(tiny(), tmp_path / "a")
    before = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*.safetensors")}
    second = run(tiny(), tmp_path / "a")
    assert (first.already, second.already) == (False, True)
    assert before == {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*.safetensors")}
    assert (second.steps, second.seconds, second.best_loss) == (
        first.steps, first.seconds, first.best_loss,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"width": 15}, "width 15 does not split into model.heads = 2"),
        ({"kv_heads": 3}, r"model\.kv_heads 3 does not divide model\.heads = 2"),
        (
            {"positions": "learned", "max_length": 4},
            r"model\.max_length is 4, the longest text has 8 tokens\. .* a smaller task\.block\.",
        ),
    ],
)
def test_a_model_that_cannot_be_leaves_nothing_behind(
    tiny: ConfigMaker, tmp_path: Path, model: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        run(tiny(model=model), tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


def test_patience(tiny: ConfigMaker, tmp_path: Path) -> None:
    config = tiny(
        peak_learning_rate=3.0, warmup=6, max_steps=500, validate_every=2, patience=3,
        schedule="constant",
    )  # fmt: skip
    result = run(config, tmp_path / "a")
    assert result.reason == "patience"
    assert result.steps == result.best_step + 3 * 2
    losses = [r["validation_loss"] for r in result.folder.reports.read() if "validation_loss" in r]
    assert min(losses) == result.best_loss
    assert all(loss >= result.best_loss for loss in losses[-3:])


def moments(path: Path) -> dict[str, Tensor]:
    """(1 - beta_1) times the gradient, after one step."""
    tensors, _ = load_tensors(path / "checkpoint.safetensors", "checkpoint")
    return {name: tensor for name, tensor in tensors.items() if name.endswith("exp_avg")}


def test_accumulated_batches_are_one_large_batch(tiny: ConfigMaker, tmp_path: Path) -> None:
    run(tiny(max_steps=1, batch_tokens=64), tmp_path / "large")
    run(tiny(max_steps=1, batch_tokens=32, accumulate=2), tmp_path / "halves")
    first, second = moments(tmp_path / "large"), moments(tmp_path / "halves")
    assert first
    for name, moment in first.items():
        torch.testing.assert_close(second[name], moment, rtol=1e-4, atol=1e-7)


def test_the_whole_gradient_is_clipped(tiny: ConfigMaker, tmp_path: Path) -> None:
    def norm(path: Path) -> float:
        squares = sum(float(moment.square().sum()) for moment in moments(path).values())
        return math.sqrt(squares) / (1 - 0.9)

    run(tiny(max_steps=1, clip_norm=None), tmp_path / "free")
    free = norm(tmp_path / "free")
    run(tiny(max_steps=1, clip_norm=free / 3), tmp_path / "clipped")
    assert norm(tmp_path / "clipped") == pytest.approx(free / 3, rel=1e-4)
    for name, most in (("loose", free * 3), ("zero", 0.0)):
        run(tiny(max_steps=1, clip_norm=most), tmp_path / name)
        assert norm(tmp_path / name) == pytest.approx(free, rel=1e-4)


def test_the_running_mean_of_the_weights(tiny: ConfigMaker, tmp_path: Path) -> None:
    """Its decay is min(average, n / (n + 10)) at step n: 1/11 and 2/12 here; 0.15 caps it."""
    config = tiny(max_steps=2, average=0.15, validate_every=1, checkpoint_every=1)
    task = make_task(config)
    torch.manual_seed(1)
    born = dict(build_model(config, task.description).named_parameters())

    class Watcher(Callback):
        seen: list[dict[str, Tensor]]

        def __init__(self) -> None:
            self.seen = []

        def started(
            self, task: Task, model: nn.Module, position: Position, settings: TrainingConfig
        ) -> None:
            self.model = model
            for name, parameter in model.named_parameters():
                assert torch.equal(parameter, born[name])

        def stepped(self, position: Position, loss: float, rate: float) -> None:
            self.seen.append(
                {name: p.detach().clone() for name, p in self.model.named_parameters()}
            )

    watcher = Watcher()
    train(config, tmp_path / "a", watcher)
    tensors, _ = load_tensors(tmp_path / "a" / "checkpoint.safetensors", "checkpoint")
    for name, start in born.items():
        one = start.detach() / 11 + watcher.seen[0][name] * 10 / 11
        two = 0.15 * one + 0.85 * watcher.seen[1][name]
        torch.testing.assert_close(tensors[f"average/{name}"], two, rtol=1e-5, atol=1e-6)
        # The model goes on from its own weights, not from the mean.
        assert torch.equal(tensors[f"model/{name}"], watcher.seen[1][name])
    opened = open_run(tmp_path / "a")
    for name, parameter in opened.model.named_parameters():
        assert opened.step == 2
        torch.testing.assert_close(parameter.detach(), tensors[f"average/{name}"])


def test_metrics(tiny: ConfigMaker, tmp_path: Path) -> None:
    result = run(tiny(max_steps=40, warmup=10, schedule="linear"), tmp_path / "a")
    steps = [r for r in result.folder.reports.read() if "loss" in r]
    assert [r["step"] for r in steps] == [20, 40]
    assert steps[0]["learning_rate"] == pytest.approx(1e-3 * 20 / 30)
    assert steps[1]["learning_rate"] == 0
    assert steps[1]["tokens"] == result.tokens == 40 * 32
    assert all(r["gradient_norm"] > 0 for r in steps)


@pytest.fixture(scope="module")
def recorded(tiny: ConfigMaker, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recorded") / "run"
    model = {"kv_heads": 1, "decoder_layers": 2, "dropout": 0.3}
    run(tiny(model=model, max_steps=13, history_growth=2.0, checkpoint_every=13), path)
    return path


def test_the_history_follows_a_geometric_schedule(recorded: Path) -> None:
    history = History(recorded / "history")
    assert history.steps == [0, 1, 2, 4, 8, 13]
    assert history[0].loss is not None
    assert history[13].loss is None
    rows = history.measures()
    last = rows["step"] == 13
    assert 0 < last.sum() < len(rows)
    assert (rows["gradient_norm_W_Q"][~last] > 0).all()
    assert rows["gradient_norm_W_Q"][last].isna().all()


def test_snapshots_hold_the_models_matrices(tiny: ConfigMaker, recorded: Path) -> None:
    history = History(recorded / "history")
    run_folder = open_run(recorded)
    model = run_folder.model
    model.load_state_dict(weights(recorded), strict=False)
    for name, layer in layers_of(model):
        found = history[13].layer(name)
        assert found.kind == "decoder"
        for matrix, tensor in layer.matrices().items():
            assert torch.equal(found.matrices[matrix], tensor)
    # And at birth, those that the seed draws.
    torch.manual_seed(run_folder.config.training.seed)
    for name, layer in layers_of(build_model(run_folder.config, run_folder.data)):
        for matrix, tensor in layer.matrices().items():
            assert torch.equal(history[0].layer(name).matrices[matrix], tensor)


@pytest.mark.parametrize("damage", ["missing", "damaged"])
def test_best_weights_that_are_gone_end_a_run_that_goes_on(
    tiny: ConfigMaker, tmp_path: Path, damage: str
) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(tiny(), tmp_path / "a", Interruption(7))  # step 4 was the best, 5 the checkpoint
    best = tmp_path / "a" / "best.safetensors"
    content = best.read_bytes()
    best.unlink()
    with pytest.raises(DataError, match=r"has kept no weights yet; .* put a copy of best"):
        open_run(tmp_path / "a")
    if damage == "damaged":
        best.write_bytes(content[:-9])
    message = r"best\.safetensors: .* best weights \(step 4\) are missing or damaged\. Put"
    with pytest.raises(DataError, match=message):
        run(tiny(), tmp_path / "a")
    best.write_bytes(content)
    assert run(tiny(), tmp_path / "a").steps == 12


def test_what_is_written_is_text_as_long_as_was_asked_for(
    tiny: ConfigMaker, tmp_path: Path
) -> None:
    """After a step, the four special tokens are nearly as likely as letters."""
    run(tiny(max_steps=1), tmp_path / "a")
    opened = open_run(tmp_path / "a")
    for temperature in (1.0, 5.0):
        assert len(generate_text(opened, "the ", length=300, temperature=temperature)) == 300


def test_what_is_written_ends_where_the_positions_do(tiny: ConfigMaker, tmp_path: Path) -> None:
    run(tiny(model={"positions": "learned", "max_length": 8}, max_steps=1), tmp_path / "a")
    opened = open_run(tmp_path / "a")
    message = r"a prompt of 4 tokens and 6 more: the model's positions end at 8\. Give a shorter"
    with pytest.raises(InputError, match=message):
        generate_text(opened, "the ", length=6)
    assert len(generate_text(opened, "the ", length=5, seed=3)) == 5
    with pytest.raises(InputError, match=r"a prompt of 9 tokens and 1 more: .* end at 8"):
        generate_text(opened, "the cat s", length=1)
