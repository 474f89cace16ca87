"""Intervals against SciPy's bootstrap and the normal formula; p-values by enumeration."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from headloom.errors import InputError
from headloom.training.measures import CorpusMeasure, mean_measure, ratio, translation_measures
from headloom.training.resampling import Resampling, compare, interval

HOW = Resampling()


def mean(values: NDArray[np.float64]) -> CorpusMeasure:
    return mean_measure("mean", "mean", values, np.ones(len(values)), higher=True)


def test_the_interval_of_a_mean_is_the_normal_one() -> None:
    values = np.random.default_rng(1).normal(3, 2, 2_000)
    found = interval(mean(values), Resampling(resamples=5_000))
    half = 1.96 * values.std() / np.sqrt(len(values))
    assert found.low == pytest.approx(values.mean() - half, abs=0.05 * half)
    assert found.high == pytest.approx(values.mean() + half, abs=0.05 * half)


def test_the_interval_of_a_ratio_is_that_of_scipy() -> None:
    """Of skewed numbers, where the interval is not symmetric."""
    numbers = np.random.default_rng(2)
    totals, counts = numbers.exponential(5, 60), numbers.integers(1, 9, 60).astype(float)
    measure = mean_measure("ratio", "ratio", totals, counts, higher=True)
    found = interval(measure, Resampling(resamples=20_000))
    oracle = stats.bootstrap(
        (totals, counts), lambda a, b, axis: a.sum(axis) / b.sum(axis), paired=True,
        vectorized=True, n_resamples=20_000, method="percentile", rng=np.random.default_rng(3),
    ).confidence_interval  # fmt: skip
    width = oracle.high - oracle.low
    assert found.low == pytest.approx(oracle.low, abs=0.03 * width)
    assert found.high == pytest.approx(oracle.high, abs=0.03 * width)


def test_p_by_enumeration() -> None:
    """All 2^10 exchanges of ten pairs."""
    numbers = np.random.default_rng(4)
    first, second = numbers.normal(0, 1, 10), numbers.normal(0.7, 1, 10)
    change = second - first
    signs = np.array(list(itertools.product((-1, 1), repeat=10)))
    exact = (np.abs(signs @ change) >= abs(change.sum()) - 1e-9).mean()
    found = compare(mean(first), mean(second), Resampling(trials=40_000))
    assert 0.02 < exact < 0.5
    assert found.p == pytest.approx(exact, abs=0.01)
    assert found.difference == pytest.approx(change.mean())


def test_planted_differences() -> None:
    numbers = np.random.default_rng(6)
    base = numbers.normal(size=400)
    small, large = base + numbers.normal(0.01, 1, 400), base + numbers.normal(0.15, 0.5, 400)
    assert compare(mean(base), mean(small), HOW).p > 0.2
    found = compare(mean(base), mean(large), HOW)
    assert found.p == pytest.approx(1 / 10_001)
    assert found.second_is_better
    assert 0.05 < found.interval.low < found.difference < found.interval.high < 0.25
    # Pairs show what two intervals that overlap hide.
    assert found.first_interval.high > found.second_interval.low


def test_p_values_of_no_difference_are_uniform() -> None:
    numbers = np.random.default_rng(11)
    how = Resampling(resamples=200, trials=400)
    found = [
        compare(mean(numbers.normal(size=30)), mean(numbers.normal(size=30)), how)
        for _ in range(400)
    ]
    for name in ("p",):
        p = np.array([getattr(pair, name) for pair in found])
        assert 0.02 < (p <= 0.05).mean() < 0.09, name
        assert 0.42 < (p <= 0.5).mean() < 0.58, name


def test_against_sacrebleu() -> None:
    """The p-value of its --paired-ar, up to the random numbers."""
    from sacrebleu.metrics import BLEU
    from sacrebleu.significance import PairedTest

    numbers = np.random.default_rng(3)
    words = np.array(["ein", "Mann", "und", "eine", "Frau", "mit", "dem", "Hund", "im", "Park"])
    expected, first, second = [], [], []
    for _ in range(150):
        sentence = numbers.choice(words, 9)
        expected.append(" ".join(sentence))
        for written, share in ((first, 0.30), (second, 0.27)):
            noise = numbers.choice(words, 9)
            written.append(" ".join(np.where(numbers.random(9) < share, noise, sentence)))
    pair = [translation_measures(written, expected)[0] for written in (first, second)]
    found = compare(*pair, HOW)
    systems = [("first", first), ("second", second)]
    test = PairedTest(systems, {"BLEU": BLEU(force=True)}, [expected], "ar", n_samples=4_000)
    oracle = test()[1]["BLEU"][1].p_value
    assert found.p == pytest.approx(oracle, abs=0.02)
    assert 0.01 < found.p < 0.9


def test_other_examples() -> None:
    with pytest.raises(InputError, match="2 and 3 examples; two models are compared"):
        compare(mean(np.ones(2)), mean(np.ones(3)), HOW)
    nothing = CorpusMeasure("mean", "mean", np.zeros((0, 2)), ratio, True)
    with pytest.raises(InputError, match="no examples to resample"):
        interval(nothing, HOW)
