"""Variety and repetition of texts: by hand, and self-BLEU against sacreBLEU's BLEU."""

from __future__ import annotations

import random

import pytest
from sacrebleu.metrics import BLEU

from headloom.training.measures.generated import distinct, diversity, loops, repetition, self_bleu


@pytest.mark.parametrize("seed", range(5))
def test_self_bleu_against_sacrebleu(seed: int) -> None:
    """A sentence's BLEU with all others as references, with smoothing 1 of Chen and Cherry."""
    numbers = random.Random(seed)
    texts = [
        " ".join(numbers.choices("abcdef", (9, 5, 3, 2, 1, 1), k=numbers.randint(4, 15)))
        for _ in range(12)
    ]
    oracle = BLEU(smooth_method="floor", smooth_value=0.1, tokenize="none", force=True)
    scores = [
        oracle.corpus_score([text], [[other] for other in texts[:i] + texts[i + 1 :]]).score
        for i, text in enumerate(texts)
    ]
    expected = sum(scores) / len(scores) / 100
    assert self_bleu([text.split() for text in texts]) == pytest.approx(expected)


def test_self_bleu_of_strangers_and_twins() -> None:
    assert self_bleu([list("abcde"), list("fghij")]) < 0.05
    assert self_bleu([list("abcde")] * 3) == pytest.approx(1)
    assert self_bleu([list("abcde")]) == self_bleu([[], []]) == 0


def test_nothing_to_count() -> None:
    assert distinct([], 1) == distinct([["a"]], 2) == repetition([["a"]], 2) == loops([]) == 0


def test_loops() -> None:
    """Of two words or more, three times, at the end."""
    assert loops([list("xababab")]) == 1
    assert loops([list("abababx")]) == 0
    assert loops([list("xaaa")]) == 0
    assert loops([list("xaaaaaa")]) == 1  # "aa" three times


def test_of_texts() -> None:
    found = diversity(["to be or not to be", "that is the question"])
    assert found["distinct_1"] == 8 / 10
    assert found["distinct_2"] == 7 / 8
    assert found["repetition"] == 0
