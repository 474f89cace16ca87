"""A measure of a corpus: a formula of sums, to which each example adds its own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from headloom.formats.files import JsonObject

__all__ = ["CorpusMeasure", "Floats", "Results", "digest", "mean_measure", "ratio"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class CorpusMeasure:
    """A measure, and what each example adds to the sums that it is computed from.

        value = formula(sum over examples of statistics)

    name: of the value in JSON; label: of its row in a table.
    statistics: (examples, sums).
    formula: from sums, (..., sums), to values, (...).
    higher: whether more is better.
    digits: decimals that are shown.
    signature: which variant it is, as its library writes it.
    per_token: whether it depends on what a token is: not comparable between vocabularies.
    """

    name: str
    label: str
    statistics: Floats
    formula: Callable[[Floats], Floats]
    higher: bool
    digits: int = 4
    signature: str | None = None
    per_token: bool = False

    @property
    def value(self) -> float:
        """Of the whole corpus."""
        return float(self.formula(self.statistics.sum(0)))

    def part(self, examples: slice) -> CorpusMeasure:
        """The same of some examples only."""
        return replace(self, statistics=self.statistics[examples])


@dataclass(frozen=True, eq=False)
class Results:
    """What a model reached on held-out data.

    split: "valid" or "test".
    unit: what an example is, in the plural: "sentences".
    measures: all of the same examples; a comparison speaks of the first.
    facts: what else there is to say, without intervals.
    counts: facts that are sums over the examples: what each adds.
    covered: where the examples are stretches of a text: from which of its characters to which.
    """

    split: str
    unit: str
    measures: Sequence[CorpusMeasure]
    facts: JsonObject
    counts: Mapping[str, Floats] = field(default_factory=dict)
    covered: tuple[int, int] | None = None

    def part(self, examples: slice) -> Results:
        """The same of some examples only."""
        counts = {name: values[examples] for name, values in self.counts.items()}
        sums = {name: int(values.sum()) for name, values in counts.items()}
        measures = [measure.part(examples) for measure in self.measures]
        return replace(self, measures=measures, facts={**self.facts, **sums}, counts=counts)

    def values(self) -> JsonObject:
        """All numbers, by their names, and the signatures of those that have one."""
        signatures = {m.name: m.signature for m in self.measures if m.signature is not None}
        return {
            "split": self.split,
            **self.facts,
            **{measure.name: measure.value for measure in self.measures},
            **({"signatures": signatures} if signatures else {}),
        }


def digest(data: object) -> str:
    """What two sets of held-out data, lists of texts and numbers, are told apart by.

    >>> digest(["a", "b"]) == digest(["a", "b"]), digest(["a", "b"]) == digest(["ab"])
    (True, False)
    """
    return hashlib.sha256(json.dumps(data).encode()).hexdigest()


def ratio(sums: Floats) -> Floats:
    """The first sum over the second, 0 where there is nothing.

    >>> float(ratio(np.array([3.0, 4.0])))
    0.75
    """
    return np.divide(
        sums[..., 0], sums[..., 1], out=np.zeros(sums.shape[:-1]), where=sums[..., 1] != 0
    )


def mean_measure(
    name: str,
    label: str,
    totals: Sequence[float] | Floats,
    counts: Sequence[float] | Floats,
    *,
    higher: bool,
    formula: Callable[[Floats], Floats] = ratio,
    digits: int = 4,
    per_token: bool = False,
) -> CorpusMeasure:
    """A mean over all that the examples count: sum of totals / sum of counts.

    >>> mean_measure("loss", "loss", [2.0, 1.0], [1, 3], higher=False).value
    0.75
    """
    statistics = np.stack(
        (np.asarray(totals, dtype=np.float64), np.asarray(counts, dtype=np.float64)), -1
    )
    return CorpusMeasure(name, label, statistics, formula, higher, digits, per_token=per_token)
