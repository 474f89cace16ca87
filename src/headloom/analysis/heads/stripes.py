"""Measures of stripes down the matrix: keys that are looked at whatever the query."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from headloom.analysis.arguments import keys_named
from headloom.analysis.heads.pattern_mass import LayerWeights, weights_of
from headloom.analysis.heads.patterns import Classes, HeadKeys
from headloom.analysis.heads.scores import HeadScores, on_pattern
from headloom.formats.trace import TraceLayer

__all__ = ["STRIPES", "sink", "vertical"]

#: Keys of a vertical pattern, at most.
STRIPES = 16


def sink(layer: TraceLayer | LayerWeights, at: Sequence[int]) -> HeadScores:
    """Mass on the sinks: tokens at which heads of all layers look, the first or any other.

        mean of sum_(j in S) w_ij

    Args:
        layer: of a trace.
        at: S, chosen without this layer: `headloom.analysis.heads.sinks.sink_keys`.

    Source: Xiao et al. 2024; Sun et al. 2024, section 4; Gu et al. 2025, section 3.

    >>> from headloom.analysis.dense_layer import layer_of_weights
    >>> weights = torch.tensor([[1., 0, 0], [0, 1, 0], [0, 0.5, 0.5]])
    >>> sink(layer_of_weights(weights[None], mask="causal"), [1]).score.item()      # rows 1 and 2
    0.75
    """
    weights = weights_of(layer)
    at = keys_named("sink", "at", at, weights.layer.shape[2])
    return on_pattern("sink", weights, Classes.of_keys_at(weights.layer, at))


def vertical(layer: TraceLayer | LayerWeights) -> HeadScores:
    """Mass on a few keys that are the same for every query: stripes down the matrix.

        mean over even i of sum_(j in S) w_ij

    S are the keys that stand most often among the three strongest of an odd row of the head, with
    more than an even row gives them: 16 of them, or a quarter of all; of equals the first. So the
    even rows have no part in choosing them, and the choice is the same however few edges of a row
    were kept, from three on.

    Source: Kovaleva et al. 2019, section 4.1 ("vertical" patterns).

    >>> from headloom.analysis.dense_layer import layer_of_weights
    >>> third = torch.tensor([[0., 0, 1, 0]]).repeat(4, 1)
    >>> vertical(layer_of_weights(third[None])).score.item()
    1.0
    """
    weights = weights_of(layer)
    heads, queries, keys = weights.graph.shape
    odd = torch.arange(queries) % 2 == 1
    count = torch.zeros(heads, keys, dtype=torch.float64)
    strongest = weights.graph.keys[..., :3]
    even = 1 / weights.graph.count.clamp(min=1)
    counted = (strongest >= 0) & (weights.graph.weights[..., :3] > even[..., None]) & odd[:, None]
    count.scatter_add_(1, strongest.clamp(min=0).flatten(1).long(), counted.double().flatten(1))
    # Less than one, so that only equals are ordered by it.
    count -= torch.arange(keys) / (2 * max(keys, 1))
    places = count.topk(min(STRIPES, keys // 4), dim=-1).indices
    return on_pattern("vertical", weights, HeadKeys(places, ~odd, keys))
