"""Attention flow: the largest flow from an output to an input position, through all layers.

    the largest flow from (L, i) to (0, j) in the network with a node for each position of each
    layer; the edge from (l, i) to (l - 1, j) can carry 1/2 w_ij, and 1/2 more where i = j

w: the weights of layer l averaged over heads; the residual connection carries the other half.
Rollout multiplies weights along paths; flow treats them as capacities, so that the narrowest edges
decide. In an encoder-decoder, a cross-attention layer leads from the target to the source at that
layer, as in `headloom.analysis.graphs.rollout`. With kept edges only, it is the flow along these: a
lower bound.

Capacities are whole numbers of 2^-30.

Source: Abnar and Zuidema 2020, section 3. The largest flows are SciPy's, by Dinic's algorithm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import scipy.sparse
import torch
from scipy.sparse.csgraph import breadth_first_order, maximum_flow
from torch import Tensor

from headloom.analysis.arguments import places_of, real_number
from headloom.analysis.graphs.rollout import chosen_layers_with_warning
from headloom.analysis.weights import Source, average_edges, dense_average, weights_of
from headloom.formats.trace import TraceData, TraceLayer
from headloom.mechanism.graph import AttentionGraph
from headloom.mechanism.shapes import place_of

#: A capacity of 1, as a whole number.
ONE = 2**30

#: Cells of a layer up to which all of its weights are used by default.
CHEAP_CELLS = 2**22


def attention_flow(
    trace: TraceData,
    position: int,
    targets: int | Sequence[int],
    *,
    kind: str | None = None,
    exact: bool | None = None,
    residual: float = 0.5,
) -> Tensor:
    """Return the largest flow from a position of the last layer to each of some input positions.

    Args:
        trace: of any model.
        position: of the last layer; negative ones count from the end.
        targets: positions of the input.
        kind: as in `headloom.analysis.graphs.rollout.rollout`.
        exact: as in `rollout`; but None means all weights only of layers of up to 2^22 cells, since
            every weight is an edge of the network.
        residual: share of the residual connection, 0 to 1.

    Returns: (targets,), float64, from 0 to 1.

    Raises: InputError: no such position or layer; no exact weights.
    """
    layers, queries, keys, sizes = chosen_layers_with_warning("flow", trace, kind)
    residual = real_number("flow", "residual", residual)
    start = place_of("sequence", "flow", "position", position, sizes[queries])
    ends = places_of("flow", "input position", targets, sizes[keys])
    # A sequence has new nodes whenever a layer updates it.
    first = dict(zip(sizes, np.cumsum([0, *sizes.values()]).tolist(), strict=False))
    sinks = [first[keys] + end for end in ends]
    nodes = sum(sizes.values())
    parts = []
    for layer in layers:
        source = flow_weights(layer, exact)
        if isinstance(source, AttentionGraph):
            edges = average_edges(source).tocoo()
        else:
            cells = dense_average(source, causal=layer.mask == "causal")
            edges = scipy.sparse.coo_array(cells.numpy())
        rows = np.arange(sizes[layer.queries_from])
        past = nodes + rows, first[layer.queries_from] + rows, np.full(len(rows), residual)
        along = nodes + edges.row, first[layer.keys_from] + edges.col, (1 - residual) * edges.data
        parts += [past, along]
        first[layer.queries_from] = nodes
        nodes += len(rows)
    starts, ends_of, capacity = (np.concatenate(part) for part in zip(*parts, strict=True))
    whole = np.rint(np.minimum(capacity, 1) * ONE).astype(np.int64)
    # Two edges between the same nodes, a weight and the residual, become one.
    network = scipy.sparse.csr_array((whole, (starts, ends_of)), shape=(nodes, nodes))
    network.sum_duplicates()
    network.eliminate_zeros()
    flows = [_largest(network, first[queries] + start, sink) for sink in sinks]
    return torch.tensor(flows, dtype=torch.float64).clamp(max=1)


def flow_weights(layer: TraceLayer, exact: bool | None) -> Source:
    """Return the weights of a layer for a flow; exact: as in `attention_flow`."""
    cheap = math.prod(layer.shape) <= CHEAP_CELLS
    return weights_of(layer, exact if exact is not None or cheap else False)


def _largest(network: scipy.sparse.csr_array, start: int, sink: int) -> float:
    """Return the largest flow through the nodes on a path from the start to the sink."""
    after = breadth_first_order(network, start, return_predecessors=False)
    before = breadth_first_order(network.T.tocsr(), sink, return_predecessors=False)
    between = np.intersect1d(after, before)
    if start not in between or sink not in between:
        return 0.0
    part = network[between][:, between].astype(np.int32)
    ends = (int(np.searchsorted(between, end)) for end in (start, sink))
    return float(maximum_flow(part, *ends, method="dinic").flow_value) / ONE
