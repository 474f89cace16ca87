"""Rollout: how much of each input position is in each output position, through all layers.

    R = (r W_L + (1 - r) I) ... (r W_1 + (1 - r) I),    r = 1/2

W_l: the weights of layer l averaged over heads; rows are positions of the last layer, columns of
the input. Half of what a position holds comes past the layer, by the residual connection.

Between two sequences the same holds for each layer's update of what a position holds: a
cross-attention layer gives half of the target's positions what W mixes of the source's,

    C <- 1/2 C + 1/2 W E,    D <- 1/2 D

where E is the encoder's rollout, C what the target holds of the source and D what it holds of
itself. Each row of [C D] sums to 1, as those of R. From kept edges alone each entry is at most the
true one, and `rest` says what its row lacks.

Layers that are not in the trace, and those over other positions, are passed over, with a warning;
`passed_over` says which. Two layers that read their input in parts, as windows of an image, are not
multiplied: they may be other parts.

Source: Abnar and Zuidema 2020, section 3, equation 1; theirs reads one sequence.

A row is one product with a transposed matrix a layer, from the last layer down; a column one
product a layer, from the first up: exact at any length, in memory linear in it.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headloom.analysis.arguments import places_of, real_number, trace_of
from headloom.analysis.weights import dense_average, mean_over_heads, weights_of
from headloom.errors import InputError
from headloom.formats.trace import TraceData, TraceLayer


@dataclass(frozen=True, eq=False)
class Rollout:
    """Rows or columns of a rollout.

    values: (rows, keys), or (queries, columns).
    rest: (rows,) or (queries,): what each row lacks of 1: it went along edges that were not kept,
    to sinks, or to rows that may look at no key.
    own: of rows, (rows,): what they hold of the sequence that they are in themselves, where they
    are of a target and the columns of its source; None: of columns, or of one sequence.
    """

    values: Tensor
    rest: Tensor
    own: Tensor | None = None


class Through(NamedTuple):
    """What a rollout or a flow goes through.

    layers; queries, keys: the sequences of its rows and its columns; sizes: the lengths of all
    sequences that take part.
    """

    layers: list[TraceLayer]
    queries: str
    keys: str
    sizes: dict[str, int]


def rollout(
    trace: TraceData, *, kind: str | None = None, exact: bool | None = None, residual: float = 0.5
) -> Tensor:
    """The whole rollout of a trace, (queries, keys).

    Args:
        trace: of any model.
        kind: "encoder" or "decoder": the product over the layers of that kind; "cross": what the
            target holds of the source, through all layers. None: "cross" where such layers look
            from the sequence of the last layer, else the kind of the last layer.
        exact: see `headloom.analysis.weights.weights_of`.
        residual: what comes past a layer, 0 to 1.

    Returns: (queries, keys), float32: row i is what position i holds of each input position.

    Raises: InputError: no such layers; no exact weights. A row or a column of a long one:
    `rollout_rows`, `rollout_columns`.

    The time is that of a product of dense matrices a layer.
    """
    layers, queries, keys, sizes = chosen_layers_with_warning("rollout", trace, kind)
    residual = real_number("rollout", "residual", residual)
    held = {name: torch.zeros(size, sizes[keys]) for name, size in sizes.items()}
    held[keys] = torch.eye(sizes[keys])
    for layer in layers:
        weights = dense_average(weights_of(layer, exact), causal=layer.mask == "causal")
        passed = weights @ held[layer.keys_from]
        past = held[layer.queries_from]
        held[layer.queries_from] = passed.mul_(1 - residual).add_(past, alpha=residual)
    return held[queries].clamp_(max=1)


def rollout_rows(
    trace: TraceData,
    positions: int | Sequence[int],
    *,
    kind: str | None = None,
    exact: bool | None = None,
    residual: float = 0.5,
) -> Rollout:
    """Some rows of the rollout: what these positions of the last layer hold of the input.

    Takes what `rollout` takes, and the positions. One product with a transposed matrix a layer.

    Returns: values (rows, keys) and rest (rows,).
    """
    layers, queries, keys, sizes = chosen_layers_with_warning("rollout_rows", trace, kind)
    residual = real_number("rollout", "residual", residual)
    wanted = places_of("rollout", "position", positions, sizes[queries])
    held: dict[str, NDArray[np.floating]] = {
        name: np.zeros((size, len(wanted)), np.float32) for name, size in sizes.items()
    }
    held[queries][wanted, np.arange(len(wanted))] = 1
    for layer in reversed(layers):
        above = held[layer.queries_from]
        passed = mean_over_heads(weights_of(layer, exact)).T @ above
        held[layer.queries_from] = residual * above
        held[layer.keys_from] = held[layer.keys_from] + (1 - residual) * passed
    values = torch.from_numpy(held[keys]).T.contiguous().clamp_(max=1)
    own = None if queries == keys else torch.from_numpy(held[queries].sum(0))
    rest = 1 - values.sum(-1) - (0 if own is None else own)
    return Rollout(values, rest.clamp(min=0), own)


def rollout_columns(
    trace: TraceData,
    positions: int | Sequence[int],
    *,
    kind: str | None = None,
    exact: bool | None = None,
    residual: float = 0.5,
) -> Rollout:
    """Some columns of the rollout: where these positions of the input went.

    Takes what `rollout` takes, and the positions. One product a layer.

    Returns: values (queries, columns) and rest (queries,).
    """
    layers, queries, keys, sizes = chosen_layers_with_warning("rollout_columns", trace, kind)
    residual = real_number("rollout", "residual", residual)
    wanted = places_of("rollout", "position", positions, sizes[keys])
    # The last column is what each position holds in all.
    held: dict[str, NDArray[np.floating]] = {
        name: np.zeros((size, len(wanted) + 1), np.float32) for name, size in sizes.items()
    }
    held[keys][wanted, np.arange(len(wanted))] = 1
    for of_sequence in held.values():
        of_sequence[:, -1] = 1
    for layer in layers:
        passed = mean_over_heads(weights_of(layer, exact)) @ held[layer.keys_from]
        past = held[layer.queries_from]
        held[layer.queries_from] = residual * past + (1 - residual) * passed
    values = torch.from_numpy(held[queries])
    return Rollout(values[:, :-1].clamp(max=1), (1 - values[:, -1]).clamp(min=0))


def chosen_layers(trace: TraceData, kind: str | None) -> Through:
    """The layers of a kind, the sequences at both ends, and the lengths of all that take part.

    Raises: InputError: there are none; layers that may have cut what they read into other parts, or
    two sequences that look at each other.
    """
    trace = trace_of("rollout", trace)
    if kind is None and trace.layers:
        last = trace.layers[-1]
        crossing = {layer.queries_from for layer in trace.layers if layer.kind == "cross"}
        kind = "cross" if last.queries_from in crossing else last.kind
    ending = next((layer for layer in reversed(trace.layers) if layer.kind == kind), None)
    if ending is None:
        there = ", ".join(sorted({layer.kind for layer in trace.layers})) or "no layer at all"
        raise InputError(f"rollout: the trace has no {kind} layer; it has {there}.")
    # A model of text and images has layers of one kind for both: those that lead to the end.
    reached, layers = {ending.queries_from}, list[TraceLayer]()
    for layer in reversed(trace.layers):
        if layer.queries_from in reached and kind in ("cross", layer.kind):
            reached |= {layer.keys_from} if kind == "cross" else set()
            layers.insert(0, layer)
    sizes: dict[str, int] = {}
    for layer in layers:
        own, other = layer.queries_from, layer.keys_from
        sizes[own], sizes[other] = layer.shape[1:]
        over = [x.name for x in layers if other in (x.queries_from, x.keys_from)]
        if len(over) > 1 and "parts" in trace.positions.get(other, {}):
            raise InputError(
                f"{len(over)} layers read {other} in parts, as windows of an image, and nothing "
                f"says that they cut it alike: {over[0]} ... {over[-1]}. Trace one of them alone, "
                f"by layers=[{over[0]!r}]."
            )
        if own != other and any((x.keys_from, x.queries_from) == (own, other) for x in layers):
            raise InputError(
                f"Layers look from {own} at {other}, and back: nothing says which is updated "
                'first. Trace some of them alone, by layers=, or take kind="encoder".'
            )
    return Through(layers, ending.queries_from, ending.keys_from, sizes)


def chosen_layers_with_warning(operation: str, trace: TraceData, kind: str | None) -> Through:
    """The chosen layers, with a warning of those that are passed over."""
    if (left := passed_over(trace, kind)) is not None:
        warnings.warn(f"{operation}: {left}", stacklevel=3)
    return chosen_layers(trace, kind)


def passed_over(trace: TraceData, kind: str | None = None) -> str | None:
    """What a rollout or a flow leaves out, in words; None: nothing that is known.

    Layers that are not in the trace, and those over other sequences: of all kinds if none is asked.
    """
    layers, queries, *_ = chosen_layers(trace, kind)
    left = [layer for layer in trace.layers if layer not in layers]
    names = {
        "that ran and are not in the trace": [entry["name"] for entry in trace.not_traced],
        "of another kind": [layer.name for layer in left if layer.queries_from == queries],
        f"over other positions than {queries}": [
            layer.name
            for layer in left
            if layer.queries_from != queries and kind in (None, "cross", layer.kind)
        ],
    }
    parts = [
        f"{len(some)} {what}: {', '.join(some[:3])}{f' and {len(some) - 3} more' * (len(some) > 3)}"
        for what, some in names.items()
        if some
    ]
    plural = "s" * (len(layers) != 1)
    through = f"Through {len(layers)} layer{plural}, not through {' and '.join(parts)}."
    return through if parts else None
