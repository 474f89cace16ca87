"""Measures of every head at a step: its attention on the probe, and its W_Q and W_K.

    entropy        -sum_j w_j log w_j, in nats: the mean over the rows
    evenness       entropy / log(visible keys): 1 uniform, 0 one key (Pielou 1966); the mean over
                   rows with two visible keys or more
    largest_score  the largest score before the softmax, scaled, with biases
    first_token    the weight on the first key, the mean over the rows (attention sinks: Xiao et
                   al. 2024)
    norm_W_Q, norm_W_K, norm, symmetry
                   Frobenius norms of W_Q, W_K and W_Q W_K^T, and the symmetry of W_Q W_K^T
                   (`headloom.mechanism.spectra`)

Entropy and the weight on the first key are as in `headloom heads`. Rows without visible keys are
not counted. None: no such number, for a layer with unknown matrices, a head without such rows, or
numbers that are not finite.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headloom.analysis.matrices.projections import LayerMatrices, matrices_of
from headloom.errors import InputError
from headloom.formats.trace import TraceData, TraceLayer
from headloom.mechanism.spectra import query_key_measures

#: A number for each head; None: no such number.
Numbers = Sequence[float | None]

#: Measures of a head's attention, and of its matrices.
PROBE_MEASURES = ("entropy", "evenness", "largest_score", "first_token")
MATRIX_MEASURES = ("norm_W_Q", "norm_W_K", "norm", "symmetry")


@dataclass(frozen=True, eq=False)
class MeasuredLayer:
    """Attention layer at a measured step.

    name: its path in the model, followed by " (2)" and so on for repeated runs in a pass.
    layer: of the trace of the probe's first sequence.
    matrices: its learned matrices; None: unknown.
    measures: PROBE_MEASURES and MATRIX_MEASURES.
    """

    name: str
    layer: TraceLayer
    matrices: LayerMatrices | None
    measures: dict[str, Numbers]


@torch.no_grad()
def measured_layers(model: nn.Module, traces: Sequence[TraceData]) -> list[MeasuredLayer]:
    """Return the layers of a model with their measures, from the traces of the probe."""
    try:
        matrices = {layer.name: layer for layer in matrices_of(model)}
    except InputError:
        matrices = {}
    counts: Counter[str] = Counter()
    layers: list[MeasuredLayer] = []
    for place, first in enumerate(traces[0].layers):
        learned = matrices.get(first.name)
        if learned is not None and learned.heads != first.heads:
            learned = None
        measures = _of_probe([trace.layers[place] for trace in traces])
        if learned is None:
            measures |= dict.fromkeys(MATRIX_MEASURES, [None] * first.heads)
        else:
            measured = query_key_measures(learned.W_Q, learned.W_K)
            measures |= {name: _finite(values) for name, values in measured.items()}
        counts[first.name] += 1
        again = f" ({counts[first.name]})" if counts[first.name] > 1 else ""
        layers.append(MeasuredLayer(first.name + again, first, learned, measures))
    return layers


def _of_probe(layers: Sequence[TraceLayer]) -> dict[str, Numbers]:
    """Return PROBE_MEASURES of a layer, over the rows of every sequence of the probe."""
    count = torch.cat([layer.graph.count for layer in layers], -1)
    entropy = torch.cat([layer.graph.entropy.double() for layer in layers], -1)
    first = torch.cat([_first_key(layer).double() for layer in layers], -1)

    def mean(values: Tensor, rows: Tensor) -> Numbers:
        # 0 / 0 for a head without such rows is not finite, and so becomes None.
        return _finite(torch.where(rows, values, 0).sum(-1) / rows.sum(-1))

    return {
        "entropy": mean(entropy, count > 0),
        "evenness": mean(entropy / count.clamp(min=2).double().log(), count > 1),
        "largest_score": _finite(torch.stack([_largest(layer) for layer in layers]).amax(0)),
        "first_token": mean(first, count > 0),
    }


def _first_key(layer: TraceLayer) -> Tensor:
    """Return the weight of each row on the first key, (heads, queries); NaN: unknown."""
    if layer.matrix is not None:
        return layer.matrix.mass([0])
    graph = layer.graph
    is_first = graph.keys == 0
    weight = torch.where(is_first, graph.weights, 0).sum(-1)
    known = is_first.any(-1) | (graph.rest.abs() < 1e-6)
    return torch.where(known, weight, math.nan)


def _largest(layer: TraceLayer) -> Tensor:
    """Return the largest score of each head; NaN: weights only, or no edges."""
    graph = layer.graph
    if layer.queries is None or not graph.k or not graph.shape[-2]:
        return torch.full((layer.heads,), math.nan)
    # Edges are sorted by weight, and so by score; a query without visible keys has none.
    return torch.where(graph.count > 0, graph.scores[..., 0], -math.inf).amax(-1).double()


def _finite(values: Tensor) -> Numbers:
    """Return the numbers of a tensor; None for numbers that are not finite."""
    return [value if math.isfinite(value) else None for value in values.tolist()]


def values_of(layers: Sequence[MeasuredLayer]) -> dict[str, float]:
    """Return the numbers of a step for sinks: means over heads, of scores the largest.

    "attention/entropy" and the other PROBE_MEASURES of all heads; "attention/LAYER/entropy" and all
    measures of a layer.
    """
    values = {}
    for name in (*PROBE_MEASURES, *MATRIX_MEASURES):
        parts = {f"attention/{layer.name}/{name}": layer.measures[name] for layer in layers}
        if name in PROBE_MEASURES:
            parts[f"attention/{name}"] = [n for part in parts.values() for n in part]
        for place, numbers in parts.items():
            known = [number for number in numbers if number is not None]
            if known:
                largest = name == "largest_score"
                values[place] = max(known) if largest else sum(known) / len(known)
    return values
