"""`headloom export RUN --to onnx`: the files, the lines of docs/export.md that run them, its
errors."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.cli.conftest import TRAINING, Command, ran, searched
from tests.cli.test_export_model import LLAMA, TEXTS, changed
from tests.slow import slow

from headloom.api import model_export
from headloom.api.model_export import export_model
from headloom.training.inference import TrainedRun, open_run

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
DOCS = Path(__file__).parents[2] / "docs" / "export.md"

LABELS = """
[task]
kind = "labels"
folder = "{folder}"
train = "all.tsv"
max_length = 6
[model]
width = 16
heads = 2
feed_forward = 16
"""
IMAGES = """
[task]
kind = "images"
folder = "{folder}"
train = "train.npz"
valid_share = 0.25
[model]
kind = "{kind}"
"""


def examples() -> list[str]:
    """The blocks of Python below the heading ONNX."""
    after = DOCS.read_text("utf-8").split("## ONNX")[1].split("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", after, re.DOTALL)


def trained(folder: Path, configuration: str) -> Path:
    """A new run."""
    (folder / "c.toml").write_text(configuration + TRAINING)
    ran("train", folder / "c.toml", "--run", folder / "run")
    return folder / "run"


def livelier(path: Path) -> TrainedRun:
    """A run with random weights that write many different tokens."""
    run = changed(path, {"tied": False, "positions": "learned"})
    for name, parameter in run.model.named_parameters():
        torch.nn.init.normal_(parameter, std=3.0 if "positions" in name else 0.5)
    return run


@pytest.mark.parametrize("task", ["translation", *slow("dates")])
def test_the_lines_of_the_docs_translate_as_headloom_does(
    task: str, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = livelier(runs / task)
    monkeypatch.setattr(model_export, "open_run", lambda path: run)
    monkeypatch.chdir(tmp_path)
    written = export_model(runs / task, Path("dates-onnx"), "onnx")
    assert written.kind == "encoder.onnx, decoder.onnx"
    assert 0 < written.difference < 1e-3
    names: dict[str, Any] = {}
    exec(compile(examples()[0], str(DOCS), "exec"), names)
    texts = [*TEXTS, "the cat sees the dog", "x"]
    ours = [run.vocabulary.decode(searched(run, text, 1, 30)[0].tokens) for text in texts]
    assert len({*"".join(ours)}) > 9
    assert names["translate"](texts, 30) == ours
    assert {file.name for file in Path("dates-onnx").iterdir()} == {
        "encoder.onnx", "decoder.onnx", "config.json", "tokenizer.json",
    }  # fmt: skip


def test_the_lines_of_the_docs_continue_texts(
    runs: Path, headloom_main: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, folder in (("dates", "dates-onnx"), ("language", "shakespeare-onnx")):
        result = headloom_main("export", runs / name, "--to", "onnx", "-o", folder)
        assert result.code == 0, result.err
    assert "model.onnx: logits within" in result.out
    names: dict[str, Any] = {}
    for block in examples():
        exec(compile(block, str(DOCS), "exec"), names)
    run = open_run(runs / "language")
    prompts = ["the cat", "c", "the dog sees"]
    expected = []
    for prompt in prompts:
        ids = torch.tensor([run.vocabulary.encode(prompt)])
        for _ in range(6):
            with torch.no_grad():
                ids = torch.cat([ids, run.model(ids)[:, -1:].argmax(-1)], 1)
        expected.append(run.vocabulary.decode(ids[0].tolist()))
    assert [names["generate"](prompt, 6) for prompt in prompts] == expected


def test_a_classifier_of_texts(headloom_main: Command, tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    lines = [f"{k}\ta {w} film {n}\n" for n in "abcdef" for k, w in (("y", "good"), ("n", "bad"))]
    (tmp_path / "all.tsv").write_text("".join(lines))
    run = open_run(trained(tmp_path, LABELS.format(folder=tmp_path)))
    result = headloom_main("export", tmp_path / "run", "--to", "onnx", "-o", tmp_path / "model")
    assert result.code == 0, result.err
    tokenizer = Tokenizer.from_file(str(tmp_path / "model" / "tokenizer.json"))
    texts = ["a good film", "bad", "a film a film a film a film"]
    read = tokenizer.encode_batch(texts)
    assert [len(line.ids) for line in read] == [6, 6, 6]  # task.max_length
    session = onnxruntime.InferenceSession(tmp_path / "model" / "model.onnx")
    given = {
        "input_ids": np.array([line.ids for line in read]),
        "attention_mask": np.array([line.attention_mask for line in read]),
    }
    (theirs,) = session.run(None, given)
    for text, row in zip(texts, theirs, strict=True):
        ids = [run.vocabulary.start, *run.vocabulary.encode(text)][:6]
        with torch.no_grad():
            assert np.allclose(run.model(torch.tensor([ids]))[0], row, atol=1e-5)
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert list(config["id2label"].values()) == run.data.facts["classes"]


@pytest.mark.parametrize("kind", ["vision-transformer", "convolutional"])
def test_a_classifier_of_images(kind: str, headloom_main: Command, tmp_path: Path) -> None:
    numbers = np.random.default_rng(0)
    images = numbers.integers(0, 255, (40, 8, 12), dtype=np.uint8)
    np.savez(tmp_path / "train.npz", images=images, labels=np.array(["left", "right"] * 20))
    run = open_run(trained(tmp_path, IMAGES.format(folder=tmp_path, kind=kind)))
    result = headloom_main("export", tmp_path / "run", "--to", "onnx", "-o", tmp_path / "model")
    assert result.code == 0, result.err
    session = onnxruntime.InferenceSession(tmp_path / "model" / "model.onnx")
    pixels = images[:3, None].astype(np.float32) / 255
    (theirs,) = session.run(None, {"pixel_values": pixels})
    mean, deviation = (np.float32(run.data.facts[name]) for name in ("mean", "deviation"))
    with torch.no_grad():
        ours = run.model(torch.from_numpy((pixels - mean) / deviation))
    assert np.allclose(ours, theirs, atol=1e-5)
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["image_size"] == [8, 12] and config["id2label"] == {"0": "left", "1": "right"}


@pytest.mark.parametrize(
    ("task", "choices"),
    [
        ("language", {"positions": "shaw", "max_length": 6, "kv_heads": 1}),
        *slow(
            ("language", LLAMA | {"kv_heads": 1}),
            ("language", {"positions": "buckets", "norm": "post"}),
            ("language", {"positions": "alibi", "tied": False}),
            ("dates", {"positions": "learned", "max_length": 8, "weights": "uniform"}),
        ),
    ],
)
def test_other_settings(
    task: str, choices: dict[str, Any], runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_export, "open_run", lambda path: changed(path, choices))
    written = export_model(runs / task, tmp_path / "model", "onnx")
    assert 0 < written.difference < 1e-4
