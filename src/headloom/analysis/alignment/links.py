"""Links from the weights between words; their error rate; and the choice of aligning heads."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from headloom.analysis.alignment.words import WordWeights
from headloom.errors import InputError
from headloom.formats.pharaoh import GoldLinks, Link

#: Function from weights (heads, target words, source words) to links, bool, of the same shape.
Method = Callable[[Tensor], Tensor]
#: Maximal number of averaged heads.
MOST = 8
#: Smallest number of pairs to choose a step, and of standard errors between steps.
_FEWEST, _ERRORS = 5, 2.0


def argmax(weights: Tensor) -> Tensor:
    """Link each target word with the source word of its largest weight.

        A = {(s, t): s = argmax over s' of W(t, s')}

    A row without weight has no link; of equal weights the first is taken.

    Source: Garg et al. 2019, "Jointly Learning to Align and Translate with Transformer Models".
    """
    return _best(weights, 2)


def mutual(weights: Tensor) -> Tensor:
    """Link two words if each is the other's best.

        A = {(s, t): s = argmax over s' of W(t, s'), t = argmax over t' of W(t', s)}

    Source: Jalili Sabet et al. 2020, "SimAlign" (Argmax).
    """
    return _best(weights, 2) & _best(weights, 1)


def _best(weights: Tensor, dimension: int) -> Tensor:
    """Mark the largest weight of each row or column, if it is above 0."""
    if not weights.numel():
        return torch.zeros_like(weights, dtype=torch.bool)
    largest, places = weights.max(dimension, keepdim=True)
    best = torch.zeros_like(weights, dtype=torch.bool).scatter(dimension, places, True)
    return best & (largest > 0)


#: Methods by the names for `headloom align --method`.
METHODS: Mapping[str, Method] = {"mutual": mutual, "argmax": argmax}


def pairs_of(links: Tensor) -> list[Link]:
    """Return the links of one head, bool (target words, source words), as pairs.

    >>> pairs_of(torch.tensor([[False, True], [True, False]]))
    [(0, 1), (1, 0)]
    """
    return [(source, target) for source, target in links.T.nonzero().tolist()]


@dataclass(frozen=True)
class ErrorRate:
    """Precision, recall and alignment error rate of links A, over a whole text.

        precision = |A and P| / |A|        recall = |A and S| / |S|
        aer = 1 - (|A and S| + |A and P|) / (|A| + |S|)

    S are the sure and P the possible gold links; all of S are in P. Where no link is merely
    possible, aer = 1 - F1. Of no links at all against none, precision and recall are 1.

    Source: Och and Ney 2003, "A Systematic Comparison of Various Statistical Alignment Models".
    """

    links: int
    sure: int
    right_sure: int
    right_possible: int

    @property
    def precision(self) -> float:
        """Share of the links that are possible gold links."""
        return self.right_possible / self.links if self.links else 1.0

    @property
    def recall(self) -> float:
        """Share of the sure gold links that are among the links."""
        return self.right_sure / self.sure if self.sure else 1.0

    @property
    def aer(self) -> float:
        """Alignment error rate, 0 to 1."""
        whole = self.links + self.sure
        return 1 - (self.right_sure + self.right_possible) / whole if whole else 0.0

    def __str__(self) -> str:
        return f"AER {self.aer:.3f}, precision {self.precision:.3f}, recall {self.recall:.3f}"


def alignment_error_rate(links: Sequence[Iterable[Link]], gold: Sequence[GoldLinks]) -> ErrorRate:
    """Return the error rate of the links of each pair of sentences.

    Raises: InputError: not as many lines of gold.

    >>> gold = GoldLinks.of_line("0-0 1?2")
    >>> alignment_error_rate([[(0, 0), (1, 2), (2, 2)]], [gold]).aer
    0.25
    """
    if len(links) != len(gold):
        raise InputError(
            f"alignment_error_rate: {len(links)} lines of links and {len(gold)} of gold; expected "
            "as many."
        )
    counts = [
        (len(linked), len(right.sure), len(linked & right.sure), len(linked & right.possible))
        for linked, right in zip(map(set, links), gold, strict=True)
    ]
    return ErrorRate(*(sum(column) for column in zip(*counts, strict=True)))


def measure(
    sentences: Sequence[WordWeights],
    gold: Sequence[GoldLinks] | None,
    method: Method,
    beside: Sequence[int] = (),
) -> Tensor:
    """Return the quality of each head's alignment, or of its mean with others, 0 to 1.

    With gold, 1 - AER (see ErrorRate); without, the agreement of the two directions:

        F = 2 |R and C| / (|R| + |C|)

    R links each target word with the source word of its largest weight, C each source word with the
    target word of its largest weight.

    Args:
        sentences: to measure on.
        gold: their links.
        method: from weights to links, for gold.
        beside: places of heads with which each head is averaged.

    Source: the idea is that of Liang et al. 2006, "Alignment by Agreement", whose two directions
    are two models.
    """
    right = torch.zeros(len(sentences[0].heads))
    whole = torch.zeros_like(right)
    for number, sentence in enumerate(sentences):
        weights = sentence.weights
        weights = (weights + weights[list(beside)].sum(0)) / (len(beside) + 1)
        if gold is None:
            first, second = _best(weights, 2), _best(weights, 1)
            right += 2 * (first & second).sum((1, 2))
            whole += first.sum((1, 2)) + second.sum((1, 2))
        else:
            linked = method(weights)
            for links in (gold[number].sure, gold[number].possible):
                right += sum(
                    (linked[:, target, source] for source, target in links), torch.zeros(1)
                )
            whole += linked.sum((1, 2)) + len(gold[number].sure)
    return right / whole.clamp(min=1)


def best_few(
    sentences: Sequence[WordWeights],
    gold: Sequence[GoldLinks] | None,
    method: Method,
    most: int = MOST,
) -> tuple[list[float], list[int]]:
    """Return the measure of every single head, and the heads whose mean aligns best.

    The best one, then greedily the head that improves the mean most, up to `most` heads.
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
    return single.tolist(), chosen


def better_steps(sentences: Sequence[WordWeights]) -> tuple[list[int], list[bool]]:
    """Return the places of the heads with the better step of each; and whether that is clear.

    Shifted by a row, the two directions of a head agree as well. But words linked by the right row
    occur together in other pairs too:

        D(s, t) = 2 C(s, t) / (C(s) + C(t))

    C counts the other pairs with a word, or with both. Words with the same spelling, such as names
    and numbers, have D = 1. Each head gets the step whose argmax links have the larger sum of D; of
    equal ones the first.

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
    clear = (lead.mean(0).abs() > _ERRORS * errors) & (len(lead) >= _FEWEST)
    better = of_heads.gather(1, (lead.mean(0) > 0).long()[:, None])[:, 0]
    return better.tolist(), clear.tolist()


def _together(sentences: Sequence[WordWeights]) -> list[Tensor]:
    """Return D of each target and source word of each pair."""
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
