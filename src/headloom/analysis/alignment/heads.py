"""Which heads align: measured against gold links, or by the agreement of both directions.

And by which step, where there is no gold: by the words that occur together in other pairs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from headloom.analysis.alignment.error_rate import ErrorRate
from headloom.analysis.alignment.links import Method, argmax
from headloom.analysis.alignment.words import WordWeights
from headloom.formats.pharaoh import GoldLinks, Link

__all__ = ["Measured", "agreement", "best_few", "better_steps", "error_rates", "links_of_heads"]

#: The heads that are added to the best ones, at most.
_MOST = 8
#: The fewest pairs that tell a step, and by how many standard errors.
_FEWEST, _ERRORS = 5, 2.0


@dataclass(frozen=True)
class Measured:
    """What a measure says: of every single head, and of the means of the best few.

    single  of each head
    chosen  the places of the best few, in the order in which they were added
    steps   the measure of the first of them, of the first two, ...
    """

    single: list[float]
    chosen: list[int]
    steps: list[float]


#: From candidates (heads, target words, source words) of one pair, and its number, to counts
#: (heads, n); and from the sums of counts over all pairs to the measure, larger is better.
_Counts = Callable[[Tensor, int], Tensor]
_Measure = Callable[[Tensor], Tensor]


def error_rates(
    sentences: Sequence[WordWeights], gold: Sequence[GoldLinks], method: Method
) -> list[ErrorRate]:
    """The error rate of each head alone."""
    counts, _ = _against(sentences, gold, method)
    total = _totals(sentences, counts, None)
    return [ErrorRate(*map(int, row)) for row in total.tolist()]


def agreement(sentences: Sequence[WordWeights]) -> list[float]:
    """How far each head's two directions agree, 0 to 1; no gold is needed.

        F = 2 |R and C| / (|R| + |C|)

    R links each target word with the source word that it looks at most, C each source word with the
    target word that looks at it most. Source: the idea is that of Liang et al. 2006, "Alignment by
    Agreement", whose two directions are two models.
    """
    return _agrees(_totals(sentences, _directions, None)).tolist()


def best_few(
    sentences: Sequence[WordWeights],
    gold: Sequence[GoldLinks] | None,
    method: Method,
    most: int = _MOST,
) -> Measured:
    """The heads whose mean aligns best: the best one, then each that helps the mean most.

    Args:
        sentences: to choose on.
        gold: their links; None: chosen by agreement.
        method: from weights to links.
        most: heads at most; none is added that does not help.
    """
    counts, measure = (_directions, _agrees) if gold is None else _against(sentences, gold, method)
    single = measure(_totals(sentences, counts, None))
    chosen, steps = [int(single.argmax())], [float(single.max())]
    while len(chosen) < min(most, len(single)):
        scores = measure(_totals(sentences, counts, chosen))
        scores[chosen] = -torch.inf
        if float(scores.max()) <= steps[-1]:
            break
        chosen.append(int(scores.argmax()))
        steps.append(float(scores.max()))
    return Measured(single.tolist(), chosen, steps)


def better_steps(sentences: Sequence[WordWeights]) -> tuple[list[int], list[bool]]:
    """The places of the heads, each by the better of its steps; and whether the pairs tell it.

    Moved by a row, the two directions of a head agree as well. But the words that it links by the
    right row occur together in the other pairs too:

        D(s, t) = 2 C(s, t) / (C(s) + C(t))

    C counts the other pairs that have a word, or both. Words spelled alike, as names and numbers,
    have D = 1. Each head has the step whose argmax links have the larger sum of D; of equal ones
    it has the first.

    Source: Dice 1945 (the coefficient).
    """
    heads = sentences[0].heads
    places: dict[tuple[int, int], list[int]] = {}
    for place, head in enumerate(heads):
        places.setdefault(head[:2], []).append(place)
    of_heads = torch.tensor(list(places.values()))
    if of_heads.shape[1] == 1:
        return of_heads[:, 0].tolist(), [True] * len(of_heads)
    sums = torch.stack(
        [
            (argmax(sentence.weights) * together).sum((1, 2))
            for sentence, together in zip(sentences, _together(sentences), strict=True)
        ]
    )
    first, second = sums[:, of_heads].unbind(2)
    lead = (second - first).double()
    errors = lead.std(0, correction=0) / max(len(lead) - 1, 1) ** 0.5
    told = (lead.mean(0).abs() > _ERRORS * errors) & (len(lead) >= _FEWEST)
    better = of_heads.gather(1, (lead.mean(0) > 0).long()[:, None])[:, 0]
    return better.tolist(), told.tolist()


def _together(sentences: Sequence[WordWeights]) -> list[Tensor]:
    """D of each target and source word of each pair."""
    words = [
        [[re.sub(r"\W", "", word.casefold()) or word for word in side] for side in sides]
        for sides in ((sentence.source, sentence.target) for sentence in sentences)
    ]
    sources, targets, both = Counter[str](), Counter[str](), Counter[tuple[str, str]]()
    for source, target in words:
        sources.update({*source})
        targets.update({*target})
        both.update(product({*source}, {*target}))

    def dice(s: str, t: str) -> float:
        others = sources[s] + targets[t] - 2
        return 1.0 if s == t else 2 * (both[s, t] - 1) / others if others else 0.0

    return [
        torch.tensor([dice(s, t) for t in target for s in source]).reshape(len(target), -1)
        if source and target
        else torch.zeros(len(target), len(source))
        for source, target in words
    ]


def links_of_heads(weights: Tensor, heads: Sequence[int], method: Method) -> Tensor:
    """The links by the mean of some heads, bool, (target words, source words)."""
    return method(weights[list(heads)].mean(0, keepdim=True))[0]


def _totals(
    sentences: Sequence[WordWeights], counts: _Counts, chosen: Sequence[int] | None
) -> Tensor:
    """The counts over all pairs: of each head, or of its mean with those that are chosen."""
    whole = []
    for number, sentence in enumerate(sentences):
        weights = sentence.weights
        if chosen is not None:
            # The mean itself: the cost of a path is no cost of the sum.
            weights = (weights + weights[list(chosen)].sum(0)) / (len(chosen) + 1)
        whole.append(counts(weights, number))
    return torch.stack(whole).sum(0)


def _against(
    sentences: Sequence[WordWeights], gold: Sequence[GoldLinks], method: Method
) -> tuple[_Counts, _Measure]:
    """Counts of an ErrorRate, and 1 - aer."""
    tables = [
        (_table(links.sure, sentence), _table(links.possible, sentence))
        for links, sentence in zip(gold, sentences, strict=True)
    ]

    def counts(weights: Tensor, number: int) -> Tensor:
        own = method(weights)
        sure, possible = tables[number]
        every = (own, sure.expand_as(own), own & sure, own & possible)
        return torch.stack([links.sum((1, 2)) for links in every], 1)

    def measure(total: Tensor) -> Tensor:
        return (total[:, 2] + total[:, 3]) / (total[:, 0] + total[:, 1]).clamp(min=1)

    return counts, measure


def _table(links: frozenset[Link], sentence: WordWeights) -> Tensor:
    table = torch.zeros(len(sentence.target), len(sentence.source), dtype=torch.bool)
    for source, target in links:
        table[target, source] = True
    return table


def _directions(weights: Tensor, _number: int) -> Tensor:
    of_target, of_source = argmax(weights), argmax(weights.transpose(1, 2)).transpose(1, 2)
    every = (of_target & of_source, of_target, of_source)
    return torch.stack([links.sum((1, 2)) for links in every], 1)


def _agrees(total: Tensor) -> Tensor:
    return 2 * total[:, 0] / (total[:, 1] + total[:, 2]).clamp(min=1)
