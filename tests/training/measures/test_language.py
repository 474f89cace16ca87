"""Bits per byte: what a text costs, whatever its tokens are."""

from __future__ import annotations

import math

import numpy as np
import pytest

from headloom.training.measures.language import (
    STRETCH,
    common_stretches,
    language_measures,
    token_bytes,
)
from headloom.training.text import Vocabulary

TEXT = "Tschüß, schöne Welt! 你好，世界。 The cat sat on the mat.\n" * 20


@pytest.mark.parametrize("pieces", [False, True])
def test_the_bytes_of_the_tokens_are_those_of_the_text(pieces: bool) -> None:
    make = Vocabulary.of_pieces([TEXT[:80]], 320) if pieces else Vocabulary.of_characters([TEXT])
    ids, offsets = make.encode_with_offsets(TEXT)
    sizes = token_bytes(TEXT, [start for start, _ in offsets])
    assert len(sizes) == len(ids)
    assert sizes.sum() == len(TEXT.encode())
    assert sizes.min() >= 0


def test_a_uniform_model() -> None:
    """Of 27 characters, each a byte: log2 27 bits a byte, perplexity 27."""
    count = 1_000
    nats = np.full(count, math.log(27))
    starts = np.arange(count, dtype=np.float64)
    found = language_measures(nats, np.zeros(count), np.ones(count), starts)
    values = {measure.name: measure.value for measure in found}
    assert values["bits_per_byte"] == pytest.approx(math.log2(27))
    assert values["perplexity"] == pytest.approx(27)
    assert values["loss"] == pytest.approx(math.log(27))
    assert values["accuracy"] == 0
    assert [len(measure.statistics) for measure in found] == [math.ceil(count / STRETCH)] * 4


def test_stretches_in_common() -> None:
    """One that either side has only in part is none, unless both have the same part of it."""
    assert common_stretches((1, 700), (1, 700)) == slice(0, 3)
    assert common_stretches((1, 768), (1, 700)) == slice(0, 2)
    assert common_stretches((1, 768), (1, 900)) == slice(0, 3)
    assert common_stretches((1, 700), (4, 700)) == slice(1, 3)
    assert common_stretches((1, 100), (1, 90)) == slice(0, 0)
    assert common_stretches((1, 100), (4, 90)) == slice(1, 1)
