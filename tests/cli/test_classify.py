"""A run of a classifier, from its texts to its labels, traces, heads and words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Command, ran

CONFIG = """
[task]
kind = "labels"
folder = "{folder}"
train = "all.tsv"

[model]
width = 16
heads = 2
feed_forward = 16
layers = 2
dropout = 0.0
pooling = "{pooling}"

[training]
max_steps = 80
batch_tokens = 256
warmup = 5
validate_every = 40
checkpoint_every = 40
peak_learning_rate = 5e-3
label_smoothing = 0.0
"""
WORDS = {"for": ["good", "witty", "warm"], "against": ["bad", "dull", "cold"]}


@pytest.fixture(scope="module", params=["mean", "max"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained classifier, by each pooling."""
    folder = tmp_path_factory.mktemp("labels")
    texts = ["the film is {}", "a {} story", "they call it {}", "so {} , so long"]
    lines = [
        f"{label}\t{text.format(word)}\n"
        for _ in range(4)
        for label, words in WORDS.items()
        for word in words
        for text in texts
    ]
    (folder / "all.tsv").write_text("".join(lines))
    path = folder / "c.toml"
    path.write_text(CONFIG.format(folder=folder, pooling=request.param))
    ran("train", path, "--run", folder / "run")
    return folder / "run"


def test_lines_to_classes_and_probabilities(headloom_process: Command, run: Path) -> None:
    lines = b"a Warm film\n\na cold zebra\n"
    result = headloom_process("predict", run, stdin=lines)
    assert result.code == 0
    first, empty, second, rest = result.out.split("\n")
    assert empty == rest == ""
    (label, share), (other, _) = first.split("\t"), second.split("\t")
    assert (label, other) == ("for", "against")
    described = headloom_process("predict", run, "--json", stdin=lines).out.splitlines()
    predictions = [json.loads(line) for line in described]
    assert predictions[1]["label"] is None
    assert predictions[0]["label"] == "for"
    assert set(predictions[0]["probabilities"]) == {"for", "against"}
    assert float(share) == pytest.approx(predictions[0]["probabilities"]["for"], abs=1e-4)
    assert "words not in the vocabulary of this run" in result.err and "zebra" in result.err


def test_the_words_that_the_class_came_from(headloom_main: Command, run: Path) -> None:
    text = "they call it a witty story"
    table = headloom_main("relevance", run, "--text", text).out
    assert "for, label: " in table
    assert "The class comes from all positions, by m" in table
    report = headloom_main("relevance", run, "--text", text, "--json").json()
    assert report["tokens"] == ["<start>", *text.split()]
    values = report["relevance"]
    assert values.index(max(values)) == report["tokens"].index("witty")
    assert len(report["parts"]) == len(values)
    less = headloom_main("relevance", run, "--text", text, "--logit", "for", "--against", "against")
    assert "for less against, label: " in less.out


def test_it_is_traced_and_its_heads_are_read(
    headloom_main: Command, run: Path, tmp_path: Path
) -> None:
    result = headloom_main("trace", run, "--text", "a dull story", "-o", tmp_path / "t.loom")
    assert result.code == 0
    assert "tokens: 4 tokens: <start> a dull story" in result.err
    assert "2 attention layers." in result.err
    assert "4 of 4 heads" in headloom_main("heads", tmp_path / "t.loom", "--all").out
    assert "4 of 4 heads" in headloom_main("heads", run, "--all").out
    page = tmp_path / "page.html"
    assert headloom_main("export", tmp_path / "t.loom", "--html", page).code == 0
    assert "dull" in page.read_text()


def test_heads_are_taken_away(headloom_main: Command, run: Path) -> None:
    asked = ("ablate", run, "--text", "a dull story", "--logit", "against", "--json")
    assert len(headloom_main(*asked).json()["heads"]) == 4
    assert "loss" in headloom_main("ablate", run, "--text", "a dull story", "--target", "for").out
    assert headloom_main("ablate", run).code == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("relevance", "--text", "film", "--logit", "so"),
            "no such label; there are against, for.",
        ),
        (("relevance", "--text", "film", "--token", "1"), "a classifier predicts one label"),
        (("trace", "--text", "film", "--target", "y", "-o", "{}"), "target: this run classifies"),
        (("trace", "--text", "film", "--generate", "3", "-o", "{}"), "generate: this run class"),
        (("trace", "--text", "x y", "--window", "2", "-o", "{}"), "a whole text at once"),
        (("trace", "--text", " ", "-o", "{}"), "the text is empty"),
        (("ablate", "--text", "film"), "the loss of a text needs its label. Give it as target"),
    ],
)
def test_what_a_classifier_does_not_do(
    headloom_main: Command, run: Path, tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    verb, *rest = (word.format(tmp_path / "t.loom") for word in words)
    assert message in headloom_main(verb, run, *rest).one_line()
