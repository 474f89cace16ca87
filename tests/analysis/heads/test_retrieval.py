"""The needle: where it stands, and which heads fetch it."""

from __future__ import annotations

import pytest
import torch
from tests.analysis.dense_layer import layer_of_weights

import headloom
from headloom.analysis.heads.retrieval import (
    Needle,
    find_needle,
    needle_mass,
    retrieval,
    retrieval_score,
)
from headloom.api.trace import Trace

TEXT = "so it went on and on . the secret word is blue fish 7 . and then more hay came"
HAY = TEXT.split()
TOKENS = [*HAY, "?", "blue", "fish", "7"]
NEEDLE = Needle(start=11, answer=len(HAY) + 1, length=3)


def test_where_the_needle_stands() -> None:
    assert find_needle(TOKENS, "blue fish 7") == NEEDLE
    # Word marks and pieces of words count as the text does.
    pieces = [".", "Ġblue", "Ġf", "ish", ".", "Ġhay", "blue", "Ġf", "ish"]
    assert find_needle(pieces, "blue fish") == Needle(1, 6, 3)
    for text, said in (("blue cat", "0 times"), ("secret word", "1 times"), ("", "0 times")):
        with pytest.raises(headloom.InputError, match=said):
            find_needle(TOKENS, text)
    with pytest.raises(headloom.InputError, match="split in the same way"):
        find_needle(["blue", "fish", "x", "bluefish"], "bluefish")


def test_the_head_that_fetches_is_found_among_others() -> None:
    """Head 0 copies, head 1 only the first token, head 2 looks at the first, 3 is uniform."""
    n = len(TOKENS)
    weights = torch.zeros(4, n, n)
    weights[:3, :, 0] = 1
    weights[3] = 1
    for place in range(3):
        row = NEEDLE.answer + place - 1
        for head in (0, 1) if place == 0 else (0,):
            weights[head, row] = 0.05 / n
            weights[head, row, NEEDLE.start + place] = 0.95
    weights = weights.tril()
    layer = layer_of_weights(weights / weights.sum(-1, keepdim=True), TOKENS, mask="causal")
    assert retrieval_score(layer, NEEDLE).tolist() == pytest.approx([1, 1 / 3, 0, 0])
    mass = needle_mass(layer, NEEDLE)
    assert mass.rows.tolist() == [3] * 4
    # 21 to 23 tokens may be seen, so that the rest adds up to less than 1.
    assert mass.score[0].item() == pytest.approx(0.954, abs=0.003)
    assert mass.score[3].item() == pytest.approx(mass.chance[3].item())
    assert mass.p[0] < 0.01 < mass.p[1]
    rows = retrieval(Trace({"tokens": TOKENS}, (layer,)), NEEDLE)
    assert [row["retrieval"] for row in rows] == pytest.approx([1, 1 / 3, 0, 0])
    assert rows[0]["needle"] == mass.score[0].item()


def test_the_p_of_a_needle_is_corrected_for_all_heads_of_all_layers() -> None:
    tokens = list("abcdxyzmnopxyz")
    needle = find_needle(tokens, "x y z")
    weights = torch.rand(3, 14, 14, generator=torch.Generator().manual_seed(2)).tril()
    weights[0, needle.answer - 1 :] *= 0.05
    for place in range(3):
        weights[0, needle.answer - 1 + place, needle.start + place] = 20
    layer = layer_of_weights(weights / weights.sum(-1, keepdim=True), tokens, mask="causal")
    rows = retrieval(Trace({"tokens": tokens}, (layer, layer)), needle)
    ps = needle_mass(layer, needle).p.repeat(2)
    assert rows[0]["needle_p"] == pytest.approx(6 * float(ps[0]), rel=1e-12)
    # Holm 1979, by hand: the i-th smallest of 6 times 7 - i, and never below the one before.
    order = ps.argsort(stable=True).tolist()
    largest = 0.0
    for rank, place in enumerate(order):
        largest = max(largest, min(1.0, float(ps[place]) * (6 - rank)))
        assert rows[place]["needle_p"] == pytest.approx(largest, rel=1e-12)


def test_bad_needles(pair_trace: Trace) -> None:
    layer = layer_of_weights(torch.eye(5)[None], list("abcab"))
    for needle in (Needle(0, 1, 2), Needle(0, 4, 2), Needle(-1, 3, 1), Needle(0, 3, 0)):
        with pytest.raises(headloom.InputError, match="expected the needle"):
            retrieval_score(layer, needle)
    with pytest.raises(headloom.InputError, match="is cross-attention"):
        retrieval_score(pair_trace.layer("cross", 0), Needle(0, 2, 1))
