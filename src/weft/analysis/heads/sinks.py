"""Sinks: tokens at which heads all over the model look, whatever the query.

A model parks weight that it has no use for on a few tokens: the first one, and also others that
say little ("the", "of", a full stop, a new line), where some dimensions of the residual stream are
huge. What a head h puts on key j from afar, beside what an even row would put there,

    a_j = mean of w_ij over the rows i that may look at j, |i - j| > reach
    e_j = mean of 1 / n_i over the same rows

is large where (a_j - e_j) / (1 - e_j) is EFFECT or more. A key is a sink for the heads of a layer
where it is large for SHARE of all heads of the *other* layers or more, two at least: the heads that
are held against chance have no part in choosing the keys, so that shuffling their rows is a fair
null.

Source: Xiao et al. 2024 (attention sinks); Sun et al. 2024, section 2 and 4 (massive activations:
which tokens, and that weight gathers there); Gu et al. 2025, section 3 (the mean a_j of a head
against a threshold, here lower, since several sinks share the weight, and beside chance).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from weft.analysis.arguments import check_layer, several_layers
from weft.analysis.heads.patterns import allowed_keys
from weft.formats.trace import TraceLayer
from weft.mechanism.shapes import whole_number

__all__ = ["EFFECT", "SHARE", "looked_at", "sink_keys"]

#: Of what chance leaves, the least that a head puts on a sink.
EFFECT = 0.1

#: The least share of the other layers' heads.
SHARE = 0.1

#: Rows beyond the window, at least: what two rows look at may be meant for them.
ROWS = 3


def sink_keys(layers: Sequence[TraceLayer], reach: int = 4) -> list[list[int] | None]:
    """The sinks of the heads of each layer, by the heads of the others.

    Args:
        layers: of a trace.
        reach: keys so near are not counted, since local heads look there.

    Returns: for each layer its places, in order; None where no other layer has the same queries
    and keys.

    >>> from weft.analysis.dense_layer import layer_of_weights
    >>> third = torch.zeros(2, 12, 12)
    >>> third[..., 2] = 1
    >>> layer = layer_of_weights(third)
    >>> sink_keys([layer, layer]), sink_keys([layer])
    ([[2], [2]], [None])
    """
    reach = whole_number("sink_keys", "reach", reach, 0)
    layers = several_layers("sink_keys", layers)
    groups: dict[tuple[str, str, int], list[int]] = {}
    for number, layer in enumerate(layers):
        groups.setdefault((layer.queries_from, layer.keys_from, layer.shape[2]), []).append(number)
    sinks: list[list[int] | None] = [None] * len(layers)
    for members in groups.values():
        if len(members) < 2:
            continue
        large = torch.stack([(looked_at(layers[n], reach) >= EFFECT).sum(0) for n in members])
        heads = torch.tensor([layers[n].heads for n in members])
        for place, number in enumerate(members):
            others, of_others = large.sum(0) - large[place], int(heads.sum() - heads[place])
            least = max(2.0, SHARE * of_others)
            sinks[number] = (others >= least).nonzero().flatten().tolist()
    return sinks


def looked_at(layer: TraceLayer, reach: int) -> Tensor:
    """What each head puts on each key from afar, of what chance leaves, (heads, keys).

    From the kept edges, so that it is a lower bound; minus infinity for a key that fewer than ROWS
    rows see from afar.
    """
    # A copy reads from disk for itself, and takes what it read with it when it goes.
    from dataclasses import replace

    check_layer("looked_at", layer)
    reach = whole_number("looked_at", "reach", reach, 0)
    layer = layer if "graph" in layer.__dict__ else replace(layer)
    graph, allowed = layer.graph, allowed_keys(layer)
    heads, queries, keys = graph.shape
    one_sequence = layer.queries_from == layer.keys_from and queries == keys
    i = torch.arange(queries)
    near = torch.full_like(i, reach if one_sequence else -1)
    far = (graph.keys - i[:, None]).abs() > near[:, None]
    kept = torch.where(far & (graph.keys >= 0), graph.weights, 0).double()
    received = torch.zeros(heads, keys, dtype=torch.float64)
    received.scatter_add_(1, graph.keys.clamp(min=0).flatten(1).long(), kept.flatten(1))
    even = 1 / allowed.count.double().mean(0).clamp(min=1)
    rows = _from_afar(torch.ones_like(even), allowed.first, allowed.end, near, keys)
    chance = _from_afar(even, allowed.first, allowed.end, near, keys) / rows.clamp(min=1)
    effect = (received / rows.clamp(min=1) - chance) / (1 - chance).clamp(min=1e-12)
    return effect.masked_fill(rows < ROWS, -torch.inf)


def _from_afar(of_row: Tensor, first: Tensor, end: Tensor, near: Tensor, keys: int) -> Tensor:
    """The sum, at each key, of a number of every row that sees it from afar, (keys,)."""
    steps = torch.zeros(keys + 1, dtype=torch.float64)
    i = torch.arange(len(of_row))
    left, right = torch.maximum(first, i - near), torch.minimum(end, i + near + 1)
    right = torch.maximum(left, right)
    # All that may be looked at, less the window, where there is one.
    for place, sign in ((first, 1), (end, -1), (left, -1), (right, 1)):
        steps.index_add_(0, place.clamp(0, keys), sign * of_row)
    return steps.cumsum(0)[:keys].round(decimals=12)
