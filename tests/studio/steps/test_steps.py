"""`headloom.steps`: matrices that are given or drawn, text and HTML, and input that cannot be
used."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.cells import cell_len

import headloom
from headloom.errors import InputError

ONE_HEAD = {"W_Q": [[0.0], [1.0]], "W_K": [[1.0], [0.0]], "W_V": [[1.0], [1.0]], "W_O": [[1.0]]}


def test_the_first_walk_is_three_words_wide_four_with_two_heads() -> None:
    walk = headloom.steps()
    assert walk.queries.tokens == ("the", "cat", "sat")
    assert walk.X.shape == (3, 4) and walk.Q.shape == (2, 3, 2)
    text = str(walk)
    assert max(map(len, text.splitlines())) <= 80 and len(text.splitlines()) < 140
    steps = [step for step in walk.lesson().steps if step.number is not None]
    names = ["Project", "Score", "Scale", "Mask", "Softmax", "Weigh"]
    assert [step.name for step in steps] == names
    assert all(step.formula and step.sentence for step in walk.lesson().steps)
    # What is drawn is easy to multiply; the weights are neither all alike nor all on one word.
    assert {float(number) for number in walk.projections["W_Q"].flatten()} <= {-1, -0.5, 0, 0.5, 1}
    assert float(walk.weights.std()) > 0.01 and float(walk.weights.max()) < 0.999


def numbers_below(text: str, heading: str, rows: int) -> np.ndarray[Any, Any]:
    """The numbers of the lines after a heading and its columns, without the words before them."""
    lines = text.splitlines()
    start = next(place for place, line in enumerate(lines) if line.strip().startswith(heading))
    chosen = lines[start + 2 : start + 2 + rows]
    return np.array(
        [
            [float(x.replace("−∞", "-inf")) for x in re.findall(r"-?\d+\.\d+|−∞", line)]
            for line in chosen
        ]
    )


def test_the_text_shows_the_numbers_of_the_matrices() -> None:
    walk = headloom.steps("the cat saw a dog", kind="decoder", digits=3, head=1)
    text = str(walk)
    shown = numbers_below(text, "A, head 1", 5)
    np.testing.assert_allclose(shown[:, :5], walk.weights[1].numpy(), atol=5.001e-4)
    assert shown[:, 5].tolist() == [1.0] * 5
    masked = numbers_below(text, "masked, head 1", 5)
    assert (np.isinf(masked) == np.triu(np.ones((5, 5)), 1).astype(bool)).all()
    difference = float(re.findall(r"Largest difference .*: (\S+)$", text, re.MULTILINE)[0])
    assert difference == pytest.approx(walk.difference, rel=0.05) and difference < 1e-12


def test_sums_that_are_written_out_add_up() -> None:
    walk = headloom.steps("a b c", query="b", digits=4)
    lines = [line for line in str(walk).splitlines() if "×" in line and "head" not in line]
    products = [line for line in lines if re.match(r" [abc] +-?\d+\.\d+×", line)]
    assert len(products) == 3
    for line in products:
        terms, dot, scaled, power, _ = re.match(
            r" \S+ +(.*?)  +(\S+) +(\S+) +(\S+) +(\S+)$", line
        ).groups()  # type: ignore[union-attr]
        factors = [[float(x) for x in term.split("×")] for term in terms.split(" + ")]
        assert sum(a * b for a, b in factors) == pytest.approx(float(dot), abs=2e-4)
        assert float(scaled) == pytest.approx(float(dot) / np.sqrt(2), abs=2e-4)
        assert float(power) == pytest.approx(np.exp(float(scaled)), rel=1e-3, abs=1e-4)
    weights = [float(line.split()[-1]) for line in products]
    assert weights == pytest.approx(walk.weights[0, 1].tolist(), abs=6e-5)


@pytest.mark.parametrize("digits", [0, 2, 6])
@pytest.mark.parametrize(
    ("sentence", "options"),
    [
        ("the cat sat", {}),
        ("a " * 40, {"heads": 1}),
        ("Donaudampfschifffahrtsgesellschaft 月曜日の朝 שלום \u202egnp.exe", {"width": 60}),
        ("one", {"width": 1, "heads": 1, "positions": "none"}),
        ("the cat sat", {"width": 64, "heads": 4, "head": 3}),
    ],
)
@pytest.mark.parametrize("kind", ["encoder", "decoder", "cross"])
def test_no_line_is_wider_than_eighty_columns(
    sentence: str, options: dict[str, Any], kind: str, digits: int
) -> None:
    target = "die Katze" if kind == "cross" else None
    walk = headloom.steps(sentence, kind=kind, target=target, digits=digits, **options)
    lines = str(walk).splitlines()
    assert max(map(cell_len, lines)) <= 80
    assert "\x1b" not in str(walk) and "\u202e" not in str(walk)


def test_the_three_kinds_differ_in_who_gives_what_and_in_the_mask() -> None:
    sentence, target = "the cat sat", "die Katze saß fest"
    encoder, decoder = headloom.steps(sentence), headloom.steps(target, kind="decoder")
    cross = headloom.steps(sentence, target=target, kind="cross")
    for name in ("W_Q", "W_K", "W_V", "W_O"):
        assert encoder.projections[name].equal(cross.projections[name])
    assert cross.Q.equal(decoder.Q) and cross.K.equal(encoder.K) and cross.V.equal(encoder.V)
    assert cross.weights.shape == (2, 4, 3)
    assert (decoder.weights.triu(1) == 0).all() and (encoder.weights > 0).all()


@pytest.mark.parametrize("suffix", [".json", ".npz"])
def test_matrices_of_a_file(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"matrices{suffix}"
    arrays = ONE_HEAD | {"embeddings": [[2.0, 0.0], [6.0, 1.0]]}
    if suffix == ".json":
        path.write_text(json.dumps(arrays))
    else:
        np.savez(path, **{name: np.array(array) for name, array in arrays.items()})
    walk = headloom.steps(matrices=path, positions="none")
    # By hand: Q = (0, 1), K = (2, 6), V = (2, 7).
    assert walk.scores.tolist() == [[[0, 0], [2, 6]]]
    assert walk.queries.tokens == ("x0", "x1")
    e = np.exp(-4)
    expected = [[4.5], [(2 * e + 7) / (1 + e)]]
    np.testing.assert_allclose(walk.output.numpy(), expected, atol=1e-12)
    assert walk.origin == "given: embeddings, W_Q, W_K, W_V, W_O"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sentence": " "}, "the sentence is empty"),
        ({"sentence": "a " * 41}, "the sentence has 41 tokens; headloom steps shows 40 at most"),
        ({"query": "dog"}, "query 'dog' not found. Words 0 to 2 are the, cat, sat."),
        ({"query": 3}, "query 3 not found. Words 0 to 2 are"),
        ({"head": 2}, "head 2: there are heads 0 to 1"),
        ({"kind": "graph"}, "kind='graph'; expected one of \"encoder\""),
        ({"sentence": "a", "kind": "cross"}, "give the target too"),
        ({"width": 5}, "width 5 does not split into 2 heads"),
        ({"positions": "rotary"}, "positions='rotary'; expected"),
        ({"W_Q": [[1, 2], [3]]}, "W_Q is not a matrix of numbers"),
        ({"W_X": [[1]]}, "no matrix 'W_X'; expected one of embeddings, target_em"),
        ({"W_Q": [1.0, 2.0]}, "W_Q is (2,); expected (width, heads * depth)"),
        ({"W_Q": [[1, 2, 3]], "heads": 2}, "W_Q is (1, 3); expected (width, heads * depth)"),
        ({"b_K": [[1.0], [1.0]]}, "b_K is (2, 1); expected (2, 2), to fit the others"),
        ({"sentence": "a b", "embeddings": [[1, 2, 3, 4]]}, "(1, 4); expected (2, 4)"),
        ({"W_Q": [[[np.inf] * 2] * 4] * 2}, "W_Q has a number that is not finite"),
        ({"model": "x", "W_Q": [[1]]}, "model: a model has matrices of its own"),
        ({"target": "die Katze"}, "target: an encoder reads one sentence"),
        ({"learn": 5, "wanted": "first"}, "wanted='first'; expected one of previous, next, same"),
        ({"learn": 50, "rate": 1e4}, "it diverges. Give a smaller --rate"),
    ],
)
def test_input_that_cannot_be_used(options: Any, message: str) -> None:
    with pytest.raises(InputError) as raised:
        headloom.steps(**options)
    assert message in str(raised.value) and "\n" not in str(raised.value)


class Page(HTMLParser):
    """The elements of a page, and its words."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def test_html_says_what_the_text_says(hostile_tokens: list[str]) -> None:
    walk = headloom.steps(hostile_tokens, positions="none", seed=4)
    page = Page(walk._repr_html_())
    assert page.tags == {"style", "div", "span"}
    said = [line.rstrip() for line in page.text.splitlines()]
    assert [line for line in str(walk).splitlines() if line not in said] == []
    walk._repr_html_().encode("utf-8")
    assert "http" not in walk._repr_html_()


