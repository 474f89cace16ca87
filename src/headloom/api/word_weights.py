"""Weights between the words of source and target pairs, from a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import torch

from headloom.analysis.alignment.words import Step, WordWeights, word_weights
from headloom.api.questions import check_text
from headloom.mechanism.graph import Top
from headloom.tracing.capture import trace_with
from headloom.tracing.options import TraceOptions

if TYPE_CHECKING:
    from headloom.api.model import Model

#: Pairs per batch.
_BATCH = 32
_Progress = Callable[[int, int], None]


def word_weights_of(
    model: Model, sources: Sequence[str], targets: Sequence[str], *, steps: Sequence[Step],
    progress: _Progress = lambda done, total: None,
) -> Iterator[WordWeights]:  # fmt: skip
    """Yield the weights between the words of each pair, in order; the first batch is verified."""
    pairs = list(zip(sources, targets, strict=True))
    full = [place for place, pair in enumerate(pairs) if all(map(str.strip, pair))]
    if not full:
        check_text("")
    written = 0
    for start in range(0, len(full), _BATCH):
        chosen = full[start : start + _BATCH]
        read = model._pairs([sources[i] for i in chosen], [targets[i] for i in chosen])
        # From queries and keys, only the weights on the source are computed: those of a long source
        # over itself would need memory of its length squared.
        verify = None if not start else False
        options = TraceOptions(keep=Top(1), verify=verify, sampled=not start)
        traced = trace_with(model._body, read.inputs, options)
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
