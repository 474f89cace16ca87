"""Models, runs and traces opened in Python: `headloom.load`, `headloom.open`, `headloom.trace`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import headloom


def test_whatever_holds_a_model_is_loaded(runs: Path, writer: Path) -> None:
    """A folder's model has the part that predicts; a model of Transformers finds its tokenizer."""
    loaded = headloom.load(writer)
    assert type(loaded.module).__name__ == "GPT2LMHeadModel"
    again = headloom.load(loaded.module)
    assert again.tokenizer.get_vocab() == loaded.tokenizer.get_vocab()
    texts = ["a b c", "d e"]
    for model in (loaded, again, str(writer), loaded.module):
        first, second = headloom.trace(model, texts, keep=2)
        assert (first.tokens, second.tokens) == (["a", "b", "c"], ["d", "e"])
        assert torch.equal(
            first.layers[0].graph.count,
            headloom.trace(writer, "a b c", keep=2).layers[0].graph.count,
        )
    run = headloom.load(runs / "language")
    assert isinstance(run, headloom.Run) and run.model is run is headloom.load(run)
    assert run.trace("the cat", generate=2).tokens[:3] == list("the")
    tensors = headloom.load(run.module)
    assert tensors.trace(torch.tensor([[5, 6]])).tokens == ["#5", "#6"]
    assert headloom.load("minilm").trace("a cat").tokens == ["[CLS]", "a", "cat", "[SEP]"]


def test_a_run_is_a_model_and_how_it_was_trained(runs: Path, tmp_path: Path) -> None:
    run = headloom.open(runs / "dates")
    assert repr(run) == f"Run('{runs / 'dates'}': task dates, model transformer, finished, step 3)"
    assert run.config.training.max_steps == 3 and list(run.metrics["step"])[-1] == 3
    assert run.history.steps[0] == 0
    traced = run.trace("May 3, 1999", target="1999-05-03", save=tmp_path / "t.loom")
    assert traced.sequences["target"][1:] == list("1999-05-03")
    assert isinstance(headloom.open(tmp_path / "t.loom"), headloom.Trace)
    assert [each.tokens for each in headloom.open(tmp_path)] == [traced.tokens]
    viewer = run.view(port=0, browser=False)
    assert viewer.address.startswith("http://127.0.0.1:")
    viewer.close()


def test_a_run_opens_before_it_has_weights(tmp_path: Path) -> None:
    """Also one that headloom.monitor watches, whose weights are its owner's."""
    model = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
    with headloom.monitor(model, tmp_path / "w", probe=torch.rand(1, 4, 8), every=1) as monitor:
        monitor.step(loss=1.0)
    run = headloom.open(tmp_path / "w")
    assert "headloom.monitor watches" in repr(run) and len(run.history.steps)
    for ask in (lambda: run.module, lambda: run.trace("a"), lambda: run.config):
        with pytest.raises(headloom.InputError, match="monitor watched"):
            ask()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda path: headloom.open("minilm"), r"headloom\.load\('minilm'\)"),
        (lambda path: headloom.open(5), "int; expected the path"),
        (lambda path: headloom.open(path / "no"), "no such trace"),
        (lambda path: headloom.load(path / "t.loom"), r"It is a trace.*headloom\.open"),
        (lambda path: headloom.load([1]), "list; expected a run's folder"),
        (lambda path: headloom.trace(nn.Linear(2, 2), "a"), "Linear reads tensors: give one"),
    ],
)
def test_a_wrong_call_names_the_right_one(call: Any, message: str, tmp_path: Path) -> None:
    headloom.from_weights(torch.ones(1, 1, 1, 1)).save(tmp_path / "t.loom")
    with pytest.raises(headloom.HeadloomError, match=message):
        call(tmp_path)
