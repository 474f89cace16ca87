"""`align`: link the words of targets and sources by the weights of aligning heads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pandas

from headloom.analysis.alignment.links import (
    METHODS,
    MOST,
    ErrorRate,
    alignment_error_rate,
    best_few,
    better_steps,
    measure,
    pairs_of,
)
from headloom.analysis.alignment.words import STEPS, AligningHead, Step, WordWeights
from headloom.errors import InputError
from headloom.formats.pharaoh import GoldLinks, Link, check_links, write_pharaoh
from headloom.mechanism.drawn import Drawn
from headloom.mechanism.shapes import chosen

#: Pairs of sentences whose weights are kept to be drawn.
_DRAWN = 100
#: Maximal number of pairs of sentences on which heads are chosen by agreement: the first ones.
_ENOUGH = 1_000

_UNCLEAR_STEP = (
    "too few words occur again in these pairs to tell whether the heads align the word that is "
    "read or the word that is written next; links may be one word off. Give more pairs, or a step."
)


@dataclass(frozen=True)
class AlignmentOptions:
    """Options of `headloom.align`."""

    heads: str | Sequence[str] | None = None
    method: str = "mutual"
    step: Step | None = None
    most: int = MOST

    def named(self) -> list[AligningHead]:
        """Return the named heads; empty: heads are chosen."""
        if self.heads in (None, "best", "agreement"):
            return []
        names = self.heads.split(",") if isinstance(self.heads, str) else self.heads or ()
        return [AligningHead.named(name) for name in names]

    @property
    def steps(self) -> tuple[Step, ...]:
        """Steps to try for each head."""
        return STEPS if self.step is None else (self.step,)

    def check(self, gold: object) -> None:
        """Raise an InputError for options that are not valid."""
        chosen("align", "method", self.method, tuple(METHODS))
        chosen("align", "step", self.step or "read", STEPS)
        self.named()
        if self.heads == "best" and gold is None:
            raise InputError(
                "align: the best heads are chosen against gold links. Give gold, or take "
                "heads by agreement."
            )


@dataclass(frozen=True, eq=False, repr=False)
class Alignment(Drawn):
    """Links between words, and the heads that they come from.

    links        of each pair of sentences, (source word, target word), from 0
    heads        the averaged heads
    table        every head (or the named ones), best first, with its measure, 0 to 1
    measure      "1 - AER" with gold, otherwise "agreement"
    chosen_on    number of pairs on which heads were chosen; 0: they were named
    error_rate   of the links, on other pairs than these; None: without gold
    measured_on  number of pairs of the error rate
    words        weights between the words of the first hundred pairs, the mean of the heads
    note         a sentence about unclear steps of heads; "": none
    """

    links: list[list[Link]]
    heads: list[AligningHead]
    table: list[tuple[AligningHead, float]]
    measure: str
    chosen_on: int
    error_rate: ErrorRate | None
    measured_on: int
    words: list[WordWeights]
    note: str = ""

    def plot(
        self, sentence: int = 0, *, ax: object = None, width: float | None = None, **imshow: object
    ) -> Any:
        """Draw the weights between the words of a pair of sentences, its links outlined.

        sentence: its number, of the first hundred. The others: see `headloom.TraceLayer.plot`.
        """
        return self._plot("links", self, sentence, ax=ax, width=width, **imshow)

    def to_pandas(self) -> pandas.DataFrame:
        """Return the table of heads: a row each, with its measure."""
        return pandas.DataFrame(
            [(str(head), value) for head, value in self.table], columns=["head", self.measure]
        )

    def __repr__(self) -> str:
        return "\n".join([*self.notes, self.to_pandas().head(8).to_string(index=False)])

    @property
    def notes(self) -> list[str]:
        """Sentences about the alignment."""
        of_all, names = len(self.links), ", ".join(map(str, self.heads))
        chosen_on = f", chosen on {self.chosen_on:,} pairs" if self.chosen_on else ""
        notes = [f"Links by the mean of the heads {names}{chosen_on}."]
        if self.note:
            notes.append(self.note[:1].upper() + self.note[1:])
        if self.error_rate is not None:
            other = "the other " * bool(self.chosen_on)
            notes.append(f"On {other}{self.measured_on:,} pairs: {self.error_rate}.")
        return [*notes, f"{sum(map(len, self.links)):,} links of {of_all:,} pairs."]

    def save(self, path: Path | str) -> None:
        """Write the links as a file in the Pharaoh format, a line for each pair."""
        write_pharaoh(path, self.links)


def align_words(
    sentences: Iterable[WordWeights],
    options: AlignmentOptions,
    gold: Sequence[GoldLinks] | None = None,
) -> Alignment:
    """Align by weights between words, as `headloom.align` does.

    Sentences are read one by one, except the ones on which heads are chosen.
    """
    options.check(gold)
    rest = iter(sentences)
    first = list(rest if gold is not None else islice(rest, _ENOUGH))
    if not first:
        raise InputError("align: no sentences; give at least one pair.")
    if gold is not None:
        check_links(gold, [(len(pair.source), len(pair.target)) for pair in first])
    every, method, named = first[0].heads, METHODS[options.method], options.named()
    _check_heads(first[0].heads, named, first)
    # With gold, heads are chosen on every other pair, and measured on the pairs between.
    apart = gold is not None and not named
    chosen_on = first[:: 2 if apart and len(first) > 1 else 1]
    of_gold = None if gold is None or options.heads == "agreement" else gold[:: 2 if apart else 1]
    note = ""
    if named:
        places = [every.index(head) for head in named]
        single = measure(chosen_on, of_gold, method).tolist()
        table = [(every[place], single[place]) for place in places]
    else:
        steps, clear = list(range(len(every))), [True] * len(every)
        if of_gold is None:
            steps, clear = better_steps(chosen_on)
            chosen_on = [sentence.of(steps) for sentence in chosen_on]
        single, best = best_few(chosen_on, of_gold, method, options.most)
        places = [steps[place] for place in best]
        ordered = sorted(zip(steps, single, strict=True), key=lambda pair: -pair[1])
        table = [(every[place], value) for place, value in ordered]
        note = "" if all(clear[place] for place in best) else _UNCLEAR_STEP
    links: list[list[Link]] = []
    words: list[WordWeights] = []
    for sentence in chain(first, rest):
        _check_heads(every, (), [sentence])
        mean = sentence.weights[places].mean(0, keepdim=True)
        links.append(pairs_of(method(mean)[0]))
        if len(words) < _DRAWN:
            words.append(WordWeights(mean, (), sentence.source, sentence.target))
    measured = slice(1 if apart else 0, None, 2 if apart else 1)
    right = [] if gold is None else list(gold[measured])
    return Alignment(
        links=links, heads=[every[place] for place in places], table=table,
        measure="agreement" if of_gold is None else "1 - AER",
        chosen_on=0 if named else len(chosen_on),
        error_rate=alignment_error_rate(links[measured], right) if right else None,
        measured_on=len(right), words=words, note=note,
    )  # fmt: skip


def _check_heads(
    every: Sequence[AligningHead], named: Iterable[AligningHead], sentences: Iterable[WordWeights]
) -> None:
    """Raise an InputError for a head that does not exist, or traces with different heads."""
    if missing := [head for head in named if head not in every]:
        layers = sorted({head.layer for head in every})
        count = len({head.head for head in every if head.layer == layers[0]})
        raise InputError(
            f"heads: no head {missing[0]}; there is cross-attention in layer "
            f"{', '.join(map(str, layers))}, there with {count} heads, from 0."
        )
    for sentence in sentences:
        if sentence.heads != every:
            raise InputError(
                f"align: a trace has {len(sentence.heads)} heads of cross-attention, the first "
                f"{len(every)}. Give traces of one model, of all layers."
            )