def test_pages_and_pictures_are_written_whole(tmp_path: Path) -> None:
    walk, file, picture = headloom.steps(kind="cross"), tmp_path / "a.html", tmp_path / "a.svg"
    walk.page(file)
    walk.picture(picture)
    assert file.read_text("utf-8").startswith("<!DOCTYPE html>")
    svg = picture.read_text("utf-8")
    for weight in walk.weights.flatten().tolist():
        assert f">{weight:.2f}</text>" in svg
    with pytest.raises(InputError, match=r"written as \.png"):
        headloom.steps().picture(tmp_path / "walk.gif")


def test_learning_shows_what_was_computed() -> None:
    walk = headloom.steps("the cat sat on the mat", seed=3, learn=200)
    learned, text = walk.learned, str(walk)
    assert learned is not None
    assert max(map(len, text.splitlines())) <= 80
    first, second = (f"{loss:.4f}" for loss in learned.losses[:2])
    assert f"Loss: {first}\n" in text and f"Loss: {first} → {second}" in text
    assert re.search(rf"^ 200 +{learned.losses[-1]:.4f}$", text, re.M)
    assert "Each word should give the vector of the word before it" in text
    assert learned.losses[-1] < 0.2 < learned.losses[0]
    row = " ".join(f"{number:.2f}" for number in learned.back.projections["W_Q"][0, 0].tolist())
    assert row in text
    # The six steps before it are as without learning.
    plain = headloom.steps("the cat sat on the mat", seed=3)
    assert text.startswith(str(plain))
    assert "Back through the softmax" in walk._repr_html_()


@pytest.mark.parametrize(
    ("kind", "wanted", "places"),
    [
        ("encoder", None, [0, 0, 1]),
        ("decoder", None, [1, 2, 2]),
        ("cross", None, [0, 1, 2]),
        ("cross", "next", [1, 2, 2]),
    ],
)
def test_what_is_wanted(kind: str, wanted: str | None, places: list[int]) -> None:
    walk = headloom.steps(kind=kind, wanted=wanted, learn=1)
    assert walk.learned is not None
    assert walk.learned.wanted.equal(walk.Y[places])
