"""Accuracy and macro-F1 against scikit-learn; McNemar's test by counting."""

from __future__ import annotations

import numpy as np
import pytest

from headloom.errors import InputError
from headloom.training.measures.labels import label_measures, macro_f1_of

metrics = pytest.importorskip("sklearn.metrics")


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


@pytest.mark.parametrize(
    ("expected", "predicted", "message"),
    [
        ([], [], "one example at least"),
        ([0, 1], [0], r"\(2,\) expected, \(1,\) predicted"),
        ([0, 2], [0, 1], "0 to 2; expected numbers of 2 classes, 0 to 1"),
        ([0, 1], [0, -1], "-1 to 0; expected numbers of 2 classes"),
    ],
)
def test_labels_that_cannot_be(expected: list[int], predicted: list[int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        label_measures(expected, predicted, 2)
