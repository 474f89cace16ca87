"""Confidence intervals and p-values by resampling the test examples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headloom.errors import InputError
from headloom.training.measures import CorpusMeasure, Floats

#: Examples times resamples in memory at once.
CELLS = 4_000_000


@dataclass(frozen=True)
class Resampling:
    """Settings of the resampling.

    resamples: of the bootstrap; trials: of the randomisation test.
    level: of the intervals.
    """

    resamples: int = 1_000
    trials: int = 10_000
    level: float = 0.95
    seed: int = 1


@dataclass(frozen=True)
class Confidence:
    """Confidence interval."""

    low: float
    high: float

    @classmethod
    def of(cls, values: Floats, level: float) -> Confidence:
        """Return the percentile interval of values. Source: Efron 1979."""
        low, high = np.quantile(values, ((1 - level) / 2, (1 + level) / 2))
        return cls(float(low), float(high))


@dataclass(frozen=True)
class Comparison:
    """Comparison of two models by one measure, on the same examples.

    difference: second - first, with the interval of the bootstrap.
    p: of approximate randomisation.
    """

    measure: CorpusMeasure
    first: float
    second: float
    first_interval: Confidence
    second_interval: Confidence
    difference: float
    interval: Confidence
    p: float

    @property
    def second_is_better(self) -> bool:
        """Whether the second value is the better one."""
        return (self.difference > 0) == self.measure.higher


def _draw_counts(examples: int, settings: Resampling) -> Iterator[NDArray[np.int64]]:
    """Yield how often each example is drawn in each resample: (resamples, examples), in parts.

    The draws depend on the number of examples alone, so that two models are compared in pairs.
    """
    numbers = np.random.default_rng(settings.seed)
    shares = np.full(examples, 1 / examples)
    part = max(1, CELLS // examples)
    for start in range(0, settings.resamples, part):
        yield numbers.multinomial(examples, shares, min(part, settings.resamples - start))


def _resampled(measure: CorpusMeasure, settings: Resampling) -> Floats:
    """Compute the measure of each resample of the examples."""
    if not len(measure.statistics):
        raise InputError(f"{measure.name}: no examples to resample. Give at least one.")
    sums = [drawn @ measure.statistics for drawn in _draw_counts(len(measure.statistics), settings)]
    return measure.formula(np.concatenate(sums))


def interval(measure: CorpusMeasure, settings: Resampling) -> Confidence:
    """Compute the bootstrap interval of a measure: its examples are drawn with replacement.

    Source: Efron 1979; Koehn 2004, section 3.
    """
    return Confidence.of(_resampled(measure, settings), settings.level)


def compare(first: CorpusMeasure, second: CorpusMeasure, settings: Resampling) -> Comparison:
    """Compare two models by one measure.

    The p-value is that of approximate randomisation: the probability of a difference as large when
    the two models' results on each example are exchanged at random,

        p = (1 + number of trials with |difference| >= |observed|) / (1 + trials)

    Args: first, second: the same measure, of the same examples in the same order.
    Raises: InputError: the numbers of examples differ.
    Source: Noreen 1989; Riezler and Maxwell 2005.
    """
    if first.statistics.shape != second.statistics.shape:
        raise InputError(
            f"{first.name}: {len(first.statistics)} and {len(second.statistics)} examples; two "
            "models are compared on the same ones."
        )
    values, others = _resampled(first, settings), _resampled(second, settings)
    difference = second.value - first.value
    # Sums in another order differ in their last digits.
    least = abs(difference) * (1 - 1e-9)
    trials = np.abs(_exchanged(first, second, settings)) >= least
    return Comparison(
        first, first.value, second.value,
        Confidence.of(values, settings.level), Confidence.of(others, settings.level),
        difference, Confidence.of(others - values, settings.level),
        float((1 + trials.sum()) / (1 + len(trials))),
    )  # fmt: skip


def _exchanged(first: CorpusMeasure, second: CorpusMeasure, settings: Resampling) -> Floats:
    """Compute the difference in each trial, with results exchanged on half of the examples."""
    numbers = np.random.default_rng(settings.seed)
    base, other = first.statistics.sum(0), second.statistics.sum(0)
    change = second.statistics - first.statistics
    part = max(1, CELLS // max(1, len(change)))
    differences = []
    for start in range(0, settings.trials, part):
        size = (min(part, settings.trials - start), len(change))
        moved = numbers.integers(0, 2, size, dtype=np.int8).astype(np.float64) @ change
        differences.append(second.formula(other - moved) - first.formula(base + moved))
    return np.concatenate(differences)
