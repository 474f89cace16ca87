"""Loss, perplexity and bits per byte of a language model, over stretches of its text."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from headloom.training.measures.corpus import CorpusMeasure, Floats, mean_measure, ratio

__all__ = [
    "STRETCH",
    "bits_per_byte",
    "common_stretches",
    "language_measures",
    "of_stretches",
    "perplexity",
    "token_bytes",
]

#: Characters of a stretch: what is drawn as a whole when a text is resampled, since neighbouring
#: tokens are alike. The same for every vocabulary, so that models with different ones are paired.
STRETCH = 256


def perplexity(sums: Floats) -> Floats:
    """``exp(loss)``, of the sum of nats and the number of tokens: (..., 2)."""
    return np.exp(np.minimum(ratio(sums), 700.0))


def bits_per_byte(sums: Floats) -> Floats:
    """Bits that the model needs for a byte of the text, whatever its tokens are.

        bits per byte = nats / (ln 2 bytes)

    Args: sums: nats, bytes of the text in UTF-8: (..., 2).

    >>> float(bits_per_byte(np.array([math.log(2) * 8, 4.0])))       # 8 bits for 4 bytes
    2.0
    """
    bits: Floats = ratio(sums) / math.log(2)
    return bits


def token_bytes(text: str, starts: Sequence[int]) -> Floats:
    """How many bytes of a text each of its tokens stands for, in UTF-8.

    A token reaches to where the next one starts, so that the bytes of all add up to those of the
    text, whoever has the space between two words, or a part of a character.

    Args: text: in characters; starts: where each token begins.

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
    """The sums of the tokens' values over each stretch of a text.

    Args: values: of each token; starts: where it begins, in characters.

    >>> of_stretches(np.array([1.0, 2.0, 4.0]), np.array([0.0, 255.0, 256.0])).tolist()
    [3.0, 4.0]
    """
    return np.bincount((starts // STRETCH).astype(np.int64), values).astype(np.float64)


def common_stretches(first: tuple[int, int], second: tuple[int, int]) -> slice:
    """Which stretches two parts of a text, from a character to another, have whole in common.

    One that both have to the same character, or from the same one, counts as whole.

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
    """Bits per byte, loss, perplexity and accuracy, over the stretches of a text.

    Args:
        nats: -log p of each predicted token.
        right: 1 where it was thought the likeliest.
        sizes: its bytes.
        starts: where it begins, in characters.
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
