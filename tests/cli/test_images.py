"""A run that sees images: learned, measured, traced, looked at, ablated; and what it refuses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.cli.conftest import Command, ran

import headloom
from headloom.formats.history import History
from headloom.studio.training import training_history

CONFIGURATION = """
[task]
kind = "images"
folder = "{folder}"
train = "train.npz"
valid_share = 0.25

[model]
kind = "convolutional"
channels = [8, 8]
halved = [1]
attention = 2
pooled = true

[training]
max_steps = 30
batch_tokens = 384
peak_learning_rate = 0.01
warmup = 2
validate_every = 10
checkpoint_every = 10
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of 8 x 12 pixels, bright on the side of their class; and a run on them."""
    folder = tmp_path_factory.mktemp("images")
    numbers = np.random.default_rng(0)
    labels = np.array(["left", "right"] * 40)
    images = numbers.integers(0, 60, (80, 8, 12), dtype=np.uint8)
    images[0::2, :, :6] += 150
    images[1::2, :, 6:] += 150
    np.savez(folder / "train.npz", images=images, labels=labels)
    Image.fromarray(images[3]).save(folder / "right.png")
    Image.fromarray(images[3, :4]).save(folder / "small.png")
    (folder / "c.toml").write_text(CONFIGURATION.format(folder=folder))
    ran("train", folder / "c.toml", "--run", folder / "run")
    return folder


def test_it_is_measured(folder, headloom_main: Command) -> None:
    report = headloom_main("evaluate", folder / "run", "--json").json()
    assert report["split"] == "test" and report["examples"] == 8
    assert report["accuracy"] >= 0.75 and report["macro_f1"] >= 0.7
    low, high = report["intervals"]["accuracy"]
    assert 0 <= low <= report["accuracy"] <= high <= 1


@pytest.mark.parametrize("image", ["right.png", "train.npz:3"])
def test_it_is_traced(folder, tmp_path, headloom_main: Command, image: str) -> None:
    path = tmp_path / "t.loom"
    result = headloom_main("trace", folder / "run", "--file", folder / image, "-o", path)
    assert result.code == 0, result.err
    assert "patches: 24 tokens: patch 0,0 patch 0,1" in result.err
    trace = headloom.open(path)
    (layer,) = trace.layers
    # Halved by the first convolution, keys by the block.
    assert (layer.name, layer.shape) == ("attention", (1, 24, 6))
    assert layer.key_tokens[5] == "patch 1,2" and trace.positions["patches"]["rows"][23] == 3
    assert trace.model["image"] == str(folder / image)
    assert trace.deviation < 1e-5
    assert headloom_main("heads", path, "--all").code == 0
    assert headloom_main("measure", "graph", path).code == 0


def test_its_history_and_its_heads(folder, headloom_main: Command) -> None:
    result = headloom_main("heads", folder / "run", "--all")
    assert result.code == 0 and "1 of 1 heads; 1 text, 24 tokens" in result.out
    result = headloom_main("heads", folder / "run", "--measure", "previous")
    assert result.code == 0, result.err
    assert headloom_main("measure", "projections", folder / "run").code == 0
    assert headloom_main("ablate", folder / "run", "--json").code == 0
    history = History(folder / "run" / "history")
    shown = training_history(list(history)).description
    assert shown["layers"][0]["shape"] == [1, 24, 6]
    assert shown["sequences"]["tokens"][23] == "patch 3,5"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("trace", "--text", "x"), "RUN: this run reads no text. Choose one that does."),
        (("trace", "--file", "small.png"), "the picture has 4 x 12 pixels; this run reads 8 x 12"),
        (("trace", "--file", "train.npz:80"), "train.npz:80: the file has images 0 to 79"),
        (("trace", "--file", "train.npz"), "a file of arrays. Name one of its images, as "),
        (("relevance", "--text", "x"), "RUN: this run reads no text"),
        (("steps", "--model", "run"), "model: RUN reads images only. Use a model that"),
        (("ablate", "--text", "x"), "RUN: this run reads no text"),
        (("ablate", "--logit", "x"), "logit needs text"),
    ],
)
def test_what_it_refuses(folder, tmp_path, headloom_main: Command, arguments, message) -> None:
    verb, option, value = arguments
    if option in ("--file", "--model"):
        value = folder / value
    out = ("-o", tmp_path / "t.loom") if verb == "trace" else ()
    line = headloom_main(verb, folder / "run", option, value, *out).one_line()
    assert message in line.replace(str(folder / "run"), "RUN")
    assert not (tmp_path / "t.loom").exists()
