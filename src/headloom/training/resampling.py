"""Intervals and p-values by drawing examples again: what other test data might have shown."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headloom.errors import InputError
from headloom.training.measures import CorpusMeasure, Floats

#: Examples times draws that are held at once.
CELLS = 4_000_000


@dataclass(frozen=True)
class Resampling:
    """How examples are drawn.

    resamples: of the bootstrap; trials: of the randomisation test.
    level: of the intervals.
    """

    resamples: int = 1_000
    trials: int = 10_000
    level: float = 0.95
    seed: int = 1


@dataclass(frozen=True)
class Confidence:
    """From one number to another."""

    low: float
    high: float

    @classmethod
    def of(cls, values: Floats, level: float) -> Confidence:
        """The middle share of values (percentile interval). Source: Efron 1979."""
        low, high = np.quantile(values, ((1 - level) / 2, (1 + level) / 2))
        return cls(float(low), float(high))


@dataclass(frozen=True)
class Comparison:
    """Two models by one measure, on the same examples.

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


def _drawn(examples: int, how: Resampling) -> Iterator[NDArray[np.int64]]:
    """How often each example is drawn in each resample: (resamples, examples), in parts.

    The same for the same number of examples: what makes a comparison one of pairs.
    """
    numbers = np.random.default_rng(how.seed)
    shares = np.full(examples, 1 / examples)
    part = max(1, CELLS // examples)
    for start in range(0, how.resamples, part):
        yield numbers.multinomial(examples, shares, min(part, how.resamples - start))


def _resampled(measure: CorpusMeasure, how: Resampling) -> Floats:
    """The measure of each resample of the examples."""
    if not len(measure.statistics):
        raise InputError(f"{measure.name}: no examples to draw from. Give one at least.")
    sums = [drawn @ measure.statistics for drawn in _drawn(len(measure.statistics), how)]
    return measure.formula(np.concatenate(sums))


def interval(measure: CorpusMeasure, how: Resampling) -> Confidence:
    """The interval of a measure by the bootstrap: of corpora drawn from its examples, with
    replacement, as large as it is.

    Source: Efron 1979; Koehn 2004, section 3.
    """
    return Confidence.of(_resampled(measure, how), how.level)


def compare(first: CorpusMeasure, second: CorpusMeasure, how: Resampling) -> Comparison:
    """Two models by one measure.

    The p-value is that of approximate randomisation: how often a difference as large comes when
    the two models' results on each example are exchanged at random,

        p = (1 + number of trials with |difference| >= |observed|) / (1 + trials)

    Args: first, second: the same measure, of the same examples in the same order.
    Raises: InputError: not as many examples.
    Source: Noreen 1989; Riezler and Maxwell 2005.
    """
    if first.statistics.shape != second.statistics.shape:
        raise InputError(
            f"{first.name}: {len(first.statistics)} and {len(second.statistics)} examples; two "
            "models are compared on the same ones."
        )
    values, others = _resampled(first, how), _resampled(second, how)
    difference = second.value - first.value
    # Sums in another order differ in their last digits.
    least = abs(difference) * (1 - 1e-9)
    trials = np.abs(_exchanged(first, second, how)) >= least
    return Comparison(
        first, first.value, second.value,
        Confidence.of(values, how.level), Confidence.of(others, how.level),
        difference, Confidence.of(others - values, how.level),
        float((1 + trials.sum()) / (1 + len(trials))),
    )  # fmt: skip


def _exchanged(first: CorpusMeasure, second: CorpusMeasure, how: Resampling) -> Floats:
    """The difference in each trial in which the models change places on half of the examples."""
    numbers = np.random.default_rng(how.seed)
    base, other = first.statistics.sum(0), second.statistics.sum(0)
    change = second.statistics - first.statistics
    part = max(1, CELLS // max(1, len(change)))
    differences = []
    for start in range(0, how.trials, part):
        size = (min(part, how.trials - start), len(change))
        moved = numbers.integers(0, 2, size, dtype=np.int8).astype(np.float64) @ change
        differences.append(second.formula(other - moved) - first.formula(base + moved))
    return np.concatenate(differences)
