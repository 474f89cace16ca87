"""Attention calls under the mask of a graph, as calls over its neighbours."""

from __future__ import annotations

import torch
from torch import Tensor

from headloom.mechanism.adjacency import Neighbours
from headloom.mechanism.backends.compiled import kernels, why_wrapped
from headloom.mechanism.call import NAMES, AttentionCall
from headloom.mechanism.graph import AttentionGraph, Top
from headloom.mechanism.modes import without_autocast
from headloom.mechanism.neighbourhood.call import Edges, NeighbourCall, NeighbourScore
from headloom.mechanism.neighbourhood.function import neighbour_attention, neighbour_graph
from headloom.mechanism.parts import changed
from headloom.mechanism.scores import (
    Bilinear,
    Dot,
    GraphAttention,
    GraphAttentionV2,
    ScaledDot,
    check_per_head,
    node_terms,
)
from headloom.mechanism.shapes import Output, repeat_kv_heads

__all__ = ["attend", "attention", "serves"]

#: Cells of the matrix for each edge from which going along the edges pays.
SPARSE = 8


def serves(call: AttentionCall) -> bool:
    """Whether a call looks along the edges of a graph, few enough, by a score of the kernels.

    On the CPU, and where the kernels are; torch forms the scores of other calls block by block.
    """
    mask = call.mask
    if mask is None or kernels is None or not isinstance(mask, Neighbours):
        return False
    if not call.queries.shape[0]:
        return False
    score = call.score
    rules = (call.relative, call.bias, call.softcap, call.sinks)
    if any(rule is not None for rule in rules) or call.queries.device.type != "cpu":
        return False
    if why_wrapped((call.queries, call.keys, call.values)) is not None:
        return False
    cells = call.queries.shape[2] * call.keys.shape[2]
    # A subclass has a formula of its own.
    if type(score) in (Dot, ScaledDot, Bilinear):
        return len(mask.columns) * SPARSE <= cells
    return type(score) in (GraphAttention, GraphAttentionV2) and call.scale == 1


def attention(call: AttentionCall, backend: str | None = None) -> Output:
    """The output of a call that is served; for the backend see `neighbour_attention`."""
    outputs = [
        neighbour_attention(each.with_dropout(call.dropout), backend) for each in _calls(call)
    ]
    return torch.stack([output.transpose(0, 1) for output in outputs])


def attend(
    call: AttentionCall, keep: Top, backend: str | None = None
) -> tuple[Output, AttentionGraph]:
    """Output and graph of a call that is served; for the backend see `neighbour_attention`."""
    output = attention(call, backend)
    places = keep.places(call.keys.shape[2])
    graphs = [neighbour_graph(each, places, call.received) for each in _calls(call)]
    names = [name for name in NAMES[1:] if getattr(graphs[0], name) is not None]
    stacked = {name: torch.stack([getattr(graph, name) for graph in graphs]) for name in names}
    return output, changed(graphs[0], **stacked, symmetric=call.symmetric)


def _calls(call: AttentionCall) -> list[NeighbourCall]:
    """One for each input of the batch."""
    mask = call.mask
    assert isinstance(mask, Neighbours)  # a call that is served
    edges = Edges(
        len(mask.row_starts) - 1, mask.keys, mask.row_starts.contiguous(), mask.columns.int()
    )
    keys, values = (repeat_kv_heads(tensor, call.heads) for tensor in (call.keys, call.values))
    score = call.score
    queries = call.queries
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
        one = NeighbourCall(edges, NeighbourScore.DOT, value, scale=call.scale)
        if isinstance(score, GraphAttention):
            target_terms = _terms("the query vector", query, score.query_vector)
            source_terms = _terms("the key vector", key, score.key_vector)
            terms = {"target_terms": target_terms, "source_terms": source_terms}
            one = changed(one, score=NeighbourScore.ADDITIVE, slope=score.slope, **terms)
        else:
            one = changed(one, queries=query, keys=key)
        if isinstance(score, GraphAttentionV2):
            check_per_head("GraphAttentionV2", "the vector", score.vector, query)
            vector = score.vector.to(query).expand(call.heads, -1)
            one = changed(one, score=NeighbourScore.VECTOR, slope=score.slope, vector=vector)
        calls.append(one)
    return calls


def _terms(name: str, nodes: Tensor, vector: Tensor) -> Tensor:
    """A term of each node and head, (nodes, heads): what a score of two terms reads of it."""
    if nodes.dtype in (torch.float16, torch.bfloat16):
        nodes, vector = nodes.float(), vector.float()
    return node_terms(name, nodes.transpose(0, 1), vector).T
