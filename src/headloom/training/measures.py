"""Corpus measures: formulas of sums over the examples."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from headloom.errors import InputError
from headloom.formats.files import JsonObject

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class CorpusMeasure:
    """Measure of a corpus, computed from sums over its examples.

        value = formula(sum over examples of statistics)

    name: of the value in JSON; label: of its row in a table.
    statistics: (examples, sums).
    formula: from sums, (..., sums), to values, (...).
    higher: whether more is better.
    digits: decimals that are shown.
    signature: variant of the measure, as its library writes it.
    per_token: whether it depends on the tokens: not comparable between vocabularies.
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
        """Value over the whole corpus."""
        return float(self.formula(self.statistics.sum(0)))

    def part(self, examples: slice) -> CorpusMeasure:
        """Return the measure of some examples only."""
        return replace(self, statistics=self.statistics[examples])


@dataclass(frozen=True, eq=False)
class Results:
    """Measures of a model on held-out data.

    split: "valid" or "test".
    unit: plural name of an example: "sentences".
    measures: all of the same examples; the first is the main one.
    facts: further values, without intervals.
    counts: values per example of the facts that are sums over the examples.
    covered: first and last character, where the examples are stretches of a text.
    """

    split: str
    unit: str
    measures: Sequence[CorpusMeasure]
    facts: JsonObject
    counts: Mapping[str, Floats] = field(default_factory=dict)
    covered: tuple[int, int] | None = None

    def part(self, examples: slice) -> Results:
        """Return the results of some examples only."""
        counts = {name: values[examples] for name, values in self.counts.items()}
        sums = {name: int(values.sum()) for name, values in counts.items()}
        measures = [measure.part(examples) for measure in self.measures]
        return replace(self, measures=measures, facts={**self.facts, **sums}, counts=counts)

    def values(self) -> JsonObject:
        """Return all numbers by name, and the signatures of the measures that have one."""
        signatures = {m.name: m.signature for m in self.measures if m.signature is not None}
        return {
            "split": self.split,
            **self.facts,
            **{measure.name: measure.value for measure in self.measures},
            **({"signatures": signatures} if signatures else {}),
        }


def digest(data: object) -> str:
    """Return a hash of held-out data, lists of texts and numbers.

    >>> digest(["a", "b"]) == digest(["a", "b"]), digest(["a", "b"]) == digest(["ab"])
    (True, False)
    """
    return hashlib.sha256(json.dumps(data).encode()).hexdigest()


def ratio(sums: Floats) -> Floats:
    """Divide the first sum by the second; 0 where the second is 0.

    >>> float(ratio(np.array([3.0, 4.0])))
    0.75
    """
    return np.divide(
        sums[..., 0], sums[..., 1], out=np.zeros(sums.shape[:-1]), where=sums[..., 1] != 0
    )


def mean_measure(
    name: str, label: str, totals: Sequence[float] | Floats, counts: Sequence[float] | Floats, *,
    higher: bool, formula: Callable[[Floats], Floats] = ratio, digits: int = 4,
    per_token: bool = False,
) -> CorpusMeasure:  # fmt: skip
    """Make a mean over what the examples count: sum of totals / sum of counts.

    >>> mean_measure("loss", "loss", [2.0, 1.0], [1, 3], higher=False).value
    0.75
    """
    statistics = np.stack(
        (np.asarray(totals, dtype=np.float64), np.asarray(counts, dtype=np.float64)), -1
    )
    return CorpusMeasure(name, label, statistics, formula, higher, digits, per_token=per_token)


Labels = Sequence[int] | NDArray[np.int64]


def macro_f1_of(sums: Floats) -> Floats:
    """Compute the mean of F1 over classes, with equal weights.

        F1_c = 2 right_c / (predicted_c + expected_c)

    A class that occurs neither in the labels nor in the predictions does not count.

    Args: sums: right, predicted and expected examples of each class: (..., 3 classes).
    Source: van Rijsbergen 1979; the mean of F1 over classes, Opitz and Burst 2019.
    """
    right, predicted, expected = np.split(sums, 3, axis=-1)
    both = predicted + expected
    scores = 2 * right / np.maximum(both, 1)
    mean: Floats = scores.sum(-1) / np.maximum((both > 0).sum(-1), 1)
    return mean


def label_measures(expected: Labels, predicted: Labels, classes: int) -> list[CorpusMeasure]:
    """Compute accuracy and macro-F1.

    Args: expected, predicted: the class of each example, 0 to classes - 1.

    >>> [round(m.value, 4) for m in label_measures([0, 0, 0, 1], [0, 0, 1, 1], 2)]
    [0.75, 0.7333]
    """
    true, taken = np.asarray(expected, dtype=np.int64), np.asarray(predicted, dtype=np.int64)
    hits = (true == taken).astype(np.float64)
    one_hot = np.eye(classes)
    statistics = np.concatenate((one_hot[true] * hits[:, None], one_hot[taken], one_hot[true]), 1)
    return [
        mean_measure("accuracy", "accuracy", hits, np.ones_like(hits), higher=True),
        CorpusMeasure("macro_f1", "macro-F1", statistics, macro_f1_of, True),
    ]


#: Characters of a stretch, the unit of resampling, since neighbouring tokens are correlated. The
#: same for every vocabulary, so that models with different vocabularies can be paired.
STRETCH = 256


def perplexity(sums: Floats) -> Floats:
    """Compute ``exp(loss)`` from the sum of nats and the number of tokens: (..., 2)."""
    return np.exp(np.minimum(ratio(sums), 700.0))


