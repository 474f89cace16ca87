"""`headloom.align`: words aligned by a model that reads pairs, or by traces that are there."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from headloom.analysis.alignment.align import Alignment, AlignmentOptions, align_words
from headloom.analysis.alignment.links import MOST
from headloom.analysis.alignment.words import Step, word_weights
from headloom.api.opening import load
from headloom.api.reading import traces_of
from headloom.api.word_weights import word_weights_of
from headloom.errors import InputError
from headloom.formats.files import read_text, text_lines
from headloom.formats.pharaoh import GoldLinks, check_links, read_pharaoh
from headloom.formats.run import is_run
from headloom.formats.trace import TraceData

_Told = Callable[[int, int], None]


def align(
    x: Any,
    sources: Path | str | Sequence[str] | None = None,
    targets: Path | str | Sequence[str] | None = None,
    *,
    gold: Path | str | Sequence[GoldLinks] | None = None,
    heads: str | Sequence[str] | None = None,
    method: str = "mutual",
    step: Step | None = None,
    most: int = MOST,
    progress: _Told = lambda done, total: None,
) -> Alignment:
    """Align the words of sources and targets by the heads that look from one at the other.

    Words are joined of tokens by how these are spelled; the weights between words, of the heads
    that are chosen, are averaged, and become links. With gold links the heads are chosen on the
    first, third, fifth ... pair, and measured on the others.

    Args:
        x: an encoder-decoder: a run, a model of Hugging Face; or its traces on sentences whose
            target is known, as objects, paths, or a folder.
        sources, targets: for a model: sentences, or a file with one on each line, in one order.
        gold: the right links, or a file in the Pharaoh format; None: none are known.
        heads: "best": those that align best with the gold links; "agreement": those whose two
            directions agree best; or names, as "3.1,5.2:write"; None: best where there is gold.
        method: "mutual": words that are each other's best; "argmax": each target word's best.
        step: the query of a target word: of the step that "read"s it, or that "write"s it. None:
            the better of each head, by gold, or by words that occur together.
        most: how many heads are taken together, at most; 1: the best single one.
        progress: told how many pairs are read, of how many.

    Raises: InputError: no cross-attention, gold or files that do not fit, no such head; DataError:
    a file is missing.

    Source: Och and Ney 2003 (error rate); `headloom.analysis.alignment.words.word_weights` and
    `.links` name those of the formulas.
    """
    options = AlignmentOptions(heads, method, step, most)
    links = read_pharaoh(gold) if isinstance(gold, str | Path) else gold
    options.check(links)
    if _are_traces(x):
        if sources is not None or targets is not None:
            raise InputError(
                f"{x} holds traces, which have texts of their own. Leave out sources and targets, "
                "or give a run or a model."
            )
        traces = traces_of("align", x)
        result = align_words((word_weights(t, steps=options.steps) for t in traces), options, links)
    else:
        if sources is None or targets is None:
            raise InputError(
                "align: a model aligns sentences with their translations. Give sources and "
                "targets, or traces in the place of the model."
            )
        first, second = (_lines(side) for side in (sources, targets))
        if len(first) != len(second):
            raise InputError(
                f"align: {len(first)} sources have {len(second)} targets; line-aligned files have "
                "as many. Pair them up again."
            )
        if links is not None:  # before the model is opened
            words = zip(first, second, strict=True)
            check_links(links, [(len(s.split()), len(t.split())) for s, t in words])
        model = load(x)
        read = word_weights_of(model, first, second, steps=options.steps, progress=progress)
        result = align_words(read, options, links)
    if result.note:
        warnings.warn(f"align: {result.note}", stacklevel=2)
    return result


def _are_traces(x: object) -> bool:
    """Whether something is traces, or the path of some."""
    if isinstance(x, str | Path):
        return not is_run(x) and any((*Path(x).glob("trace.json"), *Path(x).glob("*/trace.json")))
    if isinstance(x, Sequence):
        return all(map(_are_traces, x))
    return isinstance(x, TraceData)


def _lines(texts: Path | str | Sequence[str]) -> Sequence[str]:
    """Texts as they are given, or those of a file."""
    if isinstance(texts, str | Path):
        return text_lines(read_text(Path(texts), "text file"))
    return texts
