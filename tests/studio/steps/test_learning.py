"""`headloom steps --learn`: what is shown is what was computed, and what is wanted is what is
said."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

import headloom
from headloom.errors import InputError, ShapeError
from headloom.studio.steps.steps import Steps


def learning(*arguments: Any, **options: Any) -> Steps:
    made = headloom.steps(*arguments, **{"learn": 20, **options})
    assert made.learned is not None
    return made


def test_the_text_has_the_numbers() -> None:
    walk = learning("the cat sat on the mat", seed=3, learn=200)
    learned, text = walk.learned, str(walk)
    assert learned is not None
    assert max(map(len, text.splitlines())) <= 80
    first, second = (f"{loss:.4f}" for loss in learned.losses[:2])
    assert f"Loss: {first}\n" in text and f"Loss: {first} → {second}" in text
    assert re.search(rf"^ 200 +{learned.losses[-1]:.4f}$", text, re.M)
    assert "Each word is to give the vector of the word before it" in text
    assert learned.losses[-1] < 0.2 < learned.losses[0]
    difference = re.search(r"Largest difference over all matrices: (\S+)", text)
    assert difference is not None and 0 < float(difference[1]) < 1e-12
    row = " ".join(f"{number:.2f}" for number in learned.back.projections.W_Q[0, 0].tolist())
    assert row in text
    # The six steps before it are as without learning.
    plain = headloom.steps("the cat sat on the mat", seed=3)
    assert text.startswith(str(plain))
    assert "Back through the softmax" in walk._repr_html_()


def test_a_loss_that_grew_is_said_to_have_grown() -> None:
    walk = learning("hello", learn=2)
    assert walk.learned is not None and walk.learned.losses[-1] > walk.learned.losses[0]
    assert "the loss has not fallen" in str(walk) and "the loss falls" not in str(walk)


@pytest.mark.parametrize(
    ("kind", "wanted", "places"),
    [
        ("encoder", None, [0, 0, 1]),
        ("encoder", "previous", [0, 0, 1]),
        ("decoder", None, [1, 2, 2]),
        ("encoder", "next", [1, 2, 2]),
        ("cross", None, [0, 1, 2]),
        ("cross", "next", [1, 2, 2]),
    ],
)
def test_what_is_wanted(kind: str, wanted: str | None, places: list[int]) -> None:
    walk = learning(kind=kind, wanted=wanted, learn=1)
    assert walk.learned is not None
    assert torch.equal(walk.learned.wanted, walk.Y[places])


def test_vectors_of_ones_own() -> None:
    wanted = [[1.0, 0.0], [0.0, 1.0]]
    one = {"W_Q": [[1.0], [0.0]], "W_K": [[0.0], [1.0]], "W_V": [[1.0], [1.0]], "W_O": [[1.0, 2]]}
    walk = learning("a b", embeddings=[[1, 0], [0, 2]], positions="none", wanted=wanted, **one)
    assert walk.learned is not None and walk.learned.wanted.tolist() == wanted
    assert "that were given" in str(walk)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"learn": -1}, InputError, "learn is -1; expected a whole number"),
        ({"rate": 0}, InputError, "rate=0; expected a number above 0"),
        ({"rate": 50.0}, InputError, "too far. Give a smaller --rate"),
        ({"wanted": "nothing"}, InputError, "expected one of previous, next, same"),
        ({"wanted": [[1.0]]}, ShapeError, r"wanted is \(1, 1\); expected \(3, 4\)"),
        ({"wanted": [["a"]]}, InputError, "wanted is no matrix of numbers"),
        ({"model": "runs/none"}, InputError, "Leave out the model"),
        ({"W_O": [[1.0]] * 4}, ShapeError, "or another W_O"),
        (
            {"kind": "cross", "sentence": "a b", "target": "c d e"},
            InputError,
            "3 words look at 2, and the later ones have no such place",
        ),
    ],
)
def test_what_cannot_learn(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        headloom.steps(**{"learn": 20, **options})


@pytest.mark.parametrize("kind", ["encoder", "cross"])
def test_tables_beside_each_other_have_their_words_in_one_line(kind: str) -> None:
    """A table without names above its columns stands as low as one with them."""
    target = "le chat" if kind == "cross" else None
    walk = learning("the cat sat", kind=kind, target=target, learn=1)
    assert walk.learned is not None
    back, text = walk.learned.back, str(walk)
    for heading, left, right, above in (
        ("dA, head 0", back.weights, back.V, "dV, head 0"),
        ("dS, head 0", back.scores, back.Q, "dQ, head 0"),
    ):
        lines = text.splitlines()
        start = next(place for place, line in enumerate(lines) if heading in line)
        assert above in lines[start]
        for row in range(min(left.shape[1], right.shape[1])):
            shown = re.findall(r"-?\d+\.\d\d", lines[start + 2 + row])
            numbers = [*left[0, row].tolist(), *right[0, row].tolist()]
            assert [float(number) for number in shown[: len(numbers)]] == pytest.approx(
                numbers, abs=0.00501
            )
