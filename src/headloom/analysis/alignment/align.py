"""`align`: the words of targets and sources that belong together, by heads that look so."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from headloom.analysis.alignment.error_rate import ErrorRate, alignment_error_rate
from headloom.analysis.alignment.heads import (
    agreement,
    best_few,
    better_steps,
    error_rates,
    links_of_heads,
)
from headloom.analysis.alignment.links import links_by, pairs_of
from headloom.analysis.alignment.words import STEPS, AligningHead, Step, WordWeights, word_weights
from headloom.analysis.arguments import each_trace
from headloom.errors import InputError
from headloom.formats.pharaoh import GoldLinks, Link, check_links, read_pharaoh, write_pharaoh
from headloom.formats.trace import TraceData
from headloom.mechanism.shapes import check_flag, in_words, whole_number

__all__ = [
    "Alignment",
    "AlignmentOptions",
    "HeadOfAlignment",
    "align",
    "align_words",
    "check_choice",
    "check_heads",
]

#: How heads are chosen that are not named.
_CHOICES = ("best", "agreement")

#: Pairs of sentences on which heads are chosen by agreement, at most: the first ones.
_ENOUGH = 1_000

_NOT_TOLD = (
    "too few words occur again in these pairs to tell whether the heads look for the word that is "
    "read or that is written next; links may be one word off. Give more pairs, or a step."
)


@dataclass(frozen=True)
class AlignmentOptions:
    """How words are aligned.

    heads: "best": those that align best with the gold links; "agreement": those whose two
        directions agree best; or names of heads; None: best where there is gold.
    method: "mutual", "argmax" or "dtw": see `headloom.analysis.alignment.links`.
    step: "read" or "write"; None: whichever is better, of each head: with gold by the links, else
        by the words that occur together in other pairs.
    norms: weights times the norms of the values.
    most: how many heads are taken together, at most; 1: the best single one.
    """

    heads: str | Sequence[str] | None = None
    method: str = "mutual"
    step: Step | str | None = None
    norms: bool = False
    most: int = 8

    def __post_init__(self) -> None:
        """Raise an InputError for what cannot be asked."""
        links_by(self.method)
        if self.step is not None and not (isinstance(self.step, str) and self.step in STEPS):
            raise InputError(f"align: step {in_words(self.step)}; expected {' or '.join(STEPS)}.")
        object.__setattr__(self, "most", whole_number("align", "most", self.most, 1))
        check_flag("align", "norms", self.norms)
        _ = self.named

    @property
    def named(self) -> list[AligningHead] | None:
        """The heads that are named; None: they are to be chosen."""
        if self.heads is None or (isinstance(self.heads, str) and self.heads in _CHOICES):
            return None
        if not isinstance(self.heads, str | list | tuple) or not self.heads:
            raise InputError(
                f'align: heads={in_words(self.heads)}; expected "best", "agreement", names of '
                "heads, as 0.1, or None."
            )
        names = self.heads.split(",") if isinstance(self.heads, str) else self.heads
        return [AligningHead.named(name) for name in names]

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps that heads are tried by."""
        return tuple(step for step in STEPS if self.step in (step, None))


@dataclass(frozen=True)
class HeadOfAlignment:
    """A head: how far its directions agree, and, with gold, its error rate on the same pairs."""

    head: AligningHead
    agreement: float
    error_rate: ErrorRate | None


@dataclass(frozen=True, eq=False)
class Alignment:
    """The words that belong together, and by which heads.

    links        of each pair of sentences, (source word, target word), from 0
    heads        those whose mean was taken
    table        every head, the best first, without gold by its better step; of named heads, these
    chosen_on    how many pairs the heads were chosen on; 0: they were named
    error_rate   of the links, on pairs that the heads were not chosen on; None: without gold
    measured_on  how many pairs these are
    first        the weights between the words of the first pair, the mean of the heads
    note         what the pairs do not tell of the heads, in a sentence; "": nothing
    """

    links: list[list[Link]]
    heads: list[AligningHead]
    table: list[HeadOfAlignment]
    chosen_on: int
    error_rate: ErrorRate | None
    measured_on: int
    first: WordWeights
    note: str = ""

    def save(self, path: Path | str) -> None:
        """Write the links as a file in the Pharaoh format, a line for each pair."""
        write_pharaoh(path, self.links)


