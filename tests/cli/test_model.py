"""Models, runs and traces opened in Python: `headloom.load`, `headloom.open`, `headloom.trace`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas
import pytest
import torch
from tests.saved_models import small_model
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
    assert "watched by headloom.monitor" in repr(run) and len(run.history.steps)
    for ask in (lambda: run.module, lambda: run.trace("a"), lambda: run.config):
        with pytest.raises(headloom.InputError, match="watched by headloom"):
            ask()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda path: headloom.open("minilm"), r"headloom\.load\('minilm'\)"),
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


@pytest.mark.usefixtures("words")
def test_a_translator_and_a_classifier_of_transformers(tmp_path: Path) -> None:
    """By their own generate, and the softmax of their logits; in a file, line by line."""
    settings = {"max_position_embeddings": 24, "decoder_start_token_id": 0,
                "bos_token_id": None, "forced_eos_token_id": None}  # fmt: skip
    small_model("MarianMTModel", tmp_path, **settings)
    model = headloom.load(tmp_path)
    ids = model.tokenizer("a b c", return_tensors="pt")
    own = model.module.generate(**ids, num_beams=3, max_new_tokens=23, do_sample=False)
    text = model.tokenizer.decode(own[0], skip_special_tokens=True)
    assert text and model.translate("a b c", beam=3) == text
    lines = ["a b c", "", "d"]
    both = model.translate(lines, beam=3)
    assert both[:2] == [text, ""] and list(model.predict(iter(lines), beam=3)) == both
    best = model.predict(lines, beam=3, n_best=2, described=True)[0]
    assert best["hypotheses"][0] == {"text": text} and len(best["hypotheses"]) == 2
    with pytest.raises(headloom.InputError, match=r"does not continue text; use \.translate\("):
        model.generate("a")

    labels = {0: "dull", 1: "witty"}
    small_model("BertForSequenceClassification", tmp_path, id2label=labels)
    model = headloom.load(tmp_path)
    shares = (
        model.module(**model.tokenizer("a b", return_tensors="pt")).logits[0].softmax(-1).detach()
    )
    full, empty = model.classify(["a b", " "])
    assert full.label == full["label"] == ["dull", "witty"][int(shares.argmax())]
    assert full.score == full["score"] == pytest.approx(float(shares.max()))
    assert empty.label is None and empty.probabilities == {}
    one = model.predict("a b").probabilities
    assert one == pytest.approx({"dull": float(shares[0]), "witty": float(shares[1])})


def test_a_run_predicts(runs: Path) -> None:
    model = headloom.load(runs / "dates")
    texts = ["May 3, 1999", "1. Mai 2001"]
    assert model.translate(texts) == [model.translate(text) for text in texts]
    model = headloom.load(runs / "language")
    assert model.generate("the c", max_new_tokens=3).startswith("the c")
    for keyword, hint in (
        ("output_attentions", "trace\\(prompt, generate=8\\)"),
        ("max_lenght", "max_new_tokens"),
        ("do_sample", "temperature=0"),
    ):
        with pytest.raises(TypeError, match=hint):
            model.generate("the c", **{keyword: True})
    with pytest.raises(headloom.InputError, match="makes no predictions from text"):
        headloom.load("minilm").predict("a")


def test_heads_are_ablated_and_tokens_weighed(runs: Path, writer: Path) -> None:
    """In tables that sort and group; on a text, on texts, on some of the validation data."""
    model = headloom.load(runs / "dates")
    pairs = [("May 3, 1999", "1999-05-03"), ("1. Mai 2001", "2001-05-01")]
    for given in ((), ("May 3, 1999",), (pairs,)):
        table = model.ablate(*given)
        assert list(table.columns) == ["layer", "head", "loss", "change"] and len(table) == 6
        change = table["loss"] - table.attrs["baseline"]
        assert table["change"].tolist() == pytest.approx(change.tolist())
    frame = pandas.DataFrame(pairs, columns=["source", "target"])
    assert headloom.ablate(model, data=frame).equals(table)
    several = headloom.ablate(writer, ["a b c", "c d"])
    apart = [headloom.ablate(writer, text).attrs["baseline"] for text in ("a b c", "c d")]
    assert several.attrs["baseline"] == pytest.approx(sum(apart) / 2)
    estimated = headloom.ablate(writer, "a b c", estimate=True)
    assert list(estimated.columns)[2:] == ["loss", "change", "most_at", "token", "there"]
    table = headloom.relevance(writer, "a b c", logit="d")
    assert list(table.columns) == ["position", "token", "relevance"]
    assert table["relevance"].is_monotonic_decreasing and set(table["token"]) == {"a", "b", "c"}
    assert table.attrs["predicted"] == "d" and table.attrs["after"] == "c"


def test_a_run_is_evaluated_on_what_somebody_holds(runs: Path, tmp_path: Path) -> None:
    """A dict of measures, that shows its table; the same of a list, a table and a file."""
    run = headloom.open(runs / "translation")
    own = run.evaluate(beam=1)
    assert own["bleu"] == own.content["bleu"] and own.table["measure"].tolist() == list(own)
    assert "case:mixed" in repr(own) and own._repr_html_().count("<tr") == len(own) + 1
    assert own["accuracy"] == own["exact_match"]
    with pytest.raises(KeyError, match="no measure 'f1' of this model; there are bleu,"):
        own["f1"]
    pairs = [("the cat sees the dog", "das cat sieht das dog")] * 2
    frame = pandas.DataFrame(pairs, columns=["en", "de"])
    frame.to_csv(tmp_path / "pairs.csv", index=False)
    for data in (pairs, frame, tuple(zip(*pairs, strict=True)), tmp_path / "pairs.csv"):
        scores = headloom.evaluate(run, data, beam=1)
        assert "given data, 2 examples, beam 1" in scores.titles[0] and scores["loss"] > 0
    both = run.evaluate(pairs, beam=1, against=runs / "translation")
    assert (both.table["p"] == 1).all() and "difference" in both.table
    text = "the cow sees the cow\n" * 20
    (tmp_path / "text.txt").write_text(text)
    language = headloom.load(runs / "language")
    scores = language.evaluate(text.splitlines())
    assert scores == language.evaluate(tmp_path / "text.txt") != language.evaluate()
    with pytest.raises(headloom.InputError, match="split 'test' is for the run's own data"):
        language.evaluate(text.splitlines(), split="test")


@pytest.mark.usefixtures("words")
def test_a_model_of_transformers_is_evaluated(writer: Path, tmp_path: Path) -> None:
    model = headloom.load(writer)
    scores = model.evaluate(["a b c", "d e"])
    inputs = [model.tokenizer(text, return_tensors="pt")["input_ids"] for text in ("a b c", "d e")]
    with torch.no_grad():
        nats = [float(model.module(ids, labels=ids).loss) * (ids.shape[1] - 1) for ids in inputs]
    assert scores["loss"] == pytest.approx(sum(nats) / 3)
    small_model("BertForSequenceClassification", tmp_path, id2label={0: "0", 1: "1"})
    model = headloom.load(tmp_path)
    frame = pandas.DataFrame({"text": ["a b", "c", "e"], "label": ["0", "1", "1"]})
    frame["right"] = frame["label"] == [row["label"] for row in model.classify(frame["text"])]
    scores = model.evaluate(frame[["text", "label"]])
    assert scores["accuracy"] == pytest.approx(frame["right"].mean()) and "macro_f1" in scores
    with pytest.raises(headloom.InputError, match="has no data of its own"):
        model.evaluate()
