"""Measures: by hand, against scikit-learn, and against sacreBLEU's own corpus scores."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from sacrebleu.metrics import BLEU
from sklearn import metrics

from headloom.training.measures import (
    STRETCH,
    common_stretches,
    label_measures,
    language_measures,
    macro_f1_of,
    token_bytes,
    translation_measures,
)
from headloom.training.text import Vocabulary

TEXT = "Tschüß, schöne Welt! 你好，世界。 The cat sat on the mat.\n" * 20


@pytest.mark.parametrize("pieces", [False, True])
def test_the_bytes_of_the_tokens_are_those_of_the_text(pieces: bool) -> None:
    make = Vocabulary.of_pieces([TEXT[:80]], 320) if pieces else Vocabulary.of_characters([TEXT])
    ids, offsets = make.encode_with_offsets(TEXT)
    sizes = token_bytes(TEXT, [start for start, _ in offsets])
    assert len(sizes) == len(ids)
    assert sizes.sum() == len(TEXT.encode())
    assert sizes.min() >= 0


def test_a_uniform_model() -> None:
    """Of 27 characters, each a byte: log2 27 bits a byte, perplexity 27."""
    count = 1_000
    nats = np.full(count, math.log(27))
    starts = np.arange(count, dtype=np.float64)
    found = language_measures(nats, np.zeros(count), np.ones(count), starts)
    values = {measure.name: measure.value for measure in found}
    assert values["bits_per_byte"] == pytest.approx(math.log2(27))
    assert values["perplexity"] == pytest.approx(27)
    assert values["loss"] == pytest.approx(math.log(27))
    assert values["accuracy"] == 0
    assert [len(measure.statistics) for measure in found] == [math.ceil(count / STRETCH)] * 4


def test_stretches_in_common() -> None:
    """One that either side has only in part is none, unless both have the same part of it."""
    assert common_stretches((1, 700), (1, 700)) == slice(0, 3)
    assert common_stretches((1, 768), (1, 700)) == slice(0, 2)
    assert common_stretches((1, 768), (1, 900)) == slice(0, 3)
    assert common_stretches((1, 700), (4, 700)) == slice(1, 3)
    assert common_stretches((1, 100), (1, 90)) == slice(0, 0)
    assert common_stretches((1, 100), (4, 90)) == slice(1, 1)


@pytest.mark.parametrize("seed", range(8))
def test_against_scikit_learn(seed: int) -> None:
    """Also with classes that never occur, or are never predicted."""
    numbers = np.random.default_rng(seed)
    classes = int(numbers.integers(2, 9))
    expected = numbers.integers(0, max(1, classes - seed % 3), 60)
    noise = numbers.integers(0, classes, 60)
    predicted = np.where(numbers.random(60) < 0.4, noise, expected)
    accuracy, macro_f1 = label_measures(expected, predicted, classes)
    assert accuracy.value == pytest.approx(metrics.accuracy_score(expected, predicted))
    oracle = metrics.f1_score(expected, predicted, average="macro", zero_division=0)
    assert macro_f1.value == pytest.approx(oracle)
    # Of a resample too: the sums of the examples drawn.
    drawn = numbers.integers(0, 60, 60)
    value = float(macro_f1_of(macro_f1.statistics[drawn].sum(0)))
    assert value == pytest.approx(
        metrics.f1_score(expected[drawn], predicted[drawn], average="macro", zero_division=0)
    )


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
