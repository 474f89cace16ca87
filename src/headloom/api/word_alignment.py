"""Words aligned by a model that reads two line-aligned files, or by traces that are there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from headloom.analysis.alignment.align import Alignment, AlignmentOptions, align_words, check_choice
from headloom.analysis.alignment.words import AligningHead, Step, WordWeights, word_weights
from headloom.api.head_table import find_traces
from headloom.api.model import Model, Pairs, check_text
from headloom.api.opening import open_model
from headloom.errors import InputError
from headloom.formats.files import read_text
from headloom.formats.lines import text_lines
from headloom.formats.pharaoh import check_links, read_pharaoh
from headloom.formats.run import is_run
from headloom.mechanism.graph import Top
from headloom.tracing.capture import trace_as
from headloom.tracing.options import TraceOptions

__all__ = ["AlignmentRequest", "PairReader", "align_files", "word_weights_of"]

#: Pairs that the model reads at once.
_BATCH = 32
_Told = Callable[[int, int], None]


@dataclass(frozen=True)
class AlignmentRequest:
    """What `headloom align` was asked.

    source: a run, a model, a trace or a folder of traces; sources, targets: two files with a text
    a line, for a model; gold: their links.
    """

    source: str
    sources: Path | None = None
    targets: Path | None = None
    gold: Path | None = None


def align_files(
    request: AlignmentRequest,
    options: AlignmentOptions,
    progress: _Told = lambda done, total: None,
) -> Alignment:
    """Align what is asked for.

    Raises: InputError: files that do not go together; DataError: a file is missing.
    """
    gold = None if request.gold is None else read_pharaoh(request.gold)
    check_choice(options, gold)
    if _has_traces(request.source):
        if request.sources is not None or request.targets is not None:
            raise InputError(
                f"{request.source} holds traces, which have texts of their own. Leave out "
                "--source-file and --target-file, or give a run or a model."
            )
        traces = find_traces([Path(request.source)])
        weights = (word_weights(trace, steps=options.steps) for trace in traces)
        return align_words(weights, options, gold)
    if request.sources is None or request.targets is None:
        raise InputError(
            "align: a model aligns two files with a text a line. Give --source-file and "
            "--target-file, or traces in the place of the model."
        )
    sources, targets = (
        text_lines(read_text(path, "text file")) for path in (request.sources, request.targets)
    )
    if len(sources) != len(targets):
        raise InputError(
            f"{request.sources} has {len(sources)} lines, {request.targets} {len(targets)}; "
            "line-aligned files have as many. Pair them up again."
        )
    if gold is not None:  # before the model is opened
        check_links(
            gold, [(len(s.split()), len(t.split())) for s, t in zip(sources, targets, strict=True)]
        )
    model = open_model(request.source)
    read = word_weights_of(model, sources, targets, steps=options.steps, progress=progress)
    return align_words(read, options, gold)


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
    full = [
        i for i, pair in enumerate(zip(sources, targets, strict=True)) if all(map(str.strip, pair))
    ]
    if not full:
        check_text("")
    reader = PairReader(model.network, steps)
    written = 0
    for start in range(0, len(full), _BATCH):
        chosen = full[start : start + _BATCH]
        pairs = model.pairs([sources[i] for i in chosen], [targets[i] for i in chosen])
        read = dict(zip(chosen, reader.read(pairs), strict=True))
        progress(start + len(chosen), len(full))
        end = len(sources) if start + _BATCH >= len(full) else chosen[-1] + 1
        for i in range(written, end):
            yield read.get(i) or _nothing(reader.heads, sources[i], targets[i])
        written = end


class PairReader:
    """Lets a model read pairs; the first batch is held against the untouched model.

    Args:
        network: an encoder-decoder.
        steps: see `word_weights`.
    """

    def __init__(self, network: nn.Module, steps: Sequence[Step]) -> None:
        self.network, self.steps = network, steps
        #: The heads, in the order of the weights; none before the first batch.
        self.heads: tuple[AligningHead, ...] = ()

    def read(self, pairs: Pairs) -> list[WordWeights]:
        """Return the weights between the words of each pair."""
        first = not self.heads
        # Queries and keys, of which the weights on the source are computed alone: those of a long
        # source over itself would take its length squared.
        options = TraceOptions(keep=Top(1), verify=None if first else False, sampled=first)
        traced = trace_as(self.network, pairs.inputs, options)
        traces = traced if isinstance(traced, list) else [traced]
        weights = [
            word_weights(trace, source, target, steps=self.steps)
            for trace, source, target in zip(traces, pairs.sources, pairs.targets, strict=True)
        ]
        self.heads = weights[0].heads
        return weights


def _nothing(heads: tuple[AligningHead, ...], source: str, target: str) -> WordWeights:
    sides = source.split(), target.split()
    return WordWeights(torch.zeros(len(heads), len(sides[1]), len(sides[0])), heads, *sides)


def _has_traces(name: str) -> bool:
    path = Path(name)
    if not path.is_dir() or is_run(path):
        return False
    return (path / "trace.json").exists() or any(path.glob("*/trace.json"))
