"""Choosing heads: planted ones are found, with gold and without it, and measured apart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

import headloom
from headloom.analysis.alignment.align import AlignmentOptions, align_words
from headloom.analysis.alignment.links import best_few, measure, mutual, pairs_of
from headloom.analysis.alignment.words import AligningHead, WordWeights
from headloom.formats.pharaoh import GoldLinks

SIZE = 6


def permutations(count: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randperm(SIZE, generator=generator).tolist() for _ in range(count)]


def gold_of(orders: Sequence[Sequence[int]]) -> list[GoldLinks]:
    """Target word t was written from source word order[t]."""
    return [
        GoldLinks.of_line(" ".join(f"{s}-{t}" for t, s in enumerate(order))) for order in orders
    ]


def planted(order: Sequence[int], rows: Sequence[int]) -> torch.Tensor:
    """Weights that look at the right word in some rows, and everywhere in the others."""
    weights = torch.full((SIZE, SIZE), 1 / SIZE)
    for row in rows:
        weights[row] = 0.02
        weights[row, order[row]] = 0.9
    return weights


def sentences_of(orders: Sequence[Sequence[int]]) -> list[WordWeights]:
    """Heads: noise, the right words of the first rows, of the last rows, noise."""
    generator = torch.Generator().manual_seed(4)
    names = tuple(AligningHead(layer, head) for layer in (0, 1) for head in (0, 1))
    made = []
    for order in orders:
        noise = torch.rand(2, SIZE, SIZE, generator=generator) / SIZE
        parts = planted(order, range(4)), planted(order, range(2, SIZE))
        weights = torch.stack([noise[0], *parts, noise[1]])
        made.append(WordWeights(weights, names, list("abcdef"), list("uvwxyz")))
    return made


def test_two_halves_make_a_whole() -> None:
    orders = permutations(12)
    sentences, gold = sentences_of(orders), gold_of(orders)
    single, chosen = best_few(sentences, gold, mutual)
    assert sorted(chosen) == [1, 2]
    assert float(measure(sentences, gold, mutual, chosen[:1])[chosen[1]]) == 1.0
    for number, value in enumerate(single):
        links = [pairs_of(mutual(each.weights)[number]) for each in sentences]
        assert value == pytest.approx(1 - headloom.alignment_error_rate(links, gold).aer)
    assert best_few(sentences, gold, mutual, most=1)[1] == [single.index(max(single))]


def test_without_gold_directions_agree_where_heads_align() -> None:
    orders = permutations(12)
    sentences = sentences_of(orders)
    agrees = measure(sentences, None, mutual)
    assert min(agrees[1:3]) > max(agrees[0], agrees[3])
    # Of the whole, which rows and columns agree on everywhere.
    whole = [
        WordWeights(planted(order, range(SIZE))[None], (AligningHead(0, 0),), s.source, s.target)
        for order, s in zip(orders, sentences, strict=True)
    ]
    assert measure(whole, None, mutual).tolist() == [1.0]
    result = align_words(sentences, AlignmentOptions())
    assert sorted(map(str, result.heads)) == ["0.1", "1.0"]
    assert headloom.alignment_error_rate(result.links, gold_of(orders)).aer == 0
    assert (result.error_rate, result.measured_on, result.chosen_on) == (None, 0, 12)


def test_heads_are_measured_on_pairs_that_they_were_not_chosen_on() -> None:
    orders = permutations(12)
    gold = gold_of(orders)
    # The second half of the gold, every other line, says something else.
    for number in range(1, 12, 2):
        gold[number] = GoldLinks.of_line("0-0")
    result = align_words(sentences_of(orders), AlignmentOptions(), gold)
    assert (result.chosen_on, result.measured_on) == (6, 6)
    assert result.error_rate == headloom.alignment_error_rate(result.links[1::2], gold[1::2])
    assert result.error_rate.aer > 0.5
    assert (result.measure, dict(result.table)[AligningHead(0, 1)] > 0.65) == ("1 - AER", True)
    named = align_words(sentences_of(orders), AlignmentOptions("1.0"), gold)
    assert (named.chosen_on, named.measured_on) == (0, 12)
    assert [str(head) for head, _ in named.table] == ["1.0"]
    single = align_words(sentences_of(orders)[:1], AlignmentOptions(), gold[:1])
    assert (single.chosen_on, single.measured_on, single.error_rate) == (1, 0, None)


def traces_of(
    orders: Sequence[Sequence[int]], step: str, vocabulary: str = "abcdef"
) -> list[headloom.Trace]:
    """A head that aligns by the row that reads a word, or that writes it, and one of noise.

    The words of a source are drawn from a vocabulary; each is written with an article.
    """
    generator = torch.Generator().manual_seed(5)
    made = []
    for order in orders:
        drawn = torch.randperm(len(vocabulary), generator=generator)[:SIZE].tolist()
        letters = [vocabulary[place] for place in drawn]
        right = torch.full((SIZE + 1, SIZE + 1), 0.02)
        for target, source in enumerate(order):
            right[target + (step == "read"), source] = 0.9
        weights = torch.stack([torch.rand(SIZE + 1, SIZE + 1, generator=generator), right])
        tokens = {
            "source": [*(f" {letter}" for letter in letters), "<end>"],
            "target": ["<start>", *(f" the-{letters[place]}" for place in order)],
        }
        rows = [weights / weights.sum(-1, keepdim=True)]
        made.append(headloom.from_weights(rows, kind="cross", tokens=tokens))
    return made


@pytest.mark.parametrize("step", ["read", "write"])
def test_the_step_of_a_head_is_known_by_gold(step, tmp_path: Path) -> None:
    orders = permutations(8)
    written = [" ".join(f"{s}-{t}" for t, s in enumerate(order)) for order in orders]
    (tmp_path / "gold").write_text("\n".join(written) + "\n")
    result = headloom.align(traces_of(orders, step), gold=tmp_path / "gold")
    assert result.heads == [AligningHead(0, 1, step)]
    assert result.error_rate.aer == 0
    result.save(tmp_path / "out")
    lines = (tmp_path / "out").read_text().splitlines()
    assert [{*line.split()} for line in lines] == [{*line.split()} for line in written]
    named = headloom.align(traces_of(orders, step), heads=[f"0.1:{step}"], method="argmax")
    assert [sorted(links) for links in named.links] == [sorted(links) for links in result.links]


@pytest.mark.parametrize("step", ["read", "write"])
def test_the_step_of_a_head_is_known_by_words_that_occur_again(step: str) -> None:
    orders = permutations(12)
    result = headloom.align(traces_of(orders, step, "abcdefghijklmnopqrst"))
    assert result.heads == [AligningHead(0, 1, step)]
    assert headloom.alignment_error_rate(result.links, gold_of(orders)).aer == 0
    assert [head[:2] for head, _ in result.table] == [(0, 1), (0, 0)]
    other = headloom.align(traces_of(orders, step, "abcdefghijklmnopqrst"), step="read")
    assert (headloom.alignment_error_rate(other.links, gold_of(orders)).aer == 0) == (
        step == "read"
    )


@pytest.mark.parametrize(("pairs", "vocabulary"), [(12, "abcdef"), (4, "abcdefghijklmnopqrst")])
def test_pairs_that_do_not_tell_the_step_say_so(pairs: int, vocabulary: str) -> None:
    """All words occur in every pair; or the pairs are few."""
    traces = traces_of(permutations(pairs), "write", vocabulary)
    with pytest.warns(UserWarning, match="links may be one word off. Give more pairs, or a step"):
        headloom.align(traces)
    assert headloom.align(traces, step="write").note == ""
