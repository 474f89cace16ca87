"""How far links are from those that people drew."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from headloom.errors import InputError
from headloom.formats.pharaoh import GoldLinks, Link
from headloom.mechanism.shapes import in_words

__all__ = ["ErrorRate", "alignment_error_rate"]


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
    """The error rate of the links of each pair of sentences.

    Raises: InputError: not as many lines of gold.

    >>> gold = GoldLinks.of_line("0-0 1?2")
    >>> alignment_error_rate([[(0, 0), (1, 2), (2, 2)]], [gold]).aer
    0.25
    """
    for name, lines in (("links", links), ("gold", gold)):
        if not isinstance(lines, list | tuple):
            raise InputError(
                f"alignment_error_rate: {name}={in_words(lines)}; expected a list with the links "
                "of each pair of sentences."
            )
    if len(links) != len(gold):
        raise InputError(
            f"alignment_error_rate: {len(links)} lines of links and {len(gold)} of gold; expected "
            "as many."
        )
    whole = [0, 0, 0, 0]
    for line, right in zip(links, gold, strict=True):
        if not isinstance(right, GoldLinks):
            raise InputError(
                f"alignment_error_rate: gold holds {in_words(right)}; expected GoldLinks, as "
                "headloom.read_pharaoh gives."
            )
        own = _pairs(line)
        counts = len(own), len(right.sure), len(own & right.sure), len(own & right.possible)
        whole = [total + count for total, count in zip(whole, counts, strict=True)]
    return ErrorRate(*whole)


def _pairs(line: Any) -> set[Link]:
    """The links of a pair of sentences."""
    several = list(line) if isinstance(line, Iterable) and not isinstance(line, str) else None
    if several is None or not all(isinstance(link, tuple) and len(link) == 2 for link in several):
        raise InputError(
            f"alignment_error_rate: links hold {in_words(line)}; expected pairs of places, source "
            "and target, as [(0, 0), (1, 2)]."
        )
    return set(several)
