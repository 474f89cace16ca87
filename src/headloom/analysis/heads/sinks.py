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

from headloom.analysis.heads.layer_weights import LayerWeights
from headloom.formats.trace import TraceLayer
from headloom.mechanism.graph import AttentionGraph
from headloom.mechanism.shapes import whole_number

__all__ = ["EFFECT", "SHARE", "looked_at", "sink_keys"]

#: Of what chance leaves, the least that a head puts on a sink.
EFFECT = 0.1

#: The least share of the other layers' heads.
SHARE = 0.1

#: Rows beyond the window, at least: what two rows look at may be meant for them.
ROWS = 3


def sink_keys(
    layers: Sequence[TraceLayer | LayerWeights], reach: int = 4, *, exact: bool | None = None
) -> list[list[int] | None]:
    """The sinks of the heads of each layer, by the heads of the others.

    Args:
        layers: of a trace.
        reach: keys so near are not counted, since local heads look there.
        exact: see `headloom.analysis.weights.weights_of`.

    Returns: for each layer its places, in order; None where no other layer has the same queries
    and keys.
    Raises: InputError: `exact` is True, and a layer's weights are not known exactly.

    >>> from headloom.analysis.dense_layer import layer_of_weights
    >>> third = torch.zeros(2, 12, 12)
    >>> third[..., 2] = 1
    >>> layer = layer_of_weights(third)
    >>> sink_keys([layer, layer]), sink_keys([layer])
    ([[2], [2]], [None])
    """
    reach = whole_number("sink_keys", "reach", reach, 0)
    groups: dict[tuple[str, str, int], list[int]] = {}
    read = [
        layer if isinstance(layer, LayerWeights) else LayerWeights(layer, exact=exact)
        for layer in layers
    ]
    for number, weights in enumerate(read):
        layer = weights.layer
        groups.setdefault((layer.queries_from, layer.keys_from, layer.shape[2]), []).append(number)
    sinks: list[list[int] | None] = [None] * len(read)
    for members in groups.values():
        if len(members) < 2:
            continue
        large = [(looked_at(read[n], reach) >= EFFECT).sum(0) for n in members]
        heads = sum(read[n].layer.heads for n in members)
        together = torch.stack(large).sum(0)
        for number, own in zip(members, large, strict=True):
            least = max(2.0, SHARE * (heads - read[number].layer.heads))
            sinks[number] = (together - own >= least).nonzero().flatten().tolist()
    return sinks


def looked_at(weights: LayerWeights, reach: int) -> Tensor:
    """What each head puts on each key from afar, of what chance leaves, (heads, keys).

    Minus infinity for a key that fewer than ROWS rows see from afar.
    """
    graph = weights.graph
    heads, queries, keys = graph.shape
    if not weights.one_sequence:
        reach = -1
    far = torch.zeros(heads, keys, dtype=torch.float64)
    rows, chance = torch.zeros_like(far), torch.zeros_like(far)
    even = 1 / weights.counts.double().clamp(min=1)
    for block, visible in weights.visible():
        i = torch.arange(block.start, block.stop)[:, None]
        seen = (visible & ((torch.arange(keys) - i).abs() > reach)).double()
        rows += seen.sum(1)
        chance += torch.einsum("hr,hrk->hk", even[:, block.start : block.stop],
                               seen.expand(heads, -1, -1))  # fmt: skip
    source = weights.weights
    if isinstance(source, AttentionGraph):
        away = (graph.keys - torch.arange(queries)[:, None]).abs() > reach
        there = torch.where(away & (graph.keys >= 0), graph.weights, 0).double()
        far.scatter_add_(1, graph.keys.clamp(min=0).flatten(1).long(), there.flatten(1))
    else:
        far += source.received().double()
        for offset in range(-min(reach, keys), min(reach, keys) + 1):
            # The weight of query i on key i + offset, in the column of the key.
            first, last = max(0, -offset), min(queries, keys - offset)
            near = source.mass(offset)[:, first:last].double()
            far[:, first + offset : last + offset] -= near
    chance = chance / rows.clamp(min=1)
    effect = (far / rows.clamp(min=1) - chance) / (1 - chance).clamp(min=1e-12)
    return effect.masked_fill(rows < ROWS, -torch.inf)
