"""BLEU, chrF and TER of translations, from the sums of their sentences' statistics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from headloom.errors import InputError
from headloom.training.measures.corpus import CorpusMeasure, Floats

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric

__all__ = ["translation_measures"]


def translation_measures(written: Sequence[str], expected: Sequence[str]) -> list[CorpusMeasure]:
    """BLEU cased, BLEU lowercased and tokenised, chrF and TER, with sacreBLEU's signatures.

    The second ignores case, as results on Multi30k are often given: a different, higher number.

    Args: written: translations, not tokenised; expected: a reference for each.
    Raises: InputError: as many translations and references are needed, and one at least.
    Source: Papineni et al. 2002 (BLEU), Popovic 2015 (chrF), Snover et al. 2006 (TER); Post 2018
        (sacreBLEU, which counts what the sentences add, and computes the score of any sums).
    """
    from sacrebleu.metrics import BLEU, CHRF, TER

    if len(written) != len(expected) or not written:
        raise InputError(
            f"{len(written)} translations, {len(expected)} references; expected as many, and one "
            "at least."
        )
    parts: list[tuple[str, str, Metric, bool]] = [
        ("bleu", "BLEU", BLEU(force=True), True),
        ("bleu_lowercase_tokenised", "BLEU, lowercased", BLEU(lowercase=True, force=True), True),
        ("chrf", "chrF", CHRF(), True),
        ("ter", "TER", TER(), False),
    ]
    measures = []
    for name, label, metric, higher in parts:
        # What sacreBLEU's own resampling reads; its public scores keep the sums only.
        statistics = metric._extract_corpus_statistics(list(written), [list(expected)])
        sums = np.asarray(statistics, dtype=np.float64)

        def formula(sums: Floats, metric: Metric = metric) -> Floats:
            scores = [metric._compute_score_from_stats(row).score for row in _rows(sums)]
            return np.array(scores).reshape(sums.shape[:-1])

        signature = str(metric.get_signature())
        measures.append(CorpusMeasure(name, label, sums, formula, higher, 2, signature))
    return measures


def _rows(sums: Floats) -> list[list[int]]:
    return sums.reshape(-1, sums.shape[-1]).round().astype(np.int64).tolist()
