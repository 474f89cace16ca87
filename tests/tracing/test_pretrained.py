"""Models from a folder: a real one, and folders that must be refused in one clear line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.forked import Loaded
from tests.saved_models import save_writer
from tests.tracing.conftest import assert_dense

import headloom
from headloom.tracing.pretrained import load_pretrained

transformers = pytest.importorskip("transformers")

TEXT = "the quick brown fox jumps over the lazy dog because the dog did not see it ."


@pytest.fixture
def small(tmp_path) -> Path:
    """A random GPT-2 with a tokenizer of letters, without the head that writes."""
    folder = save_writer(tmp_path / "small", width=8, layers=2, heads=2, positions=16)
    model = transformers.GPT2Model.from_pretrained(folder)
    model.save_pretrained(folder)
    return folder


def test_a_real_model_against_eager_attention_and_known_values(minilm_folder) -> None:
    model, tokenizer = load_pretrained(minilm_folder)
    trace = headloom.trace(model, TEXT, tokenizer=tokenizer, keep=headloom.All())
    assert trace.tokens == ["[CLS]", *TEXT.split(), "[SEP]"]
    eager = transformers.AutoModel.from_pretrained(minilm_folder, attn_implementation="eager")
    with torch.no_grad():
        expected = eager(**tokenizer(TEXT, return_tensors="pt"), output_attentions=True).attentions
    assert_dense(trace.layers, expected)
    assert all(layer.deviation < 2e-6 for layer in trace.layers)


def test_hostile_texts(minilm_folder, tmp_path) -> None:
    model, tokenizer = load_pretrained(minilm_folder)
    for number, text in enumerate(
        ["<script>\x00\x1b[31m\u202e", "א" * 10 + "👩‍👩‍👧", "x" * 100_000, " ."]
    ):
        headloom.trace(model, text, tokenizer=tokenizer, save=tmp_path / str(number))
        opened = headloom.open(tmp_path / str(number))
        assert opened.deviation < 5e-6
        assert len(opened.layers) == 6


def test_folders_that_are_refused(small, tmp_path) -> None:
    weights, config = small / "model.safetensors", small / "config.json"
    content = config.read_text("utf-8")
    config.write_text(json.dumps({**json.loads(content), "model_type": "nonesuch"}), "utf-8")
    with pytest.raises(headloom.DataError, match="nonesuch"):
        load_pretrained(small)
    config.write_text("{", "utf-8")
    with pytest.raises(headloom.DataError, match="not a valid JSON"):
        load_pretrained(small)
    config.write_text(content, "utf-8")
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(headloom.DataError, match=r"the weights are damaged|cannot load"):
        load_pretrained(small)
    weights.unlink()
    with weights.open("wb") as file:
        file.truncate(2**43)  # of holes: it takes no room
    with pytest.raises(headloom.InputError, match=r"the weights take 8,192\.0 GiB, and .* is free"):
        load_pretrained(small)
    weights.unlink()
    with pytest.raises(headloom.DataError, match=r"no weights; expected model\.safetensors"):
        load_pretrained(small)
    with pytest.raises(headloom.DataError, match="no such run or model"):
        load_pretrained(tmp_path / "nothing")


@pytest.mark.slow
def test_a_name_in_the_cache_is_read_without_the_hub(loaded: Loaded, small, tmp_path) -> None:
    snapshot = tmp_path / "hub" / "models--somebody--small" / "snapshots" / ("0" * 40)
    snapshot.parent.mkdir(parents=True)
    small.rename(snapshot)
    refs = snapshot.parent.parent / "refs"
    refs.mkdir()
    (refs / "main").write_text("0" * 40)
    # Port 9 of this machine: who asks the hub fails.
    where = {"HF_HOME": str(tmp_path), "HF_ENDPOINT": "http://127.0.0.1:9"}
    with loaded.start("measure", "projections", "somebody/small", "--csv", **where) as process:
        out, errors = process.communicate()
        assert process.wait() == 0, errors
    assert len(out.splitlines()) == 3


@pytest.mark.parametrize("predicting", [False, True])
def test_weights_that_were_not_saved_are_not_drawn_at_random(
    small: Path, capfd: pytest.CaptureFixture[str], predicting: bool
) -> None:
    weights = small / "model.safetensors"
    whole = load_file(weights)
    for name in ("h.1.attn.c_attn.weight", "wpe.weight"):
        save_file({key: whole[key] for key in whole if key != name}, weights, {"format": "pt"})
        with pytest.raises(
            headloom.DataError, match=f"{name} is missing, and would be random numb"
        ):
            load_pretrained(small, predicting=predicting)
        save_file({**whole, name: torch.zeros(3, 2)}, weights, {"format": "pt"})
        with pytest.raises(headloom.DataError, match=rf"{name} has the shape \(3, 2\), but config"):
            load_pretrained(small, predicting=predicting)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("name", ["a b", "a/b c", "-a", "a..b", "x" * 150, "nobody/no-such-model"])
def test_what_is_no_model(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(
        headloom.DataError, match=r"cannot load this model: .* the name of a model"
    ) as error:
        load_pretrained(name)
    assert "\n" not in str(error.value)