def bits_per_byte(sums: Floats) -> Floats:
    """Compute the bits that the model needs for a byte of the text, for any tokens.

        bits per byte = nats / (ln 2 bytes)

    Args: sums: nats, bytes of the text in UTF-8: (..., 2).

    >>> float(bits_per_byte(np.array([math.log(2) * 8, 4.0])))       # 8 bits for 4 bytes
    2.0
    """
    bits: Floats = ratio(sums) / math.log(2)
    return bits


def token_bytes(text: str, starts: Sequence[int]) -> Floats:
    """Return the number of UTF-8 bytes of each token of a text.

    A token extends to the start of the next one, so that the sum is the size of the text.

    Args: starts: first character of each token.

    >>> token_bytes("dé ja", [0, 3]).tolist()
    [4.0, 2.0]
    """
    lengths = [len(character.encode()) for character in text]
    before = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
    edges = np.append(np.asarray(starts, dtype=np.int64), len(text))
    if len(starts):
        edges[0] = 0
    sizes: Floats = np.diff(before[edges]).astype(np.float64)
    return sizes


def of_stretches(values: Floats, starts: Floats) -> Floats:
    """Sum the tokens' values over each stretch of a text.

    Args: values: of each token; starts: its first character.

    >>> of_stretches(np.array([1.0, 2.0, 4.0]), np.array([0.0, 255.0, 256.0])).tolist()
    [3.0, 4.0]
    """
    return np.bincount((starts // STRETCH).astype(np.int64), values).astype(np.float64)


def common_stretches(first: tuple[int, int], second: tuple[int, int]) -> slice:
    """Return the whole stretches that two parts of a text, (first, last) character, share.

    A stretch at which both parts begin, or both end, counts as whole.

    >>> common_stretches((1, 1000), (1, 600)), common_stretches((1, 600), (3, 600))
    (slice(0, 2, None), slice(1, 3, None))
    """
    begin = 0 if first[0] == second[0] else -(-max(first[0], second[0]) // STRETCH)
    last = min(first[1], second[1])
    end = -(-last // STRETCH) if first[1] == second[1] else last // STRETCH
    return slice(begin, max(begin, end))


def language_measures(
    nats: Floats, right: Floats, sizes: Floats, starts: Floats
) -> list[CorpusMeasure]:
    """Compute bits per byte, loss, perplexity and accuracy over the stretches of a text.

    Args:
        nats: -log p of each predicted token.
        right: 1 where it was the most probable one.
        sizes: its bytes.
        starts: its first character.
    """
    total, tokens = of_stretches(nats, starts), of_stretches(np.ones_like(nats), starts)
    right, sizes = of_stretches(right, starts), of_stretches(sizes, starts)
    return [
        mean_measure(
            "bits_per_byte", "bits per byte", total, sizes, higher=False,
            formula=bits_per_byte,
        ),
        mean_measure("loss", "loss, nats", total, tokens, higher=False, per_token=True),
        mean_measure(
            "perplexity", "perplexity", total, tokens, higher=False, formula=perplexity, digits=3,
            per_token=True,
        ),
        mean_measure(
            "accuracy", "right tokens", right, tokens, higher=True, per_token=True
        ),
    ]  # fmt: skip


def translation_measures(written: Sequence[str], expected: Sequence[str]) -> list[CorpusMeasure]:
    """Compute BLEU, BLEU lowercased, chrF, TER (sacreBLEU) and exact matches.

    Results on Multi30k are often lowercased: a different, higher number.

    Args: written: translations, not tokenised; expected: a reference for each.
    Raises: InputError: their numbers differ, or are 0.
    Source: Papineni et al. 2002 (BLEU), Popovic 2015 (chrF), Snover et al. 2006 (TER); Post 2018
        (sacreBLEU, which computes the statistics of sentences, and the score of their sums).
    """
    from sacrebleu.metrics import BLEU, CHRF, TER

    if len(written) != len(expected) or not written:
        raise InputError(
            f"{len(written)} translations, {len(expected)} references; expected equal numbers, "
            "at least one."
        )
    parts: list[tuple[str, str, Metric, bool]] = [
        ("bleu", "BLEU", BLEU(force=True), True),
        ("bleu_lowercase_tokenised", "BLEU, lowercased", BLEU(lowercase=True, force=True), True),
        ("chrf", "chrF", CHRF(), True),
        ("ter", "TER", TER(), False),
    ]
    measures = []
    for name, label, metric, higher in parts:
        # sacreBLEU's own resampling uses these; its public scores keep the sums only.
        statistics = metric._extract_corpus_statistics(list(written), [list(expected)])
        sums = np.asarray(statistics, dtype=np.float64)

        def formula(sums: Floats, metric: Metric = metric) -> Floats:
            rows = sums.reshape(-1, sums.shape[-1]).round().astype(np.int64)
            scores = [metric._compute_score_from_stats(row).score for row in rows.tolist()]
            return np.array(scores).reshape(sums.shape[:-1])

        signature = str(metric.get_signature())
        measures.append(CorpusMeasure(name, label, sums, formula, higher, 2, signature))
    return [*measures, exact_match(written, expected)]


def exact_match(written: Sequence[str], expected: Sequence[str]) -> CorpusMeasure:
    """Share of translations that equal their reference."""
    equal = [float(text == right) for text, right in zip(written, expected, strict=True)]
    return mean_measure("exact_match", "exactly right", equal, np.ones(len(equal)), higher=True)
