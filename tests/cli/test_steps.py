"""`headloom steps`: the first look, files that it writes, a trained layer's own numbers, errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.cli.conftest import Command, assert_one_line, ran
from tests.saved_models import small_model

import headloom
from headloom.mechanism.watching import layers_of
from headloom.training.inference import open_run


def test_without_an_argument(headloom_main: Command) -> None:
    result = headloom_main("steps")
    assert (result.code, result.err) == (0, "")
    assert result.out.rstrip("\n") == str(headloom.steps())
    assert "\x1b" not in result.out


def test_pictures_and_pages(headloom_main: Command, tmp_path: Path) -> None:
    result = headloom_main(
        "steps", "--kind", "cross", "--picture", tmp_path / "a.png", "--html", tmp_path / "a.html"
    )
    assert result.code == 0
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"
    assert "The six steps of attention" in (tmp_path / "a.html").read_text()
    assert result.err.count("written:") == 2


def test_a_picture_that_cannot_be_written_is_refused_before_anything_is_printed(
    headloom_main: Command, tmp_path: Path
) -> None:
    result = headloom_main("steps", "a b", "--picture", tmp_path / "a.gif")
    assert "a.gif: a picture is written as .png, .svg or .pdf" in result.one_line()
    assert result.out == "" and not list(tmp_path.iterdir())


# Trained layers.


def of_trace(run: Path, text: str, target: str, folder: Path, name: str) -> Any:
    """The dense weights of a layer of a run as `headloom trace` keeps them."""
    ran("trace", run, "--text", text, "--target", target, "-o", folder / "t.loom")
    (layer,) = [x for x in headloom.open(folder / "t.loom").layers if x.name == name]
    return layer


@pytest.mark.parametrize("kind", ["encoder", "decoder", "cross"])
def test_the_numbers_of_a_trained_layer_are_its_own(runs: Path, tmp_path: Path, kind: str) -> None:
    run, text, target = runs / "translation", "the cat sees", "das cat"
    walk = headloom.steps(text, target=target, model=run, kind=kind, head=1)
    assert walk.kind == kind and walk.shown == (1,)
    opened = open_run(run)
    (name,) = [name for name, layer in layers_of(opened.model) if layer.kind == kind]
    layer = of_trace(run, text, target, tmp_path, name)
    weights = layer.graph.to_dense().double()
    assert float((walk.weights - weights).abs().max()) < 1e-6
    assert list(walk.keys.tokens) == list(layer.key_tokens)
    hidden = torch.ones(weights.shape[1:]).triu(1).bool()
    assert (not bool(walk.weights[:, hidden].any())) == (kind == "decoder")
    # The output is what the module itself gives for what enters it, in float32.
    module = dict(layers_of(opened.model))[name]
    X, Y = walk.X.float()[None], walk.Y.float()[None]
    mask = headloom.causal() if kind == "decoder" else None
    with torch.no_grad():
        output = module(X, Y if kind == "cross" else None, mask=mask)[0]
    assert float((walk.output - output).abs().max()) < 1e-5
    matrices = {name: matrix[1] for name, matrix in module.matrices().items()}
    assert walk.projections["W_Q"][1].numpy() == pytest.approx(matrices["W_Q"].detach().numpy())
    assert walk.difference < 1e-12


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "model: text and target must"),
        ({"sentence": "two", "kind": "cross"}, "has no cross layer 0; its layers are: decoder 0."),
        ({"sentence": "two", "layer": 1}, "has no decoder layer 1; its layers are: decoder 0."),
        ({"sentence": "two", "head": 2}, "head 2: there are heads 0 to 1."),
        ({"sentence": "two " * 30}, "tokens; headloom steps shows 40 at most"),
    ],
)
def test_trained_layers_that_are_not_there(
    runs: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(headloom.InputError) as error:
        headloom.steps(model=runs / "language", **options)
    assert message in str(error.value)


# Models of Hugging Face.


def test_a_layer_of_the_real_minilm(minilm_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    transformers = pytest.importorskip("transformers")
    walk = headloom.steps("The dog slept.", model=minilm_folder, layer=2, head=4)
    eager = transformers.AutoModel.from_pretrained(
        minilm_folder, attn_implementation="eager"
    ).eval()
    ids = transformers.AutoTokenizer.from_pretrained(minilm_folder)(
        "The dog slept.", return_tensors="pt"
    )
    with torch.no_grad():
        outputs = eager(**ids, output_attentions=True, output_hidden_states=True)
    assert float((walk.weights - outputs.attentions[2][0].double()).abs().max()) < 1e-6
    # Two layers in float32, whose sums are added in another order.
    assert float((walk.X - outputs.hidden_states[2][0].double()).abs().max()) < 4e-6
    dense = eager.encoder.layer[2].attention.output.dense
    with torch.no_grad():
        output = dense(walk.joined.float())
    assert float((walk.output - output).abs().max()) < 1e-5
    assert list(walk.queries.tokens) == ["[CLS]", "the", "dog", "slept", ".", "[SEP]"]


@pytest.mark.usefixtures("words")
def test_a_model_that_does_more_is_refused_in_one_line(
    tmp_path: Path, headloom_main: Command
) -> None:
    small_model("LlamaForCausalLM", tmp_path)
    assert_one_line(
        headloom_main("steps", "a b c", "--model", tmp_path),
        "headloom: steps: layer layers.0.self_attn does more than the six steps: it rotates "
        "or normalises queries and keys after projecting. headloom trace and headloom view show "
        "its weights.",
    )


def test_gpt_2(writer: Path) -> None:
    walk = headloom.steps("a b c", model=writer, layer=1)
    assert walk.kind == "decoder"
    assert bool((walk.weights.triu(1) == 0).all())
    assert "b_O" in walk.projections and walk.difference < 1e-12
