"""Attention flow: how much can flow from an output to an input position, through all layers.

    the largest flow from (L, i) to (0, j) in the network with a node for each position of each
    layer; the edge from (l, i) to (l - 1, j) can carry 1/2 w_ij, and 1/2 more where i = j

w: the weights of layer l averaged over heads; the residual connection carries the other half. Where
rollout multiplies along paths, flow lets each edge be as wide as it is, so that the narrowest ones
decide. Of an encoder-decoder, a cross-attention layer leads from the target to the source as it is
then, as in `headloom.analysis.graphs.rollout`.

From kept edges the flow lies between that of two networks. In the lower one there are the kept
edges alone. In the upper one, each layer has one more node: from position i it can take the mass
that row i left out, and to position j give what j can have been given, at most the largest weight
that each row that left it out can have left out. Every flow of the true network passes through it.

Capacities are whole numbers of 2^-30, rounded down in the lower network and up in the upper one,
after what float32 rounds of a weight was taken off there and added here: so the interval holds the
true flow even so.

Source: Abnar and Zuidema 2020, section 3. The largest flows are SciPy's, by Dinic's algorithm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray
from scipy.sparse.csgraph import maximum_flow

from headloom.analysis.arguments import optional_whole, places_of, real_number
from headloom.analysis.graphs.head_average import average_edges, rounding
from headloom.analysis.graphs.rollout import chosen_layers, of_half_precision
from headloom.analysis.heads.pattern_mass import only_edges_exact
from headloom.analysis.interval import Interval, check_numbers, keeps_all, left_out, to_others
from headloom.errors import InputError
from headloom.formats.trace import TraceData, TraceLayer
from headloom.mechanism.shapes import check_flag, place_of

__all__ = ["attention_flow", "of_rounded"]

#: What a capacity of 1 is, as a whole number.
ONE = 2**30

#: By what share of itself float32 rounds a mean over heads.
_MEAN = 2.0**-22

#: Cells of a layer up to which all of its weights are taken.
CHEAP_CELLS = 2**22


def attention_flow(
    trace: TraceData,
    position: int,
    targets: int | Sequence[int],
    *,
    kind: str | None = None,
    exact: bool | None = None,
    residual: float = 0.5,
    edges: int | None = 32,
) -> Interval:
    """The largest flow from a position of the last layer to each of some input positions.

    Args:
        trace: of any model.
        position: of the last layer; targets: of the input. Negative ones count from the end.
        kind: as in `headloom.analysis.graphs.rollout.rollout`.
        exact: True: from all weights; False: from the kept edges; None: from all where that is
            cheap.
        residual: what the residual connection carries, 0 to 1.
        edges: strongest edges of each averaged row that are taken one by one; the others count as
            left out. None: all that there are. More take longer and narrow the interval.

    Returns: (targets,), from 0 to 1.

    Raises: InputError: no such position or layer; no exact weights.
    """
    layers, queries, keys, sizes = chosen_layers(trace, kind, "flow")
    check_flag("flow", "exact", exact, optional=True)
    residual = real_number("flow", "residual", residual)
    edges = optional_whole("flow", "edges", edges, 1)
    start = place_of("sequence", "flow", "position", position, sizes[queries])
    ends = places_of("flow", "input position", targets, sizes[keys])
    steps = [_step(layer, exact, edges) for layer in layers]
    values = np.array(
        [
            [_largest(steps, sizes, (queries, start), (keys, end), residual, upper) for end in ends]
            for upper in (False, True)
        ]
    ).reshape(2, -1)
    lower, upper_ones = torch.from_numpy(values)
    # Kept edges that were given in half precision may sum to more than 1, a flow is never more.
    lower, upper_ones = lower.clamp(max=1), upper_ones.clamp(max=1)
    return Interval(lower, torch.maximum(upper_ones, lower))


@dataclass(frozen=True, eq=False)
class _Step:
    """The edges of one layer, averaged over heads, and what it left out.

    missing: of each row, (queries,); received: what each key can have got of it, (keys,).
    rounding: by what share of themselves all of these are rounded.
    """

    queries: str
    keys: str
    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    weights: NDArray[np.float64]
    missing: NDArray[np.float64]
    received: NDArray[np.float64]
    rounding: float


def of_rounded(trace: TraceData, kind: str | None = None, exact: bool | None = None) -> str | None:
    """That the flow is that of queries and keys in half precision, in words; None: it is not.

    Takes what `attention_flow` takes.
    """
    layers, *_ = chosen_layers(trace, kind)
    return of_half_precision(layer for layer in layers if _from_all(layer, exact))


def _from_all(layer: TraceLayer, exact: bool | None) -> bool:
    """Whether all weights of a layer are taken."""
    if exact is None:
        return math.prod(layer.shape) <= CHEAP_CELLS and layer.matrix is not None
    return exact


def _step(layer: TraceLayer, exact: bool | None, edges: int | None) -> _Step:
    _, queries, keys = layer.shape
    graph = layer.graph
    exact = _from_all(layer, exact)
    if exact and not only_edges_exact(layer) and layer.normalised_matrix is not None:
        graph = layer.normalised_matrix.top(keys)
    elif exact and not keeps_all(graph):
        raise InputError(
            f"flow: layer {layer.name} has no exact weights: {layer.no_matrix}. Take the kept "
            "edges, exact=False."
        )
    check_numbers(graph, f"flow: layer {layer.name}")
    averaged = average_edges(graph)
    mass, largest = (part.double() for part in left_out(graph))
    missing, received = mass.mean(0).numpy(), to_others(graph, largest).mean(0).numpy()
    rows = np.repeat(np.arange(queries), np.diff(averaged.indptr))
    columns, weights = averaged.indices.astype(np.int64), averaged.data.astype(np.float64)
    if edges is not None and not exact:
        order = np.lexsort((-weights, rows))
        place = np.arange(len(rows)) - averaged.indptr[rows]
        kept, others = order[place < edges], order[place >= edges]
        missing = missing + np.bincount(rows[others], weights[others], queries)
        received = received + np.bincount(columns[others], weights[others], keys)
        rows, columns, weights = rows[kept], columns[kept], weights[kept]
    rounded = _MEAN + float(rounding(graph.lse).max()) if graph.lse.numel() else 0.0
    return _Step(
        layer.queries_from, layer.keys_from, rows, columns, weights, missing, received, rounded
    )


def _largest(
    steps: Sequence[_Step],
    sizes: dict[str, int],
    source: tuple[str, int],
    target: tuple[str, int],
    residual: float,
    upper: bool,
) -> float:
    """The largest flow in the lower or the upper network."""
    # A sequence has new nodes whenever a layer updates it.
    first = dict(zip(sizes, np.cumsum([0, *sizes.values()][:-1]).tolist(), strict=True))
    sink = first[target[0]] + target[1]
    nodes = sum(sizes.values())
    parts: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]] = []
    for step in steps:
        size, now = sizes[step.queries], nodes
        nodes += size
        everyone = np.arange(size)
        passes = np.full(size, residual)
        parts.append((now + everyone, first[step.queries] + everyone, passes))
        share = (1 - residual) * (1 + step.rounding if upper else 1 - step.rounding)
        parts.append((now + step.rows, first[step.keys] + step.columns, share * step.weights))
        if upper and step.missing.any():
            between = nodes
            nodes += 1
            parts.append((now + everyone, np.full(size, between), share * step.missing))
            others = np.arange(sizes[step.keys])
            parts.append(
                (np.full(len(others), between), first[step.keys] + others, share * step.received)
            )
        first[step.queries] = now
    start = first[source[0]] + source[1]
    rows, columns, capacity = (np.concatenate(part) for part in zip(*parts, strict=True))
    # What leads out of the source, and into the sink, is all that matters there.
    useful = _useful(rows, columns, capacity, nodes, start, sink)
    rows, columns, capacity = rows[useful], columns[useful], capacity[useful]
    scaled = np.minimum(capacity, 1) * ONE
    whole = (np.ceil(scaled) if upper else np.floor(scaled)).astype(np.int64)
    # Two edges between the same nodes, a weight and the residual, become one.
    network = scipy.sparse.csr_array((whole, (rows, columns)), shape=(nodes, nodes))
    network.sum_duplicates()
    network.data = np.minimum(network.data, np.iinfo(np.int32).max // 2)
    flow = maximum_flow(network.astype(np.int32), start, sink, method="dinic").flow_value
    return float(flow) / ONE


def _useful(
    rows: NDArray[np.int64],
    columns: NDArray[np.int64],
    capacity: NDArray[np.float64],
    nodes: int,
    start: int,
    sink: int,
) -> NDArray[np.bool_]:
    """The edges that lie on a way from the source to the sink."""
    open_edges = capacity > 0
    forward = scipy.sparse.csr_array(
        (np.ones(int(open_edges.sum()), np.int8), (rows[open_edges], columns[open_edges])),
        shape=(nodes, nodes),
    )
    reached = scipy.sparse.csgraph.breadth_first_order(forward, start, return_predecessors=False)
    reaching = scipy.sparse.csgraph.breadth_first_order(
        forward.T.tocsr(), sink, return_predecessors=False
    )
    after, before = np.zeros((2, nodes), bool)
    after[reached], before[reaching] = True, True
    return open_edges & after[rows] & before[columns]
