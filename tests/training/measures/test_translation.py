"""BLEU, chrF and TER: by hand, and against sacreBLEU's own corpus scores."""

from __future__ import annotations

import random

import numpy as np
import pytest
from sacrebleu.metrics import BLEU

from headloom.training.measures.translation import translation_measures

WORDS = ["ein", "Mann", "und", "eine", "Frau", "gehen", "mit", "dem", "Hund", "im", "Park", "."]


def values(written: list[str], expected: list[str]) -> dict[str, float]:
    return {m.name: m.value for m in translation_measures(written, expected)}


def corpus(seed: int, sentences: int, wrong: float) -> tuple[list[str], list[str]]:
    """Translations with words replaced, dropped and doubled, and their references."""
    numbers = random.Random(seed)
    written, expected = [], []
    for _ in range(sentences):
        words = numbers.choices(WORDS, k=numbers.randint(1, 12))
        expected.append(" ".join(words))
        noisy = [numbers.choice(WORDS) if numbers.random() < wrong else word for word in words]
        numbers.random() < wrong and noisy.pop()
        numbers.random() < wrong and noisy.reverse()
        written.append(" ".join(noisy).upper() if numbers.random() < 0.1 else " ".join(noisy))
    return written, expected


def test_bleu_by_hand() -> None:
    """One word in five is wrong: 4/5, 2/4, and none of 3 and 2, which count 1/2 and 1/4."""
    found = values(["a b x d e"], ["a b c d e"])
    product = (4 / 5) * (2 / 4) * (1 / (2 * 3)) * (1 / (4 * 2))
    assert found["bleu"] == pytest.approx(100 * product**0.25)
    # Half as long as the reference, else right: the brevity penalty alone.
    short = values(["a b c d"], ["a b c d e f g h"])
    assert short["bleu"] == pytest.approx(100 * np.exp(1 - 8 / 4))


def test_empty_translations() -> None:
    found = values(["", "a b c d e"], ["a b", "a b c d e"])
    oracle = BLEU(force=True).corpus_score(["", "a b c d e"], [["a b", "a b c d e"]])
    assert found["bleu"] == pytest.approx(oracle.score)
    nothing = values([""], ["a b"])
    assert [nothing[name] for name in ("bleu", "chrf", "ter")] == [0, 0, 100]
