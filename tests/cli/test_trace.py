"""`headloom trace` of models of Hugging Face: generation, images, what Ctrl-C and a terminal
say."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from tests.cli.conftest import Command, assert_one_line
from tests.forked import Loaded

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
        json.dumps(
            {"image_processor_type": "ViTImageProcessor", "size": {"height": 24, "width": 24}}
        )
    )
    return folder


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    image = pytest.importorskip("PIL.Image").effect_noise((50, 40), 90).convert("RGB")
    image.save(tmp_path / "noise.png")
    return tmp_path / "noise.png"


def test_generate(headloom_main: Command, writer: Path, tmp_path: Path) -> None:
    path = tmp_path / "t"
    result = headloom_main(
        "trace", writer, "--text", "a b c", "--generate", 6, "-o", path, "--json"
    )
    assert result.code == 0
    said = json.loads(result.out)
    assert said["sequences"]["tokens"][:3] == ["a", "b", "c"]
    trace = headloom.open(path)
    assert len(trace.tokens) == 9
    assert trace.positions["tokens"]["generated"] == [False] * 3 + [True] * 6
    assert trace.positions["tokens"]["offsets"] == [[0, 1], [2, 3], [4, 5]] + [[0, 0]] * 6
    assert trace.layers[0].graph.count[0].tolist() == list(range(1, 10))
    # On no terminal there is no bar.
    assert "━" not in result.err
    result = headloom_main("trace", writer, "--text", "a b", "--generate", 20, "-o", tmp_path / "u")
    assert_one_line(result, "2 tokens and 20 to generate; GPT2LMHeadModel reads 16 at most")


@pytest.mark.parametrize(("asked", "last"), [("all", None), ("3", 3)])
def test_received(headloom_main: Command, writer: Path, tmp_path: Path, asked, last) -> None:
    """The sums are those of a softmax in float64, of the queries and keys that were saved."""
    path = tmp_path / "t"
    options = ("--text", "a b c", "--generate", 6, "--keep", 2, "--received", asked)
    assert headloom_main("trace", writer, *options, "-o", path).code == 0
    for layer in headloom.open(path).layers:
        scores = layer.scale * layer.queries.double() @ layer.keys.double().mT
        ahead = torch.ones(9, 9, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(ahead, -torch.inf).softmax(-1)
        graph = layer.graph
        assert torch.allclose(graph.received.double(), weights.sum(1), atol=1e-6)
        assert torch.allclose(graph.received_most.double(), weights.amax(1), atol=1e-6)
        assert (graph.received_last is None) == (last is None)
        if last is not None:
            window = weights[:, -last:].sum(1)
            assert torch.allclose(graph.received_last.double(), window, atol=1e-6)
    result = headloom_main("query", path, "select sum(received) as mass from received", "--csv")
    assert float(result.out.splitlines()[-1]) == pytest.approx(9 * 2 * 2, abs=1e-4)


@pytest.mark.parametrize("asked", ["0", "-1", "x", "1.5", ""])
def test_received_is_refused_in_one_line(
    headloom_main: Command, writer: Path, tmp_path: Path, asked: str
) -> None:
    result = headloom_main(
        "trace", writer, "--text", "a b", f"--received={asked}", "-o", tmp_path / "t"
    )
    assert_one_line(result, f"--received {asked}: expected all, or a number of last queries")
    assert not (tmp_path / "t").exists()


def test_a_corpus_goes_on_only_with_what_was_asked_of_keys(
    headloom_main: Command, writer: Path, tmp_path: Path
) -> None:
    texts, out = tmp_path / "texts.txt", tmp_path / "traces"
    texts.write_text("a b c\nb a\n")
    base = ("trace", writer, "--corpus", texts, "-o", out)
    assert headloom_main(*base, "--received", "all").code == 0
    found = sorted(out.glob("*.loom"))
    assert len(found) == 2
    assert all(headloom.open(path).layers[0].graph.received is not None for path in found)
    assert_one_line(headloom_main(*base), "were made with another option")
    # Lists that were written before there was such an option say nothing of it.
    other = tmp_path / "other"
    assert headloom_main(*base[:-1], other).code == 0
    assert "received" not in json.loads((other / "corpus.json").read_text())["options"]


def test_special_tokens_of_headlooms_own_runs(
    headloom_main: Command, runs: Path, tmp_path: Path
) -> None:
    """Its vocabulary knows them, so that SQL finds what goes to them."""
    path = tmp_path / "t.loom"
    assert headloom_main("trace", runs / "dates", "--text", "3 May 1990", "-o", path).code == 0
    trace = headloom.open(path)
    for name, tokens in trace.sequences.items():
        marks = [token in ("<start>", "<end>") for token in tokens]
        assert trace.positions[name]["special"] == marks and sum(marks) == 1
    flags = trace.sql("select special from tokens").special.tolist()
    assert sorted(set(flags)) == [False, True]


def test_generate_of_headlooms_own_runs(headloom_main: Command, runs: Path, tmp_path: Path) -> None:
    path = tmp_path / "t"
    result = headloom_main("trace", runs / "language", "--text", "the", "--generate", 4, "-o", path)
    assert result.code == 0
    assert sum(headloom.open(path).positions["tokens"]["generated"]) == 4
    result = headloom_main(
        "trace", runs / "translation", "--text", "the", "--generate", 4, "-o", tmp_path / "u"
    )
    assert_one_line(result, "--generate: a translator writes its translation")


def test_an_image(headloom_main: Command, seer: Path, picture: Path, tmp_path: Path) -> None:
    path = tmp_path / "t"
    assert headloom_main("trace", seer, "--image", picture, "-o", path).code == 0
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
        headloom_main("trace", folder, "--image", picture, "-o", path), "reads a text too"
    )
    result = headloom_main("trace", folder, "--image", picture, "--text", "a b j", "-o", path)
    assert result.code == 0, result.err
    trace = headloom.open(path)
    assert trace.sequences["tokens"] == ["a", "b", "j"]
    assert len(trace.sequences["patches"]) == 10
    assert {layer.queries_from for layer in trace.layers} == {"tokens", "patches"}


def test_images_that_cannot_be_traced(
    headloom_main: Command, seer: Path, writer: Path, runs: Path, picture: Path, tmp_path: Path
) -> None:
    out = tmp_path / "t"

    def said(model: Path, *arguments: object) -> object:
        return headloom_main("trace", model, *arguments, "-o", out)

    assert_one_line(said(seer, "--image", tmp_path / "no.png"), "no.png: no such image")
    (tmp_path / "text.png").write_text("no picture")
    assert_one_line(said(seer, "--image", tmp_path / "text.png"), "not an image that Pillow can")
    (tmp_path / "half.png").write_bytes(picture.read_bytes()[:900])
    assert_one_line(said(seer, "--image", tmp_path / "half.png"), "damaged, or not readable")
    assert_one_line(said(writer, "--image", picture), "a gpt2 reads no images (pixel_values)")
    assert_one_line(said(seer, "--image", picture, "--text", "a"), "a vit sees an image and reads")
    assert_one_line(said(runs / "dates", "--image", picture), "is a run that reads text")
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "model.safetensors"):
        (bare / name).write_bytes((seer / name).read_bytes())
    assert_one_line(said(bare, "--image", picture), "no processor that makes inputs of an image")
    assert not out.exists()


def test_ctrl_c_says_what_is_left_of_a_trace(
    headloom_main: Command, writer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("headloom.api.trace_request.trace_model", stopped)
    result = headloom_main("trace", writer, "--text", "a b", "-o", tmp_path / "none.loom")
    assert result.code == 130
    assert result.err.splitlines()[-1] == (
        "headloom: stopped. What is traced is whole; with --corpus and --window the same command "
        "goes on."
    )
    assert not (tmp_path / "none.loom").exists()


@pytest.mark.slow
def test_a_bar_stands_on_a_terminal_only(loaded: Loaded, writer: Path, tmp_path: Path) -> None:
    import pty

    ours, theirs = pty.openpty()
    command = ("trace", writer, "--text", "a b", "--json", "-o", tmp_path / "t")
    with loaded.start(*command, stderr=theirs, TERM="xterm") as process:
        os.close(theirs)
        said = b""
        try:
            while block := os.read(ours, 1 << 16):
                said += block
        except OSError:
            pass  # the other end is closed
        out = process.stdout.read()
    os.close(ours)
    assert b"h.1.attn" in said
    assert b"2/2" in said
    assert json.loads(out)["layers"] == 2


def test_a_trace_that_cannot_be_written_is_refused_before_the_model_is_opened(
    headloom_main: Command, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()  # no model
    for parent in ("nowhere", "file"):
        words = ("trace", tmp_path / "empty", "--text", "a", "-o", tmp_path / parent / "t.loom")
        line = headloom_main(*words).one_line()
        assert f"cannot write {tmp_path / parent / 't.loom'}: " in line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "file"]
