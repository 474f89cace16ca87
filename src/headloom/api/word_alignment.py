"""Words aligned by a model that reads two line-aligned files, or by traces that are there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from headloom.analysis.alignment.align import Alignment, AlignmentOptions, align_words
from headloom.analysis.alignment.words import Step, WordWeights, word_weights
from headloom.api.heads import find_traces
from headloom.api.model import Model, check_text
from headloom.api.opening import open_model
from headloom.errors import InputError
from headloom.formats.files import read_text, text_lines
from headloom.formats.pharaoh import check_links, read_pharaoh
from headloom.formats.run import is_run
from headloom.mechanism.graph import Top
from headloom.tracing.capture import trace_as
from headloom.tracing.options import TraceOptions

#: Pairs that the model reads at once.
_BATCH = 32
_Told = Callable[[int, int], None]


def align_files(
    source: str,
    options: AlignmentOptions,
    *,
    sources: Path | None = None,
    targets: Path | None = None,
    gold: Path | None = None,
    progress: _Told = lambda done, total: None,
) -> Alignment:
    """Align two files with a text a line by a model, or the texts of traces.

    Args:
        source: a run, a model, a trace or a folder of traces.
        options: how.
        sources, targets: for a model. gold: their links, in the Pharaoh format.

    Raises: InputError: files that do not go together; DataError: a file is missing.
    """
    links = None if gold is None else read_pharaoh(gold)
    options.check(links)
    path = Path(source)
    if not is_run(path) and any((*path.glob("trace.json"), *path.glob("*/trace.json"))):
        if sources is not None or targets is not None:
            raise InputError(
                f"{source} holds traces, which have texts of their own. Leave out --source-file "
                "and --target-file, or give a run or a model."
            )
        weights = (word_weights(trace, steps=options.steps) for trace in find_traces([path]))
        return align_words(weights, options, links)
    if sources is None or targets is None:
        raise InputError(
            "align: a model aligns two files with a text a line. Give --source-file and "
            "--target-file, or traces in the place of the model."
        )
    first, second = (text_lines(read_text(file, "text file")) for file in (sources, targets))
    if len(first) != len(second):
        raise InputError(
            f"{sources} has {len(first)} lines, {targets} {len(second)}; line-aligned files have "
            "as many. Pair them up again."
        )
    if links is not None:  # before the model is opened
        words = zip(first, second, strict=True)
        check_links(links, [(len(s.split()), len(t.split())) for s, t in words])
    model = open_model(source)
    read = word_weights_of(model, first, second, steps=options.steps, progress=progress)
    return align_words(read, options, links)


def word_weights_of(
    model: Model,
    sources: Sequence[str],
    targets: Sequence[str],
    *,
    steps: Sequence[Step],
    progress: _Told = lambda done, total: None,
) -> Iterator[WordWeights]:
    """Yield the weights between the words of each pair, in order; the first batch is verified.

    A pair of which a side is empty has none.

    Raises: InputError: a model that does not read pairs; no text at all.
    """
    pairs = list(zip(sources, targets, strict=True))
    full = [place for place, pair in enumerate(pairs) if all(map(str.strip, pair))]
    if not full:
        check_text("")
    written = 0
    for start in range(0, len(full), _BATCH):
        chosen = full[start : start + _BATCH]
        read = model.pairs([sources[i] for i in chosen], [targets[i] for i in chosen])
        # Queries and keys, of which the weights on the source are computed alone: those of a long
        # source over itself would take its length squared.
        verify = None if not start else False
        options = TraceOptions(keep=Top(1), verify=verify, sampled=not start)
        traced = trace_as(model.network, read.inputs, options)
        traces = traced if isinstance(traced, list) else [traced]
        weights = {
            place: word_weights(trace, source, target, steps=steps)
            for place, trace, source, target in zip(
                chosen, traces, read.sources, read.targets, strict=True
            )
        }
        heads = weights[chosen[0]].heads
        progress(start + len(chosen), len(full))
        end = len(pairs) if start + _BATCH >= len(full) else chosen[-1] + 1
        for i in range(written, end):
            sides = sources[i].split(), targets[i].split()
            empty = torch.zeros(len(heads), len(sides[1]), len(sides[0]))
            yield weights.get(i) or WordWeights(empty, heads, *sides)
        written = end