def align(
    traces: Sequence[TraceData] | TraceData,
    *,
    gold: Path | str | Sequence[GoldLinks] | None = None,
    heads: str | Sequence[str] | None = None,
    method: str = "mutual",
    step: Step | str | None = None,
    norms: bool = False,
    most: int = 8,
) -> Alignment:
    """The words of target and source that belong together, by the heads of cross-attention.

    Words are joined of tokens by how these are spelled; the weights between words, of the heads
    that are chosen, are averaged, and become links. With gold links the heads are chosen on the
    first, third, fifth ... trace, and measured on the others.

    Args:
        traces: of an encoder-decoder on sentences whose target is known.
        gold: their links, or a file in the Pharaoh format; None: none are known.
        heads, method, step, norms, most: see AlignmentOptions.

    Raises: InputError: traces without cross-attention, gold that does not fit, no such head.

    Source: Och and Ney 2003 (error rate); `headloom.analysis.alignment.words.word_weights` and
    `.links` name those of the formulas.
    """
    options = AlignmentOptions(heads, method, step, norms, most)
    several = list(each_trace("align", traces))
    known = read_pharaoh(gold) if isinstance(gold, str | Path) else gold
    if known is not None and not (
        isinstance(known, Sequence) and all(isinstance(links, GoldLinks) for links in known)
    ):
        raise InputError(
            f"align: gold={in_words(known)}; expected a file in the Pharaoh format, a list of "
            "GoldLinks, as headloom.read_pharaoh gives, or None."
        )
    words = (word_weights(trace, steps=options.steps, norms=norms) for trace in several)
    name = str(gold) if isinstance(gold, str | Path) else "gold"
    result = align_words(words, options, known, name)
    if result.note:
        warnings.warn(f"align: {result.note}", stacklevel=2)
    return result


def check_choice(options: AlignmentOptions, gold: object) -> None:
    """Raise an InputError where heads cannot be chosen as asked."""
    if options.heads == "best" and gold is None:
        raise InputError(
            "align: the best heads are chosen against gold links. Give --gold FILE, or take heads "
            "by agreement."
        )


def align_words(
    sentences: Iterable[WordWeights],
    options: AlignmentOptions,
    gold: Sequence[GoldLinks] | None = None,
    name: str = "gold",
) -> Alignment:
    """As `align`, of weights between words; name: of the gold, for messages.

    Sentences are taken one by one, but for those that heads are chosen on.
    """
    check_choice(options, gold)
    rest = iter(sentences)
    first = list(rest if gold is not None else islice(rest, _ENOUGH))
    if not first:
        raise InputError("align: no sentences; give at least one pair.")
    _check_alike(first)
    if gold is not None:
        check_links(gold, [sentence.size for sentence in first], name)
    choice = _choice(first, options, gold)
    method, every = links_by(options.method), first[0].heads
    places = [every.index(head) for head in choice.heads]
    links = []
    for sentence in chain(first, rest):
        _check_alike([first[0], sentence])
        links.append(pairs_of(links_of_heads(sentence.weights, places, method)))
    measured = None
    apart = slice(1 if choice.chosen_on else 0, None, 2 if choice.chosen_on else 1)
    others = [] if gold is None else list(gold[apart])
    if others:
        measured = alignment_error_rate(links[apart], others)
    mean = first[0].weights[places].mean(0, keepdim=True)
    return Alignment(
        links, choice.heads, choice.table, choice.chosen_on, measured, len(others),
        WordWeights(mean, (), first[0].source, first[0].target), choice.note,
    )  # fmt: skip


def check_heads(named: Sequence[AligningHead], every: Sequence[AligningHead]) -> None:
    """Raise an InputError where a head that is named is none of a model's."""
    missing = [head for head in named if head not in every]
    if missing:
        layers = sorted({head.layer for head in every})
        count = len({head.head for head in every if head.layer == layers[0]})
        raise InputError(
            f"heads: no head {missing[0]}; there is cross-attention in layer "
            f"{', '.join(map(str, layers))}, there with {count} heads, from 0."
        )


@dataclass(frozen=True, eq=False)
class _Choice:
    heads: list[AligningHead]
    table: list[HeadOfAlignment]
    chosen_on: int
    note: str = ""


def _choice(
    first: Sequence[WordWeights], options: AlignmentOptions, gold: Sequence[GoldLinks] | None
) -> _Choice:
    """The heads, and what is said of each."""
    named = options.named
    half = slice(0, None, 2 if gold is not None and named is None and len(first) > 1 else 1)
    sentences, method = first[half], links_by(options.method)
    of_gold = None if gold is None else gold[half]
    by_gold = of_gold is not None and options.heads != "agreement"
    told = [True] * len(first[0].heads)
    if named is None and not by_gold:
        places, told = better_steps(sentences)
        sentences = [sentence.of(places) for sentence in sentences]
    every = sentences[0].heads
    rates = None if of_gold is None else error_rates(sentences, of_gold, method)
    table = [
        HeadOfAlignment(head, agrees, None if rates is None else rates[number])
        for number, (head, agrees) in enumerate(zip(every, agreement(sentences), strict=True))
    ]
    if named is not None:
        check_heads(named, every)
        return _Choice(named, [row for row in table if row.head in named], 0)
    measured = best_few(sentences, of_gold if by_gold else None, method, options.most)
    order = sorted(range(len(every)), key=lambda number: -measured.single[number])
    return _Choice(
        [every[number] for number in measured.chosen],
        [table[number] for number in order],
        len(sentences),
        "" if all(told[number] for number in measured.chosen) else _NOT_TOLD,
    )


def _check_alike(sentences: Sequence[WordWeights]) -> None:
    """Raise an InputError where sentences come from models of other heads."""
    first = {head[:2] for head in sentences[0].heads}
    for number, sentence in enumerate(sentences):
        own = {head[:2] for head in sentence.heads}
        if own != first:
            raise InputError(
                f"align: trace {number + 1} has {len(own)} heads of cross-attention, the first "
                f"{len(first)}. Give traces of one model, of all layers."
            )
