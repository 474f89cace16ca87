"""Rollout: the share of each input position in each output position, through all layers.

    R = (r W_L + (1 - r) I) ... (r W_1 + (1 - r) I),    r = 1/2

W_l: the weights of layer l averaged over heads; rows are positions of the last layer, columns of
the input. Half of a position's content bypasses the layer, by the residual connection.

Between two sequences, each layer updates the content of its positions in the same way: a
cross-attention layer replaces half of the target's content by W times the source's,

    C <- 1/2 C + 1/2 W E,    D <- 1/2 D

where E is the encoder's rollout, C the target's share of the source and D its share of itself. Each
row of [C D] sums to 1, as in R. With kept edges only, entries are lower bounds, and `rest` is the
missing mass of each row.

Layers that are not in the trace, or over other positions, are skipped with a warning
(`passed_over`). Two layers that read their input in parts, such as windows of an image, are not
multiplied, as their parts may differ.

Source: Abnar and Zuidema 2020, section 3, equation 1, for one sequence.

A row takes one product with a transposed matrix for each layer, from the last layer down; a column
one product for each layer, from the first up: exact at any length, in memory linear in it.
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
    rest: (rows,) or (queries,): missing mass of each row: on edges that were not kept, on sinks, or
    in rows without visible keys.
    own: of rows, (rows,): their share of their own sequence, for rows of a target and columns of
    its source; None: of columns, or of one sequence.
    """

    values: Tensor
    rest: Tensor
    own: Tensor | None = None


class Through(NamedTuple):
    """Layers and sequences of a rollout or a flow.

    layers; queries, keys: the sequences of its rows and its columns; sizes: lengths of all
    sequences on the way.
    """

    layers: list[TraceLayer]
    queries: str
    keys: str
    sizes: dict[str, int]


def rollout(
    trace: TraceData, *, kind: str | None = None, exact: bool | None = None, residual: float = 0.5
) -> Tensor:
    """Return the whole rollout of a trace, (queries, keys).

    Args:
        trace: of any model.
        kind: "encoder" or "decoder": the product over the layers of that kind; "cross": the
            target's share of the source, through all layers. None: "cross" if the last layer's
            sequence has cross-attention, otherwise the kind of the last layer.
        exact: see `headloom.analysis.weights.weights_of`.
        residual: share that bypasses a layer, 0 to 1.

    Returns: (queries, keys), float32: row i is the share of each input position in position i.

    Raises: InputError: no such layers; no exact weights.

    It takes a product of dense matrices for each layer; for long texts take `rollout_rows` or
    `rollout_columns`.
    """
    layers, queries, keys, sizes = chosen_layers_with_warning("rollout", trace, kind)
    residual = real_number("rollout", "residual", residual)
    shares = {name: torch.zeros(size, sizes[keys]) for name, size in sizes.items()}
    shares[keys] = torch.eye(sizes[keys])
    for layer in layers:
        weights = dense_average(weights_of(layer, exact), causal=layer.mask == "causal")
        passed = weights @ shares[layer.keys_from]
        past = shares[layer.queries_from]
        shares[layer.queries_from] = passed.mul_(1 - residual).add_(past, alpha=residual)
    return shares[queries].clamp_(max=1)


def rollout_rows(
    trace: TraceData,
    positions: int | Sequence[int],
    *,
    kind: str | None = None,
    exact: bool | None = None,
    residual: float = 0.5,
) -> Rollout:
    """Return some rows of the rollout: the shares of the input in positions of the last layer.

    Takes the arguments of `rollout`, and the positions. One transposed product for each layer.

    Returns: values (rows, keys) and rest (rows,).
    """
    layers, queries, keys, sizes = chosen_layers_with_warning("rollout_rows", trace, kind)
    residual = real_number("rollout", "residual", residual)
    places = places_of("rollout", "position", positions, sizes[queries])
    shares: dict[str, NDArray[np.floating]] = {
        name: np.zeros((size, len(places)), np.float32) for name, size in sizes.items()
    }
    shares[queries][places, np.arange(len(places))] = 1
    for layer in reversed(layers):
        above = shares[layer.queries_from]
        passed = mean_over_heads(weights_of(layer, exact)).T @ above
        shares[layer.queries_from] = residual * above
        shares[layer.keys_from] = shares[layer.keys_from] + (1 - residual) * passed
    values = torch.from_numpy(shares[keys]).T.contiguous().clamp_(max=1)
    own_share = None if queries == keys else torch.from_numpy(shares[queries].sum(0))
    rest = 1 - values.sum(-1) - (0 if own_share is None else own_share)
    return Rollout(values, rest.clamp(min=0), own_share)


