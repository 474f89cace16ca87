"""`headloom relevance`: runs and models of Hugging Face, what is printed, and errors."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
import torch
from tests.cli.conftest import Command
from tests.saved_models import small_model

from headloom.analysis.effects.relevance import relevance
from headloom.training.inference import open_run


def test_a_language_model(headloom_main: Command, runs: Path, tmp_path: Path) -> None:
    found = headloom_main("relevance", runs / "language", "--text", "two hog", "--json").json()
    run = open_run(runs / "language")
    ids = torch.tensor([run.vocabulary.encode("two hog")])
    expected = relevance(run.model, ids)[0]
    assert found["relevance"] == pytest.approx(expected.tolist())
    assert found["position"] == 6
    with torch.no_grad():
        logits = run.model(ids)[0, -1]
    assert found["logit"] == pytest.approx(float(logits.max()), abs=1e-5)
    assert found["tokens"] == list("two hog")

    (tmp_path / "text").write_text("two hog")
    asked = ("--file", tmp_path / "text", "--logit", "a", "--against", "e", "--token", "-3")
    table = headloom_main("relevance", runs / "language", *asked, "--csv")
    rows = list(csv.DictReader(io.StringIO(table.out)))
    two = run.vocabulary.encode("ae")
    difference = relevance(
        run.model, ids, lambda output: output[0, 4, two[0]] - output[0, 4, two[1]], rows=4
    )
    found = {int(row["position"]): float(row["relevance"]) for row in rows}
    assert [found[place] for place in range(7)] == pytest.approx(difference[0].tolist())
    # What comes later is relevant for nothing.
    assert found[5] == found[6] == 0

    shown = headloom_main("relevance", runs / "language", "--text", "two hog", "--limit", "3").out
    first, _, *lines = shown.splitlines()
    assert "after g (6)" in first
    assert lines.pop() == "and 4 more rows"
    values = [float(line.split()[-1]) for line in lines]
    assert values == sorted(values, reverse=True)
    assert len(values) == 3


def test_a_translator(headloom_main: Command, runs: Path) -> None:
    asked = ("--text", "de: 3.4.2024", "--target", "2024", "--logit", "-", "--json")
    found = headloom_main("relevance", runs / "dates", *asked).json()
    assert found["predicted"] == "-"
    assert len(found["relevance"]) == len(found["tokens"]) == len("de: 3.4.2024") + 1
    assert found["position"] == 4
    assert max(found["relevance"]) > 0
    own = headloom_main("relevance", runs / "dates", *asked[:2], "--json").json()
    assert own["tokens"] == found["tokens"]


@pytest.mark.parametrize("kind", ["bert", "classifier", "bart"])
def test_models_of_hugging_face(
    headloom_main: Command, tmp_path: Path, words: list[str], kind: str
) -> None:
    if kind == "bert":
        model = small_model("BertForMaskedLM", tmp_path)
        text, more, place = "a b [MASK] d", ("--logit", "c"), 2
    elif kind == "classifier":
        labels = {0: "bad", 1: "good"}
        model = small_model("BertForSequenceClassification", tmp_path, id2label=labels)
        text, more, place = "a b c d", ("--logit", "good", "--against", "bad"), None
    else:
        model = small_model("BartForConditionalGeneration", tmp_path)
        text, more, place = "a b c", ("--target", "c b", "--logit", "a"), 2
    found = headloom_main("relevance", tmp_path, "--text", text, *more, "--json").json()
    ids = torch.tensor([[words.index(word) for word in text.split()]])
    inputs = {"input_ids": ids}
    if kind == "bart":
        inputs["decoder_input_ids"] = torch.tensor([[2, 7, 6]])
    logit = {"bert": 7, "bart": 5}.get(kind)
    expected = relevance(
        model, inputs,
        (lambda output: output.logits[0, 1] - output.logits[0, 0]) if logit is None else logit,
        position=-1 if place is None else place, rows=place or 0,
    )  # fmt: skip
    assert found["relevance"] == pytest.approx(expected[0].tolist(), abs=1e-6)
    assert found["tokens"] == text.split()
    assert found["position"] == place
    if kind == "bert":
        asked = ("relevance", tmp_path, "--text", "a b")
        assert "[MASK]" in headloom_main(*asked).one_line()
        model.bert.save_pretrained(tmp_path)
        assert "headloom: BertModel makes no predictions" in headloom_main(*asked).one_line()
    if kind == "classifier":
        for wrong, said in ((("--logit", "fair"), "bad, good"), (("--token", "1"), "classif")):
            result = headloom_main("relevance", tmp_path, "--text", "a", *wrong)
            assert said in result.one_line()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "text is missing"),
        (("--text", "at", "--against", "a"), "needs logit"),
        (("--text", "at", "--logit", "at"), "logit at: 2 tokens; expected one"),
        (("--text", "at", "--token", "2"), "there are tokens 0 to 1"),
    ],
)
def test_bad_options(
    headloom_main: Command, runs: Path, arguments: tuple[str, ...], said: str
) -> None:
    assert said in headloom_main("relevance", runs / "language", *arguments).one_line()
