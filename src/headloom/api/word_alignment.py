"""`headloom.align`: align words by a model of pairs, or by traces."""

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

_Progress = Callable[[int, int], None]


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
    progress: _Progress = lambda done, total: None,
) -> Alignment:
    """Align the words of sources and targets by attention heads between them.

    Tokens are joined to words by their spelling; the weights between words are averaged over the
    chosen heads, and become links. With gold links the heads are chosen on the first, third, fifth
    ... pair, and measured on the others.

    Args:
        x: an encoder-decoder: a run, a model of Hugging Face; or its traces on sentences whose
            target is known, as objects, paths, or a folder.
        sources: for a model: sentences, or a file with one on each line.
        targets: likewise, in the same order.
        gold: the correct links, or a file in the Pharaoh format; None: unknown.
        heads: "best": those that match the gold links best; "agreement": those whose two
            directions agree best; or names, such as "3.1,5.2:write"; None: best if gold is given.
        method: "mutual": words that are each other's best; "argmax": each target word's best.
        step: query of a target word: of the step that "read"s it, or that "write"s it. None: the
            better one for each head, by gold, or by words that occur together.
        most: maximum of heads to average; 1: the best single one.
        progress: called with the pairs done and their total.

    Raises: InputError: no cross-attention, gold or files that do not fit, no such head; DataError:
    a file is missing.

    Source: Och and Ney 2003 (error rate); for the formulas see
    `headloom.analysis.alignment.words.word_weights` and `.links`.
    """
    options = AlignmentOptions(heads, method, step, most)
    links = read_pharaoh(gold) if isinstance(gold, str | Path) else gold
    options.check(links)
    if _are_traces(x):
        if sources is not None or targets is not None:
            raise InputError(
                f"{x}: traces have texts of their own. Leave out sources and targets, or give a "
                "run or a model."
            )
        traces = traces_of("align", x)
        result = align_words((word_weights(t, steps=options.steps) for t in traces), options, links)
    else:
        if sources is None or targets is None:
            raise InputError(
                "align: a model needs sentences and their translations. Give sources and targets, "
                "or traces instead of the model."
            )
        first, second = (_lines(side) for side in (sources, targets))
        if len(first) != len(second):
            raise InputError(
                f"align: {len(first)} sources have {len(second)} targets; line-aligned files "
                "need the same number. Align them again."
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
    """Return whether a value is traces, or their path."""
    if isinstance(x, str | Path):
        return not is_run(x) and any((*Path(x).glob("trace.json"), *Path(x).glob("*/trace.json")))
    if isinstance(x, Sequence):
        return all(map(_are_traces, x))
    return isinstance(x, TraceData)


def _lines(texts: Path | str | Sequence[str]) -> Sequence[str]:
    """Return texts, or read them from a file."""
    if isinstance(texts, str | Path):
        return text_lines(read_text(Path(texts), "text file"))
    return texts
