"""BLEU, chrF and TER of translations, from the sums of their sentences' statistics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from headloom.errors import InputError
from headloom.training.measures.corpus import CorpusMeasure, Floats, ratio

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric

__all__ = ["bleu_of", "chrf_of", "ter_of", "translation_measures"]

#: The longest n-grams of words (BLEU) and of characters (chrF), and chrF's weight of the recall.
WORDS, CHARACTERS, BETA = 4, 6, 2


def bleu_of(sums: Floats) -> Floats:
    """BLEU, in percent.

        BLEU = 100 min(1, exp(1 - r / h)) (p_1 p_2 p_3 p_4)^(1/4)
        p_n = matching n-grams / n-grams of the translations

    The k-th of the precisions that are 0 counts as ``1 / (2^k n-grams)``.

    Args: sums: words h of the translations, words r of the references, matching n-grams of 1 to 4
        words, all such n-grams: (..., 10).
    Source: Papineni et al. 2002; Chen and Cherry 2014 (their smoothing 3), as sacreBLEU.
    """
    length, reference = sums[..., 0], sums[..., 1]
    matching, ngrams = sums[..., 2 : 2 + WORDS], sums[..., 2 + WORDS :]
    missing = np.cumsum(matching == 0, axis=-1)
    counted = np.where(matching == 0, 0.5**missing, matching)
    precisions = counted / np.maximum(ngrams, 1)
    penalty = np.exp(np.minimum(0.0, 1 - reference / np.maximum(length, 1)))
    value = 100 * penalty * np.exp(np.log(precisions).mean(-1))
    return np.where((matching.sum(-1) == 0) | (ngrams[..., -1] == 0), 0.0, value)


def chrf_of(sums: Floats) -> Floats:
    """chrF, in percent: the F-score, beta 2, of the mean precision and recall of n-grams.

        chrF = 100 (1 + beta^2) P R / (beta^2 P + R)

    Args: sums: for n from 1 to 6 the n-grams of characters of the translations, those of the
        references, and the matching ones: (..., 18). Orders without any do not count.
    Source: Popovic 2015, as sacreBLEU.
    """
    counts = sums.reshape(*sums.shape[:-1], CHARACTERS, 3)
    written, expected, matching = counts[..., 0], counts[..., 1], counts[..., 2]
    there = (written > 0) & (expected > 0)
    orders = np.maximum(there.sum(-1), 1)
    precision = (np.where(there, matching, 0) / np.maximum(written, 1)).sum(-1) / orders
    recall = (np.where(there, matching, 0) / np.maximum(expected, 1)).sum(-1) / orders
    both = BETA**2 * precision + recall
    product: Floats = 100 * (1 + BETA**2) * precision * recall
    return np.divide(product, np.where(both > 0, both, 1.0))


def ter_of(sums: Floats) -> Floats:
    """TER, in percent: edits (insert, delete, replace a word, shift words) per reference word.

    Args: sums: edits, words of the references: (..., 2).
    Source: Snover et al. 2006, as sacreBLEU.
    """
    return 100 * ratio(sums)


def translation_measures(written: Sequence[str], expected: Sequence[str]) -> list[CorpusMeasure]:
    """BLEU cased, BLEU lowercased and tokenised, chrF and TER, with sacreBLEU's signatures.

    The second ignores case, as results on Multi30k are often given: a different, higher number.

    Args: written: translations, not tokenised; expected: a reference for each.
    Raises: InputError: as many translations and references are needed, and one at least.
    Source: Post 2018 (sacreBLEU, which counts what the sentences add).
    """
    from sacrebleu.metrics import BLEU, CHRF, TER

    if len(written) != len(expected) or not written:
        raise InputError(
            f"{len(written)} translations, {len(expected)} references; expected as many, and one "
            "at least."
        )
    parts: list[tuple[str, str, Metric, Callable[[Floats], Floats], bool]] = [
        ("bleu", "BLEU", BLEU(force=True), bleu_of, True),
        ("bleu_lowercase_tokenised", "BLEU, lowercased", BLEU(lowercase=True, force=True),
         bleu_of, True),
        ("chrf", "chrF", CHRF(), chrf_of, True),
        ("ter", "TER", TER(), ter_of, False),
    ]  # fmt: skip
    measures = []
    for name, label, metric, formula, higher in parts:
        # What sacreBLEU's own resampling reads; its public scores keep the sums only.
        statistics = metric._extract_corpus_statistics(list(written), [list(expected)])
        sums = np.asarray(statistics, dtype=np.float64)
        signature = str(metric.get_signature())
        measures.append(CorpusMeasure(name, label, sums, formula, higher, 2, signature))
    return measures
