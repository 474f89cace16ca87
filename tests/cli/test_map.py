"""`headloom map`: what a word looks at in an image, from the trace of a model in a folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tests.cli.conftest import Command, ran
from tests.tracing.vision_models import FAMILIES

import headloom

SIZE = (37, 61)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A LLaVA with its processor, a picture, and one of another size."""
    folder = tmp_path_factory.mktemp("llava")
    made = FAMILIES["llava crop"]()
    made.model.save_pretrained(folder / "model")
    made.words.save_pretrained(folder / "model")
    numbers = np.random.default_rng(0)
    pixels = numbers.integers(0, 255, (*SIZE, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(folder / "a.png")
    Image.fromarray(pixels[:, :20]).save(folder / "narrow.png")
    return folder


@pytest.fixture(scope="module")
def trace(folder: Path) -> Path:
    path = folder / "t.loom"
    ran("trace", folder / "model", "--file", folder / "a.png", "--text", "a cat", "-o", path)
    return path


def test_a_model_in_a_folder_is_traced_on_a_picture_and_a_text(trace: Path) -> None:
    read = headloom.open(trace)
    # The picture stands before the text, where the text has no place for it.
    assert read.tokens[0] == "patch 0,0" and read.tokens[35] == "patch 5,5"
    assert "".join(read.tokens[36:]) == "aĠcat"
    assert read.images[0].fit == "crop" and read.images[0].shortest == 24


def test_it_draws_the_map_over_the_picture(
    folder: Path, trace: Path, tmp_path: Path, headloom_main: Command
) -> None:
    out = tmp_path / "m.png"
    layer = headloom.open(trace).layers[-1].name
    asked = ("map", trace, "--layer", layer, "--head", "2", "--token", "c", "-o", out)
    report = headloom_main(*asked, "--image", folder / "a.png", "--json").json()
    seen = headloom.open(trace).image_map(layer, 2, "c", size=SIZE)
    assert report["mass"] == pytest.approx(seen.mass) and report["size"] == list(SIZE)
    assert report["patches"][7]["weight"] == pytest.approx(seen.patches[7][4])
    said = headloom_main(*asked, "--image", folder / "a.png").out
    assert "gives " + f"{seen.mass:.4f}" + " of its weight to the image" in said
    drawn = np.asarray(Image.open(out).convert("RGB"), dtype=int)
    # What the processor cut away on the left has no colour: it is grey as the picture is.
    rows, columns = drawn.shape[:2]
    margin = drawn[rows // 3 : rows // 2, columns * 6 // 100]
    assert (margin.max(-1) - margin.min(-1)).max() <= 8
    assert seen.weights[:, :10].sum() == 0
    middle = drawn[rows // 3 : rows // 2, columns // 2]
    assert (middle.max(-1) - middle.min(-1)).max() > 20


def test_without_the_picture_it_draws_what_the_model_saw(
    trace: Path, tmp_path: Path, headloom_main: Command
) -> None:
    out = tmp_path / "m.svg"
    asked = ("map", trace, "--layer", "3", "--token", "-1", "-o", out, "--json")
    report = headloom_main(*asked).json()
    assert report["size"] == [24, 24] and report["head"] is None and not report["of_original"]
    assert "the mean of all heads" in out.read_text()


def test_a_vision_transformer_is_drawn_over_its_patches(
    folder: Path, tmp_path: Path, headloom_main: Command
) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = transformers.ViTModel(
        transformers.ViTConfig(
            hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=16,
            image_size=[24, 40], patch_size=8,
        )
    ).eval()  # fmt: skip
    pixels = torch.randn(1, 3, 24, 40)
    headloom.trace(model, {"pixel_values": pixels}).save(tmp_path / "vit.loom")
    model.set_attn_implementation("eager")
    with torch.no_grad():
        weights = model(pixels, output_attentions=True).attentions[1][0, 2]
    asked = ("map", tmp_path / "vit.loom", "--layer", "1", "--head", "2")
    for token, row, picture in (("patch 1,3", 1 + 5 + 3, ()), ("0", 0, ("--image", "a.png"))):
        picture = tuple(folder / word if word == "a.png" else word for word in picture)
        words = (*asked, "--token", token, "-o", tmp_path / "m.png", *picture)
        report = headloom_main(*words, "--json").json()
        seen = [patch["weight"] for patch in report["patches"]]
        assert torch.allclose(torch.tensor(seen), weights[row, 1:], atol=1e-5)
        assert report["size"] == (list(SIZE) if picture else [3, 5])
        said = headloom_main(*words).out
        assert ("as if its processor had cropped nothing" in said) == bool(picture)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--layer", "9", "--token", "0"), "layer 9: no such layer; the trace has layers 0 to "),
        (("--layer", "3", "--token", "dog"), "no token is 'dog'"),
        (("--layer", "3", "--token", "0", "--image", "gone.png"), "gone.png"),
    ],
)
def test_what_it_refuses(
    trace: Path, tmp_path: Path, headloom_main: Command, words: tuple[str, ...], says: str
) -> None:
    assert says in headloom_main("map", trace, *words, "-o", tmp_path / "m.png").one_line()
    assert not (tmp_path / "m.png").exists()
