"""`headloom steps --learn`: what is shown is what was computed, and what is wanted is what is
said."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

import headloom
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
    row = " ".join(f"{number:.2f}" for number in learned.back.projections.W_Q[0, 0].tolist())
    assert row in text
    # The six steps before it are as without learning.
    plain = headloom.steps("the cat sat on the mat", seed=3)
    assert text.startswith(str(plain))
    assert "Back through the softmax" in walk._repr_html_()


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
