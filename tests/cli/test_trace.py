"""`headloom trace`: texts, generations, images, windows, and what cannot be traced."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.cli.conftest import LETTERS, Command, assert_one_line, traces_in

import headloom

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def seer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random ViT with its processor."""
    folder = tmp_path_factory.mktemp("models") / "seer"
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16,
        image_size=24, patch_size=8,
    )  # fmt: skip
    transformers.ViTModel(config).save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(
        '{"image_processor_type": "ViTImageProcessor", "size": {"height": 24, "width": 24}}'
    )
    return folder


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    image = pytest.importorskip("PIL.Image").effect_noise((50, 40), 90).convert("RGB")
    image.save(tmp_path / "noise.png")
    return tmp_path / "noise.png"


def test_a_text_and_its_target(headloom_main: Command, runs: Path, tmp_path: Path) -> None:
    path = tmp_path / "[" / "bold] t.loom"  # brackets are markup to the console
    path.parent.mkdir()
    arguments = ("trace", runs / "translation", "--text", "the cat", "-o", path)
    result = headloom_main(*arguments, "--target", "das cat", "--keep", 2)
    assert result.code == 0
    assert f"Trace: {path}\n" in result.err
    opened = headloom.open(path)
    assert len(opened.layers) == 3
    assert opened.sequences["source"][-1] == "<end>"
    assert opened.sequences["target"][0] == "<start>"
    assert opened.layer("cross", 0).graph.k == 2
    assert_one_line(headloom_main(*arguments), "exists already")
    assert headloom_main(*arguments, "--overwrite").code == 0


def test_generate(headloom_main: Command, writer: Path, tmp_path: Path) -> None:
    path = tmp_path / "t"
    result = headloom_main(
        "trace", writer, "--text", "a b c", "--generate", 6, "-o", path, "--json"
    )
    assert result.json()["sequences"]["tokens"][:3] == ["a", "b", "c"]
    trace = headloom.open(path)
    assert len(trace.tokens) == 9
    assert trace.positions["tokens"]["generated"] == [False] * 3 + [True] * 6
    assert trace.positions["tokens"]["offsets"] == [[0, 1], [2, 3], [4, 5]] + [[0, 0]] * 6
    assert trace.layers[0].graph.count[0].tolist() == list(range(1, 10))
    # On no terminal there is no bar.
    assert "━" not in result.err
    result = headloom_main("trace", writer, "--text", "a b", "--generate", 20, "-o", tmp_path / "u")
    assert_one_line(result, "2 tokens and 20 to generate; GPT2LMHeadModel reads 16 at most")


def test_generate_of_headlooms_own_runs(headloom_main: Command, runs: Path, tmp_path: Path) -> None:
    path = tmp_path / "t"
    result = headloom_main("trace", runs / "language", "--text", "the", "--generate", 4, "-o", path)
    assert result.code == 0
    assert sum(headloom.open(path).positions["tokens"]["generated"]) == 4
    result = headloom_main(
        "trace", runs / "translation", "--text", "the", "--generate", 4, "-o", tmp_path / "u"
    )
    assert_one_line(result, "generate: this run translates")


def test_an_image(headloom_main: Command, seer: Path, picture: Path, tmp_path: Path) -> None:
    path = tmp_path / "t"
    assert headloom_main("trace", seer, "--file", picture, "-o", path).code == 0
    trace = headloom.open(path)
    assert trace.model["image"] == str(picture)
    assert trace.sequences["patches"][:2] == ["[CLS]", "patch 0,0"]
    assert trace.positions["patches"]["columns"] == [-1, *([0, 1, 2] * 3)]
    assert trace.layers[0].shape == (2, 10, 10)


