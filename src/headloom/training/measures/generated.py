"""How varied generated texts are, and how much they repeat: of sequences of words or tokens."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence

__all__ = ["distinct", "diversity", "loops", "repetition", "self_bleu"]

Sequences = Sequence[Sequence[Hashable]]
Ngram = tuple[Hashable, ...]


def _ngrams(sequence: Sequence[Hashable], n: int) -> Iterator[Ngram]:
    return (tuple(sequence[place : place + n]) for place in range(len(sequence) - n + 1))


def distinct(sequences: Sequences, n: int) -> float:
    """distinct-n: different n-grams of all texts, over all their n-grams; 0 where there is none.

    Source: Li et al. 2016, section 5.

    >>> distinct([["a", "b", "a"], ["a", "b"]], 1), distinct([["a", "b", "a"], ["a", "b"]], 2)
    (0.4, 0.6666666666666666)
    """
    ngrams = [ngram for sequence in sequences for ngram in _ngrams(sequence, n)]
    return len(set(ngrams)) / max(1, len(ngrams))


def repetition(sequences: Sequences, n: int = 4) -> float:
    """seq-rep-n: the share of a text's n-grams that occurred in it before, mean over the texts.

        seq-rep-n = 1 - different n-grams / n-grams

    Texts shorter than n words do not count. Source: Welleck et al. 2020, section 6.

    >>> repetition([["a", "b", "a", "b"], ["a", "b", "c"]], 2)      # 1/3 and 0
    0.16666666666666669
    """
    shares = [
        1 - len(set(_ngrams(sequence, n))) / (len(sequence) - n + 1)
        for sequence in sequences
        if len(sequence) >= n
    ]
    return sum(shares) / max(1, len(shares))


def loops(sequences: Sequences) -> float:
    """The share of texts that end in a loop: two words or more, three times or more in a row.

    Source: Holtzman et al. 2020, section 5.3.

    >>> loops([["a", "b", "c", "b", "c", "b", "c"], ["a", "b", "c", "b", "c"]])
    0.5
    """
    ended = 0
    for sequence in sequences:
        words = list(sequence)
        ended += any(
            words[-size:] == words[-2 * size : -size] == words[-3 * size : -2 * size]
            for size in range(2, len(words) // 3 + 1)
        )
    return ended / max(1, len(sequences))


def self_bleu(sequences: Sequences, n: int = 4) -> float:
    """Self-BLEU: BLEU of each text with all others as its references, mean; 0 to 1.

    High where the texts are alike. n-grams of 1 to n words; a precision of 0 counts 0.1 matches,
    as in the source's code (smoothing 1 of Chen and Cherry 2014). Empty texts do not count.

    Source: Zhu et al. 2018 (Texygen), section 2.2; Papineni et al. 2002.

    >>> self_bleu([["a", "b", "c", "d"], ["a", "b", "c", "d"]])
    1.0
    """
    texts = [list(sequence) for sequence in sequences if len(sequence)]
    if len(texts) < 2:
        return 0.0
    counts = [[Counter(_ngrams(text, order)) for order in range(1, n + 1)] for text in texts]
    # Of each n-gram the two texts that have most of it: the others' most is one of these.
    most: dict[Ngram, list[tuple[int, int]]] = {}
    for index, orders in enumerate(counts):
        for ngram, count in (pair for order in orders for pair in order.items()):
            most[ngram] = sorted([*most.get(ngram, []), (count, index)], reverse=True)[:2]
    lengths = Counter(map(len, texts))
    total = 0.0
    for index, (text, orders) in enumerate(zip(texts, counts, strict=True)):
        logs = 0.0
        for order, ngrams in enumerate(orders, 1):
            matching = sum(
                min(count, next((c for c, owner in most[ngram] if owner != index), 0))
                for ngram, count in ngrams.items()
            )
            written = max(len(text) - order + 1, 1)
            logs += math.log((matching or 0.1) / written) / n
        others = lengths - Counter([len(text)])
        closest = min(others, key=lambda length: (abs(length - len(text)), length))
        total += math.exp(logs + min(0.0, 1 - closest / len(text)))
    return total / len(texts)


def diversity(texts: Sequence[str]) -> dict[str, float]:
    """All measures of this module, of the words of texts.

    Words are what stands between white space. Numbers depend on how long and how many the texts
    are: hold them against those of real text, of as many words.
    """
    words = [text.split() for text in texts]
    return {
        **{f"distinct_{n}": distinct(words, n) for n in (1, 2, 3)},
        "self_bleu": self_bleu(words),
        "repetition": repetition(words),
        "loops": loops(words),
    }
