"""Attention over the neighbours of a graph, by kernels or by torch, and its attention graph.

    output_i = sum_j w_ij v_j,    w_ij = exp(s_ij) / sum_{k in N(i)} exp(s_ik)

Source: Velickovic et al. 2018, equations 2 to 4.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headloom.mechanism.adjacency import Neighbours
from headloom.mechanism.backends import native_neighbours as native
from headloom.mechanism.backends.compiled import kernels, why_wrapped, without_autocast
from headloom.mechanism.call import NAMES, AttentionCall
from headloom.mechanism.graph import All, AttentionGraph, Top
from headloom.mechanism.neighbour_call import (
    Edges,
    NeighbourCall,
    NeighbourScore,
    dropped,
    raw_scores,
    weights_of,
)
from headloom.mechanism.neighbour_call import output as by_torch
from headloom.mechanism.parts import changed
from headloom.mechanism.received import of_edges
from headloom.mechanism.scores import (
    Bilinear,
    Dot,
    GraphAttention,
    GraphAttentionV2,
    ScaledDot,
    node_terms,
)
from headloom.mechanism.shapes import Output, repeat_kv_heads


def neighbour_attention(call: NeighbourCall) -> Tensor:
    """Return the weighted sums, (targets, heads, value_depth); 0 for a node without neighbours.

    Differentiable any number of times. On the CPU, float32 and half precision (computed in float32)
    use a fused kernel; otherwise torch forms a row of values for each edge.
    """
    call, dtype = _in_float(call)
    output = native.output if native.why_not_served(call) is None else by_torch
    return output(call).to(dtype)


def neighbour_weights(call: NeighbourCall) -> Tensor:
    """Return the weight of every edge, (edges, heads), in the caller's order, after dropout."""
    call, dtype = _in_float(call)
    weights, _ = weights_of(call, raw_scores(call))
    return call.edges.by_number(dropped(call, weights)).to(dtype)


def neighbour_graph(
    call: NeighbourCall, k: int | None = None, received: int | None = None
) -> AttentionGraph:
    """Return the attention graph of a call: the k strongest edges of each query, before dropout.

    k: None: all. received: see AttentionCall. Returns: (heads, targets, k), differentiable.
    """
    call, dtype = _in_float(call)
    edges = call.edges
    needs_grad = torch.is_grad_enabled() and call.learns
    by_kernel = not needs_grad and native.why_not_served(call) is None
    scores = native.scores_of(call) if by_kernel else raw_scores(call)
    weights, lse = weights_of(call, scores)
    rows, (targets, heads) = edges.rows, lse.shape
    visible = scores != -torch.inf
    # (From 0, so that the entropy of a row with one neighbour is 0 and not -0.)
    log_weights = (scores - lse[rows]).masked_fill(~visible, 0)
    entropy = lse.new_zeros(lse.shape).index_add(0, rows, -(weights * log_weights))
    count = lse.new_zeros(lse.shape, dtype=torch.int64).index_add(0, rows, visible.long())
    if k is None:
        k = int(edges.row_starts.diff().max()) if targets else 0
    places = _places(call, scores, visible, k)
    kept = places >= 0
    index, head = places.clamp(min=0), torch.arange(heads, device=places.device)[:, None, None]

    def select(numbers: Tensor, empty: float) -> Tensor:
        if not len(edges):  # one empty edge, since an index needs something to select from
            numbers = torch.cat((numbers, numbers.new_full((1, heads), empty)))
        return numbers[index, head].masked_fill(~kept, empty)

    columns = edges.columns[:, None].expand(-1, heads)
    kept_weights = select(weights, 0)
    rest = (1 - kept_weights.sum(-1)).clamp(min=0).masked_fill(count.T == 0, 0)
    all_kept = kept.sum(-1) == count.T
    return AttentionGraph(
        keys=select(columns, -1), scores=select(scores, -torch.inf), weights=kept_weights.to(dtype),
        lse=lse.T, entropy=entropy.T, rest=rest.masked_fill(all_kept, 0), count=count.T.int(),
        length=edges.sources,
        **of_edges(weights, rows, edges.columns, (targets, edges.sources), received)._asdict(),
    )  # fmt: skip


def _places(call: NeighbourCall, scores: Tensor, visible: Tensor, k: int) -> Tensor:
    """Return the places of the k strongest edges of each row, (heads, targets, k), padded by -1."""
    edges = call.edges
    with torch.no_grad():
        by_key = torch.sort(edges.columns, stable=True).indices
        tables = []
        for head in range(scores.shape[1]):
            order = by_key[torch.sort(scores[by_key, head], descending=True, stable=True).indices]
            order = order[torch.sort(edges.rows[order], stable=True).indices]
            rows = edges.rows[order]
            rank = torch.arange(len(order), device=rows.device) - edges.row_starts[rows]
            strong = (rank < k) & visible[order, head]
            table = torch.full((edges.targets, k), -1, device=rows.device)
            table[rows[strong], rank[strong]] = order[strong]
            tables.append(table)
        return torch.stack(tables)