def test_an_image_and_a_text(
    headloom_main: Command, writer: Path, picture: Path, tmp_path: Path
) -> None:
    folder, path = tmp_path / "both", tmp_path / "t"
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
             "intermediate_size": 16, "projection_dim": 8}  # fmt: skip
    config = transformers.CLIPConfig(
        text_config={**sizes, "vocab_size": 11, "max_position_embeddings": 8, "eos_token_id": 10},
        vision_config={**sizes, "image_size": 24, "patch_size": 8},
    )
    transformers.CLIPModel(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((writer / name).read_bytes())
    (folder / "preprocessor_config.json").write_text(
        '{"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 24}, '
        '"crop_size": {"height": 24, "width": 24}}'
    )
    assert_one_line(
        headloom_main("trace", folder, "--file", picture, "-o", path), "reads a text too"
    )
    result = headloom_main("trace", folder, "--file", picture, "--text", "a b j", "-o", path)
    assert result.code == 0, result.err
    trace = headloom.open(path)
    assert trace.sequences["tokens"] == ["a", "b", "j"]
    assert len(trace.sequences["patches"]) == 10
    assert {layer.queries_from for layer in trace.layers} == {"tokens", "patches"}


@pytest.mark.parametrize(
    ("model", "words", "message"),
    [
        ("seer", "--file no.png", "no.png: no such image"),
        ("seer", "--file text.png", "not an image that Pillow can"),
        ("seer", "--file half.png", "damaged, or not readable"),
        ("seer", "--file noise.png --text a", "a vit reads no text: leave it out"),
        ("writer", "--file noise.png", "a gpt2 reads no images (pixel_values)"),
        ("writer", "", "the input is missing. Give a text"),
        ("writer", "--text a --file text.txt", "give the text by --text or by --file, not both"),
        ("writer", "--text a --target b", "target: a gpt2 reads one text and has no target"),
        ("writer", "--file text.txt", "30 tokens in input_ids; GPT2Model reads 16 at most"),
        ("writer", "--text a --layers ,", "--layers is empty"),
        ("writer", "--text a --layers 9", "no layer 9; the model has layers 0 to 1"),
        ("writer", "--file text.txt --window 17", "window 17: expected 1 to 16, the limit of GPT2"),
        ("writer", "--file text.txt --window 8 --generate 2", "window splits one text"),
        ("writer", "--corpus text.txt --text a", "corpus has the texts"),
        ("dates", "--file noise.png", "(headloom predict), and reads no images"),
        ("dates", "--file text.txt --window 8", "a whole text at once"),
        ("language", "--text a --target b", "target: this run continues text"),
    ],
)
def test_what_cannot_be_traced(
    headloom_main: Command, seer: Path, writer: Path, runs: Path, picture: Path, model: str,
    words: str, message: str, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(picture.parent)
    Path("text.png").write_text("no picture")
    Path("half.png").write_bytes(picture.read_bytes()[:900])
    Path("text.txt").write_text("a b c d e f g h i j " * 3)
    path = {"seer": seer, "writer": writer}.get(model, runs / model)
    assert_one_line(headloom_main("trace", path, *words.split(), "-o", "t.loom"), message)
    assert not Path("t.loom").exists()


def test_windows(headloom_main: Command, writer: Path, tmp_path: Path) -> None:
    text = " ".join(LETTERS[i % 10] for i in range(40))
    folder = tmp_path / "windows"
    arguments = ("trace", writer, "--text", text, "-o", folder, "--window", 16)
    result = headloom_main(*arguments)
    assert result.code == 0
    assert "3 windows of at most 16 tokens" in result.err
    traces = [headloom.open(folder / name) for name in traces_in(folder)]
    # A quarter is shared; together they are the text.
    assert [trace.tokens for trace in traces] == [
        text.split()[start : start + 16] for start in (0, 12, 24)
    ]
    for trace in traces:
        offsets = trace.positions["tokens"]["offsets"]
        assert [text[start:end] for start, end in offsets] == trace.tokens
    assert [trace.model["window"]["number"] for trace in traces] == [0, 1, 2]
    # Given again, the same command finds all there; another one replaces nothing.
    assert headloom_main(*arguments, "--json").json()["there"] == 3
    assert_one_line(headloom_main(*arguments, "--keep", 3), "were made with other options")
    other = ("trace", writer, "--text", text + " a", *arguments[4:])
    assert_one_line(headloom_main(*other), "has changed since it was traced")
    # Each is what the model does with its window alone.
    alone = tmp_path / "alone.loom"
    words = " ".join(text.split()[12:28])
    assert headloom_main("trace", writer, "--text", words, "-o", alone).code == 0
    expected, found = headloom.open(alone).layers[0].graph, traces[1].layers[0].graph
    assert torch.equal(found.weights, expected.weights)
    # What failed is gone on with, also by workers.
    (folder / "000001.loom").rename(tmp_path / "before.loom")
    assert headloom_main(*arguments, "--workers", 1).code == 0
    assert headloom.open(folder / "000001.loom").tokens == words.split()


def test_ctrl_c_says_what_is_left_of_a_trace(
    headloom_main: Command, writer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("headloom.api.model.Model.trace", stopped)
    result = headloom_main("trace", writer, "--text", "a b", "-o", tmp_path / "none.loom")
    assert result.code == 130
    assert result.err.splitlines()[-1] == (
        "headloom: stopped. Finished traces are kept; with --corpus or --window the same command "
        "continues."
    )
    assert not (tmp_path / "none.loom").exists()
