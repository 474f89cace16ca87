"""Formation of heads: their scores on the probe of a run, snapshot by snapshot."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

import torch

from headloom.analysis.heads.layer_weights import LayerWeights, sink_keys
from headloom.analysis.heads.measures import HEAD_MEASURES, head_patterns, layer_scores
from headloom.errors import InputError
from headloom.formats.history import History, Snapshot
from headloom.formats.trace import SEQUENCES, LayerInMemory, TraceData, TraceLayer
from headloom.mechanism.shapes import chosen


@dataclass(frozen=True)
class Moment:
    """Measure of every head at one step.

    loss: of the step, if known.
    scores: by (layer, head), both from 0; NaN: the measure does not apply, or weights are NaN.
    """

    step: int
    loss: float | None
    scores: dict[tuple[int, int], float]


def trace_of_snapshot(snapshot: Snapshot) -> TraceData:
    """Return the probe of a snapshot as a trace, without queries and keys."""
    counts: Counter[str] = Counter()
    two = any(layer.kind == "cross" for layer in snapshot.layers)
    sequences: dict[str, list[str]] = {}

    def name_of(tokens: list[str]) -> str:
        # The first sequence is "tokens", the names of others contain their length.
        name = "tokens"
        while sequences.setdefault(name, tokens) != tokens:
            name = f"tokens-{len(tokens)}" if name == "tokens" else f"{name}'"
        return name

    layers = []
    for layer in snapshot.layers:
        queries_from, keys_from = SEQUENCES[layer.kind] if two else ("", "")
        queries_from = queries_from or name_of(layer.query_tokens)
        keys_from = keys_from or name_of(layer.key_tokens)
        sequences |= {keys_from: layer.key_tokens, queries_from: layer.query_tokens}
        scale = layer.scale
        heads, queries, keys = layer.graph.shape
        layers.append(
            TraceLayer(
                name=layer.name, kind=layer.kind, index=counts[layer.kind],
                shape=(heads, queries, keys), queries_from=queries_from, keys_from=keys_from,
                query_tokens=layer.query_tokens, key_tokens=layer.key_tokens,
                scale=layer.matrices["W_Q"].shape[-1] ** -0.5 if scale is None else scale,
                data=LayerInMemory(layer.graph, None),
            )
        )  # fmt: skip
        counts[layer.kind] += 1
    return TraceData(sequences, tuple(layers))


def formation(history: History, measure: str) -> list[Moment]:
    """Return a measure of every head during training, on the fixed input of its history.

    Args:
        history: of a run.
        measure: name in `headloom.analysis.heads.measures.HEAD_MEASURES`.

    Raises: InputError: no such measure, or a history without snapshots.
    """
    chosen("formation", "measure", measure, tuple(known.name for known in HEAD_MEASURES))
    if not len(history):
        raise InputError(f"{history.folder}: this history has no snapshots yet.")
    moments = []
    for snapshot in history:
        scores: dict[tuple[int, int], float] = {}
        layers = trace_of_snapshot(snapshot).layers
        read = [LayerWeights(layer, patterns=head_patterns(layer)) for layer in layers]
        for number, (weights, sinks) in enumerate(zip(read, sink_keys(read), strict=True)):
            of_layer = layer_scores(weights, sinks=sinks).get(measure)
            none = torch.full((weights.layer.heads,), math.nan)
            values = none if of_layer is None else of_layer.score
            values = values.masked_fill(weights.broken, math.nan)
            scores |= {(number, head): value for head, value in enumerate(values.tolist())}
        moments.append(Moment(snapshot.step, snapshot.loss, scores))
    return moments