def _in_float(call: NeighbourCall) -> tuple[NeighbourCall, torch.dtype]:
    """Convert half precision to float32; also return the dtype of the results."""
    dtype = call.values.dtype
    if dtype not in (torch.float16, torch.bfloat16):
        return call, dtype
    return call.mapped(Tensor.float), dtype


#: Least ratio of matrix cells to edges for which computing edge by edge is faster.
SPARSE = 8


def why_not_served(call: AttentionCall, named: object = None) -> str | None:
    """Why a call is not computed edge by edge (on the CPU); None if it is.

    named: the backend that the caller named: then only the kernels, which take no float64.
    """
    no_graph = "the mask is no sparse graph, or the score is none of the graph kernels'"
    mask, queries = call.mask, call.queries
    if not isinstance(mask, Neighbours) or kernels is None or isinstance(call.keep, All):
        return no_graph
    rules = (call.relative, call.bias, call.softcap, call.sinks)
    if any(rule is not None for rule in rules) or not queries.is_cpu or not queries.shape[0]:
        return no_graph
    if type(call.score) in (Dot, ScaledDot, Bilinear):  # a subclass may have another formula
        serves = len(mask.columns) * SPARSE <= queries.shape[2] * call.keys.shape[2]
    else:
        serves = type(call.score) in (GraphAttention, GraphAttentionV2) and call.scale == 1
    serves = serves and not (named is not None and queries.dtype == torch.float64)
    return why_wrapped((queries, call.keys, call.values)) if serves else no_graph


def attend(call: AttentionCall) -> tuple[Output, AttentionGraph | None]:
    """Return the output of a call that is served, and its graph if it keeps one."""
    calls = _calls(call)
    outputs = [neighbour_attention(part.with_dropout(call.dropout)) for part in calls]
    output = torch.stack([part.transpose(0, 1) for part in outputs])
    if not isinstance(call.keep, Top):
        return output, None
    graphs = [neighbour_graph(part, call.places, call.received) for part in calls]
    names = [name for name in NAMES[1:] if getattr(graphs[0], name) is not None]
    stacked = {name: torch.stack([getattr(graph, name) for graph in graphs]) for name in names}
    return output, changed(graphs[0], **stacked, symmetric=call.symmetric)


def _calls(call: AttentionCall) -> list[NeighbourCall]:
    """Return a call for each input of the batch."""
    mask = call.mask
    assert isinstance(mask, Neighbours)  # since the call is served
    starts = mask.row_starts.contiguous()
    edges = Edges(len(starts) - 1, mask.keys, starts, mask.columns.int())
    keys, values = (repeat_kv_heads(tensor, call.heads) for tensor in (call.keys, call.values))
    score, queries = call.score, call.queries
    if isinstance(score, Bilinear):
        matrix = score.form()
        wide = torch.float64 if queries.dtype == torch.float64 else torch.float32
        with without_autocast(queries.device):
            queries = (queries.to(wide) @ matrix.to(wide)).to(queries.dtype)
    by_node = [
        [nodes.transpose(0, 1) for nodes in tensor.unbind()] for tensor in (queries, keys, values)
    ]
    calls = []
    for query, key, value in zip(*by_node, strict=True):
        part = NeighbourCall(edges, NeighbourScore.DOT, value, scale=call.scale)
        if isinstance(score, GraphAttention):
            part = changed(
                part, score=NeighbourScore.ADDITIVE, slope=score.slope,
                target_terms=_terms(query, score.query_vector),
                source_terms=_terms(key, score.key_vector),
            )  # fmt: skip
        else:
            part = changed(part, queries=query, keys=key)
        if isinstance(score, GraphAttentionV2):
            vector = score.vector.to(query).expand(call.heads, -1)
            part = changed(part, score=NeighbourScore.VECTOR, slope=score.slope, vector=vector)
        calls.append(part)
    return calls


def _terms(nodes: Tensor, vector: Tensor) -> Tensor:
    """Return the term of each node and head in an additive score, (nodes, heads)."""
    if nodes.dtype in (torch.float16, torch.bfloat16):
        nodes, vector = nodes.float(), vector.float()
    return node_terms(nodes.transpose(0, 1), vector).T
