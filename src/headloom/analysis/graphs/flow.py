"""Attention flow: how much can flow from an output to an input position, through all layers.

    the largest flow from (L, i) to (0, j) in the network with a node for each position of each
    layer; the edge from (l, i) to (l - 1, j) can carry 1/2 w_ij, and 1/2 more where i = j

w: the weights of layer l averaged over heads; the residual connection carries the other half. Where
rollout multiplies along paths, flow lets each edge be as wide as it is, so that the narrowest ones
decide. Of an encoder-decoder, a cross-attention layer leads from the target to the source as it is
then, as in `headloom.analysis.graphs.rollout`. From kept edges it is the flow along these: at most
the true one.

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

#: What a capacity of 1 is, as a whole number.
ONE = 2**30

#: Cells of a layer up to which all of its weights are taken where nothing else is asked for.
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
    """The largest flow from a position of the last layer to each of some input positions.

    Args:
        trace: of any model.
        position: of the last layer; targets: of the input. Negative ones count from the end.
        kind: as in `headloom.analysis.graphs.rollout.rollout`.
        exact: as there; but None is all weights of layers of up to 2^22 cells alone, since every
            weight is an edge of the network.
        residual: what the residual connection carries, 0 to 1.

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
        own = np.arange(sizes[layer.queries_from])
        past = nodes + own, first[layer.queries_from] + own, np.full(len(own), residual)
        along = nodes + edges.row, first[layer.keys_from] + edges.col, (1 - residual) * edges.data
        parts += [past, along]
        first[layer.queries_from] = nodes
        nodes += len(own)
    rows, columns, capacity = (np.concatenate(part) for part in zip(*parts, strict=True))
    whole = np.rint(np.minimum(capacity, 1) * ONE).astype(np.int64)
    # Two edges between the same nodes, a weight and the residual, become one.
    network = scipy.sparse.csr_array((whole, (rows, columns)), shape=(nodes, nodes))
    network.sum_duplicates()
    network.eliminate_zeros()
    flows = [_largest(network, first[queries] + start, sink) for sink in sinks]
    return torch.tensor(flows, dtype=torch.float64).clamp(max=1)


def flow_weights(layer: TraceLayer, exact: bool | None) -> Source:
    """The weights of a layer that flow along, of which None is as said above."""
    cheap = math.prod(layer.shape) <= CHEAP_CELLS
    return weights_of(layer, exact if exact is not None or cheap else False)


def _largest(network: scipy.sparse.csr_array, start: int, sink: int) -> float:
    """The largest flow through the nodes that lie on a way from the start to the sink."""
    after = breadth_first_order(network, start, return_predecessors=False)
    before = breadth_first_order(network.T.tocsr(), sink, return_predecessors=False)
    between = np.intersect1d(after, before)
    if start not in between or sink not in between:
        return 0.0
    part = network[between][:, between].astype(np.int32)
    ends = (int(np.searchsorted(between, end)) for end in (start, sink))
    return float(maximum_flow(part, *ends, method="dinic").flow_value) / ONE
