"""Attention over the neighbours of a graph, by the kernels or by torch; its weights as a graph.

    output_i = sum_j w_ij v_j,    w_ij = exp(s_ij) / sum_{k in N(i)} exp(s_ik)

Source: Velickovic et al. 2018, equations 2 to 4.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headloom.errors import BackendError
from headloom.mechanism.graph import AttentionGraph
from headloom.mechanism.neighbourhood import native
from headloom.mechanism.neighbourhood.by_torch import dropped, raw_scores, weights_of
from headloom.mechanism.neighbourhood.by_torch import output as by_torch
from headloom.mechanism.neighbourhood.call import NeighbourCall
from headloom.mechanism.received import of_edges

__all__ = ["neighbour_attention", "neighbour_graph", "neighbour_weights"]


def neighbour_attention(call: NeighbourCall, backend: str | None = None) -> Tensor:
    """The weighted sums, (targets, heads, value_depth); 0 for a node without neighbours.

    Differentiable as often as asked. On the CPU in float32, and in half precision, which is
    computed in float32, a fused kernel; elsewhere torch, which forms a row of values for each edge.

    backend: "native" or "torch"; None for the kernels where they serve.
    Raises: BackendError: backend="native", and the kernels do not serve the call.
    """
    call, dtype = _in_float(call)
    reason = native.why_not_served(call)
    if backend == "native" and reason is not None:
        raise BackendError(
            f'attention over neighbours: backend="native" does not serve this call: {reason}. Use '
            'backend="torch", or None for whichever serves it.'
        )
    serves = reason is None and backend != "torch"
    return (native.output(call) if serves else by_torch(call)).to(dtype)


def neighbour_weights(call: NeighbourCall) -> Tensor:
    """The weight of every edge, (edges, heads), in the order of the caller's; dropout applied."""
    call, dtype = _in_float(call)
    weights, _ = weights_of(call, raw_scores(call))
    return call.edges.by_number(dropped(call, weights)).to(dtype)


def neighbour_graph(
    call: NeighbourCall, k: int | None = None, received: int | None = None
) -> AttentionGraph:
    """The attention graph of a call: of each query the k strongest edges, before dropout.

    k: None for as many as the node with the most neighbours has, which keeps every edge. Parallel
        edges are edges of their own.
    received: whether to sum what each node receives; see AttentionCall.received.
    Returns: (heads, targets, k); a weight is differentiable as often as asked.
    """
    call, dtype = _in_float(call)
    edges = call.edges
    wanted = torch.is_grad_enabled() and any(
        tensor is not None and tensor.requires_grad for tensor in call.tensors
    )
    if not wanted and native.why_not_served(call) is None:
        scores = native.output_and_scores(call)[1]
    else:
        scores = raw_scores(call)
    weights, lse = weights_of(call, scores)
    rows, (targets, heads) = edges.rows, lse.shape
    seen = scores != -torch.inf
    # (From 0, so that the entropy of a row with one neighbour is 0 and not -0.)
    log_weights = (scores - lse[rows]).masked_fill(~seen, 0)
    entropy = lse.new_zeros(lse.shape).index_add(0, rows, -(weights * log_weights))
    count = lse.new_zeros(lse.shape, dtype=torch.int64).index_add(0, rows, seen.long())
    degree = int(edges.row_starts.diff().max()) if targets else 0
    k = degree if k is None else k
    places = _places(call, scores, seen, k)
    kept = places >= 0
    at, head = places.clamp(min=0), torch.arange(heads, device=places.device)[:, None, None]

    def of_places(numbers: Tensor, empty: float) -> Tensor:
        if not len(edges):  # one that is not kept: there is nothing to choose from
            numbers = torch.cat((numbers, numbers.new_full((1, heads), empty)))
        return numbers[at, head].masked_fill(~kept, empty)

    columns = edges.columns[:, None].expand(-1, heads)
    kept_weights = of_places(weights, 0)
    rest = (1 - kept_weights.sum(-1)).clamp(min=0).masked_fill(count.T == 0, 0)
    everything = kept.sum(-1) == count.T
    return AttentionGraph(
        keys=of_places(columns, -1),
        scores=of_places(scores, -torch.inf),
        weights=kept_weights.to(dtype),
        lse=lse.T,
        entropy=entropy.T,
        rest=rest.masked_fill(everything, 0),
        count=count.T.int(),
        length=edges.sources,
        **of_edges(weights, rows, edges.columns, (targets, edges.sources), received)._asdict(),
    )


def _places(call: NeighbourCall, scores: Tensor, seen: Tensor, k: int) -> Tensor:
    """The places of the k strongest edges of each row, strongest first, -1 past the last.

    Of equal scores, the lower key comes first. Returns: (heads, targets, k).
    """
    edges = call.edges
    with torch.no_grad():
        by_key = torch.sort(edges.columns, stable=True).indices
        found = []
        for head in range(scores.shape[1]):
            order = by_key[torch.sort(scores[by_key, head], descending=True, stable=True).indices]
            order = order[torch.sort(edges.rows[order], stable=True).indices]
            rows = edges.rows[order]
            rank = torch.arange(len(order), device=rows.device) - edges.row_starts[rows]
            strong = (rank < k) & seen[order, head]
            table = torch.full((edges.targets, k), -1, device=rows.device)
            table[rows[strong], rank[strong]] = order[strong]
            found.append(table)
        return torch.stack(found)


def _in_float(call: NeighbourCall) -> tuple[NeighbourCall, torch.dtype]:
    """Half precision in float32, and the type that results are given in."""
    dtype = call.values.dtype
    if dtype not in (torch.float16, torch.bfloat16):
        return call, dtype
    floats = {
        name: None if tensor is None else tensor.float()
        for name, tensor in zip(call.names, call.tensors, strict=True)
    }
    return call.with_tensors(tuple(floats.values())), dtype
