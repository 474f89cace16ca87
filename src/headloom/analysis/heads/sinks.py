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

a_j has bounds from the kept edges. Where these leave open which keys are sinks, it is computed from
the whole matrix, if there is one and it is cheap or asked for.

Source: Xiao et al. 2024 (attention sinks); Sun et al. 2024, section 2 and 4 (massive activations:
which tokens, and that weight gathers there); Gu et al. 2025, section 3 (the mean a_j of a head
against a threshold, here lower, since several sinks share the weight, and beside chance).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headloom.analysis.arguments import check_layer, several_layers
from headloom.analysis.heads.pattern_mass import LayerWeights
from headloom.analysis.interval import Interval
from headloom.analysis.tiles import row_tiles
from headloom.formats.trace import TraceLayer
from headloom.mechanism.shapes import check_flag, whole_number

__all__ = ["EFFECT", "SHARE", "certain_sinks", "looked_at", "sink_keys"]

#: Of what chance leaves, the least that a head puts on a sink.
EFFECT = 0.1

#: The least share of the other layers' heads.
SHARE = 0.1

#: Rows beyond the window, at least: what two rows look at may be meant for them.
ROWS = 3


def sink_keys(
    layers: Sequence[TraceLayer], reach: int = 4, *, exact: bool | None = None
) -> list[list[int] | None]:
    """The sinks of the heads of each layer, by the heads of the others.

    Args:
        layers: of a trace.
        reach: keys so near are not counted, since local heads look there.
        exact: True: from whole matrices where kept edges leave it open; False: by the lower bound
            of these; None: from whole matrices where that is cheap.

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
    return certain_sinks(layers, reach, exact=exact)[0]


def certain_sinks(
    layers: Sequence[TraceLayer], reach: int = 4, *, exact: bool | None = None
) -> tuple[list[list[int] | None], list[bool]]:
    """The sinks as from `sink_keys`, and for each layer whether it is certain which they are."""
    reach = whole_number("sink_keys", "reach", reach, 0)
    layers = several_layers("sink_keys", layers)
    check_flag("sink_keys", "exact", exact, optional=True)
    groups: dict[tuple[str, str, int], list[int]] = {}
    for number, layer in enumerate(layers):
        groups.setdefault((layer.queries_from, layer.keys_from, layer.shape[2]), []).append(number)
    sinks: list[list[int] | None] = [None] * len(layers)
    certain = [True] * len(layers)
    for members in groups.values():
        if len(members) < 2:
            continue
        large, at_most = (
            torch.stack(counts)
            for counts in zip(*(_large(layers[n], reach, exact) for n in members), strict=True)
        )
        heads = torch.tensor([layers[n].heads for n in members])
        for place, number in enumerate(members):
            least = max(2.0, SHARE * int(heads.sum() - heads[place]))
            found, more = (counts.sum(0) - counts[place] >= least for counts in (large, at_most))
            sinks[number] = found.nonzero().flatten().tolist()
            certain[number] = torch.equal(found, more)
    return sinks, certain


def _large(layer: TraceLayer, reach: int, exact: bool | None) -> tuple[Tensor, Tensor]:
    """For how many heads each key is large, at least and at most, (keys,)."""
    effect = looked_at(layer, reach, exact=exact)
    return (effect.lower >= EFFECT).sum(0), (effect.upper >= EFFECT).sum(0)


def looked_at(layer: TraceLayer, reach: int, *, exact: bool | None = None) -> Interval:
    """What each head puts on each key from afar, of what chance leaves, (heads, keys).

    Minus infinity for a key that fewer than ROWS rows see from afar. exact: as for `sink_keys`;
    where it is not, the bounds are those of the kept edges.
    """
    check_layer("looked_at", layer)
    reach = whole_number("looked_at", "reach", reach, 0)
    weights = LayerWeights(layer, exact=exact)
    layer, graph, allowed = weights.layer, weights.graph, weights.allowed
    heads, queries, keys = graph.shape
    one_sequence = layer.queries_from == layer.keys_from and queries == keys
    i = torch.arange(queries)
    near = torch.full_like(i, reach if one_sequence else -1)
    far = (graph.keys - i[:, None]).abs() > near[:, None]
    kept = torch.where(far & (graph.keys >= 0), graph.weights, 0).double()
    received = torch.zeros(heads, keys, dtype=torch.float64)
    received.scatter_add_(1, graph.keys.clamp(min=0).flatten(1).long(), kept.flatten(1))
    # What a row did not keep of a key is at most the least that it kept.
    largest = weights.left_out[1]
    more = torch.stack(
        [_from_afar(of_head, allowed.first, allowed.end, near, keys) for of_head in largest]
    )
    there = torch.where(far & (graph.keys >= 0), largest[..., None], 0)
    more.scatter_add_(1, graph.keys.clamp(min=0).flatten(1).long(), -there.flatten(1))
    even = 1 / allowed.count.double().mean(0).clamp(min=1)
    rows = _from_afar(torch.ones_like(even), allowed.first, allowed.end, near, keys)
    chance = _from_afar(even, allowed.first, allowed.end, near, keys) / rows.clamp(min=1)

    def effect(received: Tensor) -> Tensor:
        beyond = (received / rows.clamp(min=1) - chance) / (1 - chance).clamp(min=1e-12)
        return beyond.masked_fill(rows < ROWS, -torch.inf)

    found = Interval(effect(received), effect(received + more.clamp(min=0)))
    if torch.equal(found.lower >= EFFECT, found.upper >= EFFECT) or not weights.whole:
        return found
    received = torch.stack([_column_sums(weights, head, near) for head in range(heads)])
    return Interval.exactly(effect(received))


def _column_sums(weights: LayerWeights, head: int, near: Tensor) -> Tensor:
    """What a head puts on each key from afar, by all cells of its matrix, (keys,)."""
    matrix = weights.matrix
    assert matrix is not None
    sums = torch.zeros(matrix.shape[2], dtype=torch.float64)
    for rows, columns, cells in row_tiles(matrix, head, causal=weights.layer.mask == "causal"):
        i, j = torch.arange(rows.start, rows.stop)[:, None], torch.arange(columns.stop)
        far = (j - i).abs() > near[rows.start : rows.stop, None]
        sums[: columns.stop] += torch.where(far, cells, 0).sum(0, dtype=torch.float64)
    return sums


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
