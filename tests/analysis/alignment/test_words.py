"""From tokens to words."""

from __future__ import annotations

import pytest
import torch

import headloom
from headloom.analysis.alignment.words import (
    AligningHead,
    parts_by_offsets,
    parts_by_tokens,
    word_weights,
)
from headloom.formats.tokens import Tokens


@pytest.mark.parametrize(
    ("tokens", "words", "owners"),
    [
        (
            ["<start>", " gold", "en", " end", ".", "<end>"],
            ["golden", "end."],
            [None, 0, 0, 1, 1, None],
        ),
        (["[CLS]", "go", "##ld", "dog", "[SEP]"], ["gold", "dog"], [None, 0, 0, 1, None]),
        (["▁a", "▁", "b", "c", "</s>"], ["a", "bc"], [0, 1, 1, 1, None]),
        (["a", "b", " ", "c"], ["ab", "c"], [0, 0, 1, 1]),
        (Tokens(["Ġof", "Ġa", "b"], [" of", " a", "b"]), ["of", "ab"], [0, 1, 1]),
        ([], [], []),
    ],
)  # fmt: skip
def test_words_are_joined_by_how_tokens_are_spelled(tokens, words, owners) -> None:
    parts = parts_by_tokens(tokens)
    assert parts.words == words
    found = [
        int(column.argmax()) if bool(column.any()) else None for column in parts.share.T
    ] if words else []  # fmt: skip
    assert found == owners


def test_a_tokenizer_says_what_is_special() -> None:
    parts = parts_by_tokens(["<de>", " a", " b", "!"], [True, False, False, True])
    assert parts.words == ["a", "b"]


def test_a_token_in_two_words_is_shared() -> None:
    parts = parts_by_offsets("a b  c", [(0, 3), (3, 5), (5, 6), (6, 6)])
    assert parts.words == ["a", "b", "c"]
    assert parts.share.tolist() == [[0.5, 0, 0, 0], [0.5, 0, 0, 0], [0, 1, 1, 0]]


#: Rows: <start>, " ein", " Hu", "nd"; columns: " a", " d", "og", "<end>".
WEIGHTS = torch.tensor(
    [[0.7, 0.1, 0.1, 0.1], [0.2, 0.5, 0.2, 0.1], [0.1, 0.3, 0.4, 0.2], [0.25, 0.25, 0.25, 0.25]]
)


def trace_of(weights: torch.Tensor = WEIGHTS) -> headloom.Trace:
    tokens = {"source": [" a", " d", "og", "<end>"], "target": ["<start>", " ein", " Hu", "nd"]}
    return headloom.from_weights([weights[None]], kind="cross", tokens=tokens)


def test_the_weights_of_words_are_those_worked_out_by_hand() -> None:
    words = word_weights(trace_of())
    assert (words.source, words.target) == (["a", "dog"], ["ein", "Hund"])
    assert words.heads == (AligningHead(0, 0, "read"), AligningHead(0, 0, "write"))
    # ein: row 1. Hund: the mean of rows 2 and 3. dog: the sum of columns 1 and 2.
    read = [[0.2, 0.7], [(0.1 + 0.25) / 2, (0.7 + 0.5) / 2]]
    # A row earlier.
    write = [[0.7, 0.2], [(0.2 + 0.1) / 2, (0.7 + 0.7) / 2]]
    torch.testing.assert_close(words.weights, torch.tensor([read, write]))


def test_heads_have_names() -> None:
    for name in ("0.1", "12.3:write"):
        assert str(AligningHead.named(name)) == name
    assert AligningHead.named(" 0.1:read") == AligningHead(0, 1, "read")
    for name in ("", "1", "0.1:wrote", "a.b", "-1.0"):
        with pytest.raises(headloom.InputError, match="expected LAYER"):
            AligningHead.named(name)


def test_a_decoder_aligns_nothing() -> None:
    alone = headloom.from_weights([torch.eye(2)[None]], kind="decoder")
    with pytest.raises(headloom.InputError, match="no cross-attention"):
        word_weights(alone)


def test_rows_that_are_cut_short_are_not_aligned_by() -> None:
    trace = headloom.from_weights(
        torch.rand(1, 3, 40).softmax(-1), kind="cross", keep=headloom.Top(2)
    )
    with pytest.raises(headloom.InputError, match="weights are not known exactly"):
        headloom.align([trace])