def rollout_columns(
    trace: TraceData,
    positions: int | Sequence[int],
    *,
    kind: str | None = None,
    exact: bool | None = None,
    residual: float = 0.5,
) -> Rollout:
    """Return some columns of the rollout: the shares of some input positions in all outputs.

    Takes the arguments of `rollout`, and the positions. One product for each layer.

    Returns: values (queries, columns) and rest (queries,).
    """
    layers, queries, keys, sizes = chosen_layers_with_warning("rollout_columns", trace, kind)
    residual = real_number("rollout", "residual", residual)
    places = places_of("rollout", "position", positions, sizes[keys])
    # The last column is the total of each position.
    shares: dict[str, NDArray[np.floating]] = {
        name: np.zeros((size, len(places) + 1), np.float32) for name, size in sizes.items()
    }
    shares[keys][places, np.arange(len(places))] = 1
    for of_sequence in shares.values():
        of_sequence[:, -1] = 1
    for layer in layers:
        passed = mean_over_heads(weights_of(layer, exact)) @ shares[layer.keys_from]
        past = shares[layer.queries_from]
        shares[layer.queries_from] = residual * past + (1 - residual) * passed
    values = torch.from_numpy(shares[queries])
    return Rollout(values[:, :-1].clamp(max=1), (1 - values[:, -1]).clamp(min=0))


def chosen_layers(trace: TraceData, kind: str | None) -> Through:
    """Return the layers of a kind, the sequences at both ends, and the lengths of all on the way.

    Raises: InputError: no such layers; layers whose parts may differ, or two sequences that attend
    to each other.
    """
    trace = trace_of("rollout", trace)
    if kind is None and trace.layers:
        last = trace.layers[-1]
        crossing = {layer.queries_from for layer in trace.layers if layer.kind == "cross"}
        kind = "cross" if last.queries_from in crossing else last.kind
    ending = next((layer for layer in reversed(trace.layers) if layer.kind == kind), None)
    if ending is None:
        kinds = ", ".join(sorted({layer.kind for layer in trace.layers})) or "no layer at all"
        raise InputError(f"rollout: the trace has no {kind} layer; it has {kinds}.")
    # A model of text and images has layers of one kind for both: take those that lead to the end.
    reached, layers = {ending.queries_from}, list[TraceLayer]()
    for layer in reversed(trace.layers):
        if layer.queries_from in reached and kind in ("cross", layer.kind):
            reached |= {layer.keys_from} if kind == "cross" else set()
            layers.insert(0, layer)
    sizes: dict[str, int] = {}
    for layer in layers:
        queries, keys = layer.queries_from, layer.keys_from
        sizes[queries], sizes[keys] = layer.shape[1:]
        over = [x.name for x in layers if keys in (x.queries_from, x.keys_from)]
        if len(over) > 1 and "parts" in trace.positions.get(keys, {}):
            raise InputError(
                f"{len(over)} layers read {keys} in parts, such as windows of an image, and their "
                f"parts may differ: {over[0]} ... {over[-1]}. Trace one of them alone, by "
                f"layers=[{over[0]!r}]."
            )
        if queries != keys and any(
            (x.keys_from, x.queries_from) == (queries, keys) for x in layers
        ):
            raise InputError(
                f"Layers attend from {queries} to {keys}, and back: the order of their updates is "
                'unknown. Trace some of them alone, by layers=, or take kind="encoder".'
            )
    return Through(layers, ending.queries_from, ending.keys_from, sizes)


def chosen_layers_with_warning(operation: str, trace: TraceData, kind: str | None) -> Through:
    """Return the chosen layers, with a warning of skipped ones."""
    if (left := passed_over(trace, kind)) is not None:
        warnings.warn(f"{operation}: {left}", stacklevel=3)
    return chosen_layers(trace, kind)


def passed_over(trace: TraceData, kind: str | None = None) -> str | None:
    """Return a sentence about the layers that a rollout or a flow skips; None: no known one.

    Layers that are not in the trace, or over other sequences: of all kinds if `kind` is None.
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
