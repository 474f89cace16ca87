"""Which heads align, by gold links or by the agreement of both directions; and by which step."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from headloom.analysis.alignment.links import Method, argmax
from headloom.analysis.alignment.words import WordWeights
from headloom.formats.pharaoh import GoldLinks

__all__ = ["Measured", "best_few", "better_steps", "links_of_heads", "measure"]

#: The fewest pairs that tell a step, and by how many standard errors.
_FEWEST, _ERRORS = 5, 2.0


class Measured(NamedTuple):
    """The measure of every single head, and the best few in the order of their choice."""

    single: list[float]
    chosen: list[int]


def measure(
    sentences: Sequence[WordWeights],
    gold: Sequence[GoldLinks] | None,
    method: Method,
    beside: Sequence[int] = (),
) -> Tensor:
    """Return how well each head aligns, or its mean with others, 0 to 1.

    With gold, 1 - AER (see ErrorRate); without, how far the two directions agree:

        F = 2 |R and C| / (|R| + |C|)

    R links each target word with the source word that it looks at most, C each source word with the
    target word that looks at it most.

    Args:
        sentences: to measure on.
        gold: their links.
        method: from weights to links, for gold.
        beside: the places of heads that each is averaged with.

    Source: the idea is that of Liang et al. 2006, "Alignment by Agreement", whose two directions
    are two models.
    """
    right = torch.zeros(len(sentences[0].heads))
    whole = torch.zeros_like(right)
    for number, sentence in enumerate(sentences):
        weights = sentence.weights
        weights = (weights + weights[list(beside)].sum(0)) / (len(beside) + 1)
        if gold is None:
            first, second = argmax(weights), argmax(weights.transpose(1, 2)).transpose(1, 2)
            right += 2 * (first & second).sum((1, 2))
            whole += first.sum((1, 2)) + second.sum((1, 2))
        else:
            own = method(weights)
            for links in (gold[number].sure, gold[number].possible):
                right += sum((own[:, target, source] for source, target in links), torch.zeros(1))
            whole += own.sum((1, 2)) + len(gold[number].sure)
    return right / whole.clamp(min=1)


def best_few(
    sentences: Sequence[WordWeights],
    gold: Sequence[GoldLinks] | None,
    method: Method,
    most: int = 8,
) -> Measured:
    """Return the heads whose mean aligns best: the best one, then each that helps the mean most.

    Args:
        sentences, gold, method: see `measure`.
        most: heads at most; none is added that does not help.
    """
    single = measure(sentences, gold, method)
    chosen, best = [int(single.argmax())], float(single.max())
    while len(chosen) < min(most, len(single)):
        scores = measure(sentences, gold, method, chosen)
        scores[chosen] = -torch.inf
        if float(scores.max()) <= best:
            break
        chosen.append(int(scores.argmax()))
        best = float(scores.max())
    return Measured(single.tolist(), chosen)


def better_steps(sentences: Sequence[WordWeights]) -> tuple[list[int], list[bool]]:
    """Return the places of the heads, each by the better of its steps; and whether pairs tell it.

    Moved by a row, the two directions of a head agree as well. But the words that it links by the
    right row occur together in the other pairs too:

        D(s, t) = 2 C(s, t) / (C(s) + C(t))

    C counts the other pairs that have a word, or both. Words spelled alike, as names and numbers,
    have D = 1. Each head has the step whose argmax links have the larger sum of D; of equal ones
    it has the first.

    Source: Dice 1945 (the coefficient).
    """
    places: dict[tuple[int, int], list[int]] = {}
    for place, head in enumerate(sentences[0].heads):
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
        torch.tensor([dice(s, t) for t in target for s in source]).reshape(len(target), len(source))
        for source, target in words
    ]


def links_of_heads(weights: Tensor, heads: Sequence[int], method: Method) -> Tensor:
    """Return the links by the mean of some heads, bool, (target words, source words)."""
    return method(weights[list(heads)].mean(0, keepdim=True))[0]
