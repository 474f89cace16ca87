"""From the weights between words to links, and how far these are from those that people drew."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headloom.errors import InputError
from headloom.formats.pharaoh import GoldLinks, Link

__all__ = [
    "METHODS",
    "ErrorRate",
    "Method",
    "alignment_error_rate",
    "argmax",
    "links_by",
    "mutual",
    "pairs_of",
]

#: From weights (heads, target words, source words) to links, bool, of the same shape.
Method = Callable[[Tensor], Tensor]


def argmax(weights: Tensor) -> Tensor:
    """Link each target word with the source word that it looks at most.

        A = {(s, t): s = argmax over s' of W(t, s')}

    A row without weight has no link; of equal weights the first is taken.

    Source: Garg et al. 2019, "Jointly Learning to Align and Translate with Transformer Models".
    """
    return _best(weights, 2)


def mutual(weights: Tensor) -> Tensor:
    """Link two words, of which each is the other's best.

        A = {(s, t): s = argmax over s' of W(t, s'), t = argmax over t' of W(t', s)}

    Source: Jalili Sabet et al. 2020, "SimAlign" (Argmax).
    """
    return _best(weights, 2) & _best(weights, 1)


def _best(weights: Tensor, dimension: int) -> Tensor:
    """The largest of each row or column, where it is more than 0."""
    if not weights.numel():
        return torch.zeros_like(weights, dtype=torch.bool)
    largest, places = weights.max(dimension, keepdim=True)
    chosen = torch.zeros_like(weights, dtype=torch.bool).scatter(dimension, places, True)
    return chosen & (largest > 0)


#: By the names that `headloom align --method` takes.
METHODS: Mapping[str, Method] = {"mutual": mutual, "argmax": argmax}


def links_by(method: str) -> Method:
    """Return a method by its name. Raises: InputError: there is none."""
    if method not in METHODS:
        raise InputError(f"align: no method {method!r}; there are {', '.join(METHODS)}.")
    return METHODS[method]


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
        """How many of the links are gold ones."""
        return self.right_possible / self.links if self.links else 1.0

    @property
    def recall(self) -> float:
        """How many of the sure gold links are there."""
        return self.right_sure / self.sure if self.sure else 1.0

    @property
    def aer(self) -> float:
        """The alignment error rate, 0 to 1."""
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
        (len(own), len(right.sure), len(own & right.sure), len(own & right.possible))
        for own, right in zip(map(set, links), gold, strict=True)
    ]
    return ErrorRate(*(sum(column) for column in zip(*counts, strict=True)))
