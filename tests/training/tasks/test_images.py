"""Images: splits, normalisation, batches, measures; runs of both models, killed and gone on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.training.conftest import measures_of

from headloom.errors import InputError
from headloom.formats.tensors import load_tensors
from headloom.models.images import ImageShape
from headloom.training.config import RunConfig, check_config
from headloom.training.inference import open_run
from headloom.training.loop import train
from headloom.training.progress import Callback
from headloom.training.sections import ImagesConfig
from headloom.training.tasks.images import images_task

ROWS, COLUMNS = 4, 6


def write(path: Path, count: int, *, seed: int = 0, classes: int = 2, **kind: Any) -> Path:
    """Images that are bright on the side of their class."""
    numbers = np.random.default_rng(seed)
    labels = np.arange(count) % classes
    images = numbers.integers(0, 60, (count, kind.get("rows", ROWS), COLUMNS), dtype=np.uint8)
    for image, label in zip(images, labels, strict=True):
        image[:, 2 * label : 2 * label + 2] += 150
    if kind.get("colour"):
        images = np.stack([images, 255 - images, images // 2], -1)
    np.savez(path, images=images, labels=labels)
    return path


def section(folder: Path, **changes: Any) -> dict[str, Any]:
    return {"kind": "images", "folder": str(folder), "train": "train.npz"} | changes


def configuration(folder: Path, model: dict[str, Any], **training: Any) -> RunConfig:
    settings = {
        "max_steps": 12, "batch_tokens": 8 * ROWS * COLUMNS, "warmup": 2, "validate_every": 4,
        "checkpoint_every": 4, "label_smoothing": 0.0, **training,
    }  # fmt: skip
    content = {"task": section(folder), "model": model, "training": settings}
    return check_config(content, "test")


CONVOLUTIONAL = {
    "kind": "convolutional", "channels": [8, 8], "attention": 2, "inner_channels": 2,
    "halved": [1], "pooled": False,
}  # fmt: skip
TRANSFORMER = {
    "kind": "vision-transformer", "width": 16, "heads": 2, "feed_forward": 16, "layers": 1,
    "patch": [2, 2], "dropout": 0.0,
}  # fmt: skip


def test_split_is_drawn_class_by_class_and_stays_the_same(tmp_path) -> None:
    write(tmp_path / "train.npz", 60, classes=3)
    config = ImagesConfig(**section(tmp_path, valid_share=0.2, test_share=0.1))
    task = images_task(config, 1, None)
    assert {part: len(each.labels) for part, each in task.split.items()} == {
        "train": 42, "valid": 12, "test": 6
    }  # fmt: skip
    assert sorted(task.split["valid"].labels) == ["0"] * 4 + ["1"] * 4 + ["2"] * 4
    seen = [image.tobytes() for part in task.split.values() for image in part.images]
    assert len(set(seen)) == 60
    again = images_task(config, 5, None)
    assert again.split["test"].names == task.split["test"].names
    assert again.digest("valid") == task.digest("valid") != task.digest("test")
    other = images_task(ImagesConfig(**section(tmp_path, split_seed=2)), 1, None)
    assert other.split["valid"].names != task.split["valid"].names


def test_normalisation_is_that_of_the_training_images(tmp_path) -> None:
    write(tmp_path / "train.npz", 30, colour=True)
    write(tmp_path / "valid.npz", 8, seed=1, colour=True)
    task = images_task(ImagesConfig(**section(tmp_path, valid="valid.npz", test_share=0)), 1, None)
    assert not task.has_test and task.shape == ImageShape(3, ROWS, COLUMNS)
    plans = task.plan_epoch(0, 5 * ROWS * COLUMNS)
    assert [len(plan) for plan in plans] == [5] * 6
    assert sorted(place for plan in plans for place in plan) == list(range(30))
    assert task.plan_epoch(1, 5 * ROWS * COLUMNS) != plans
    images = torch.cat([task.batch(plan).inputs["images"] for plan in plans])
    torch.testing.assert_close(images.mean((0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(
        images.std((0, 2, 3), correction=0), torch.ones(3), atol=1e-5, rtol=0
    )
    # By hand: of the validation images, with the numbers of the training images.
    train, valid = (np.load(tmp_path / f"{part}.npz")["images"] for part in ("train", "valid"))
    expected = (valid[0, 1, 2] - train.mean((0, 1, 2))) / train.std((0, 1, 2))
    (batch,) = task.validation(10_000)
    np.testing.assert_allclose(batch.inputs["images"][0, :, 1, 2], expected, atol=1e-5)
    assert batch.tokens == 8 * ROWS * COLUMNS


@pytest.mark.parametrize(
    ("average", "model"),
    [
        (0.9, CONVOLUTIONAL),
        (0.0, TRANSFORMER),
        pytest.param(0.0, CONVOLUTIONAL, marks=pytest.mark.slow),
        pytest.param(0.9, TRANSFORMER, marks=pytest.mark.slow),
    ],
)
def test_a_run_learns_is_opened_and_goes_on_with_the_same_bits(
    model, average, tmp_path, monkeypatch
) -> None:
    write(tmp_path / "train.npz", 80)
    config = configuration(tmp_path, model, average=average, peak_learning_rate=0.01, max_steps=60)
    whole = train(config, tmp_path / "whole", Callback())
    run = open_run(tmp_path / "whole")
    assert not run.model.training
    found = measures_of(run, "valid")
    # What was kept is what was validated, buffers too.
    assert found["loss"] == pytest.approx(whole.best_loss, rel=1e-4)
    assert found["accuracy"] > 0.8

    class Stop(Callback):
        def validated(self, position, report, better) -> None:
            if position.step == 8:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "killed", Stop())
    train(config, tmp_path / "killed", Callback())
    for name in ("best.safetensors", "checkpoint.safetensors"):
        one, other = (
            load_tensors(tmp_path / folder / name, "checkpoint")[0]
            for folder in ("whole", "killed")
        )
        assert one.keys() == other.keys()
        assert all(torch.equal(one[key], other[key]) for key in one)
    if model is CONVOLUTIONAL:
        names = load_tensors(tmp_path / "whole" / "best.safetensors", "checkpoint")[0]
        assert "norms.0.running_mean" in names and "attention.gamma" in names
        assert "attention.f.parametrizations.weight.0._u" in names


def test_images_of_another_size(tmp_path) -> None:
    write(tmp_path / "train.npz", 20, classes=2)
    write(tmp_path / "high.npz", 4, rows=5)
    with pytest.raises(
        InputError, match=r"high.npz: images have 1 channels, 5 x 6 pixels; the training"
    ):
        images_task(ImagesConfig(**section(tmp_path, test="high.npz")), 1, None)
