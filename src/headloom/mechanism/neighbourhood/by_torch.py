"""Attention over neighbours in plain torch: any device and type, differentiable as often as asked.

Each step forms a number, or a row of values, for every edge.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from headloom.mechanism.neighbourhood.call import NeighbourCall, NeighbourScore

__all__ = ["dropped", "output", "raw_scores", "weights_of"]


def _needed(tensor: Tensor | None) -> Tensor:
    assert tensor is not None  # whoever names a score gives what it reads
    return tensor


def raw_scores(call: NeighbourCall) -> Tensor:
    """The score of every edge, by place, (edges, heads)."""
    edges = call.edges
    rows, columns = edges.rows, edges.columns.long()
    terms = None if call.edge_terms is None else edges.by_place(call.edge_terms)
    if call.score is NeighbourScore.ADDITIVE:
        scores = _needed(call.target_terms)[rows] + _needed(call.source_terms)[columns]
        return leaky_relu(scores if terms is None else scores + terms, call.slope)
    queries, keys = _needed(call.queries)[rows], _needed(call.keys)[columns]
    if call.score is NeighbourScore.DOT:
        scores = (queries * keys).sum(-1) * call.scale
    else:
        summed = queries + keys
        if call.edge_rows is not None:
            summed = summed + edges.by_place(call.edge_rows)
        scores = (leaky_relu(summed, call.slope) * _needed(call.vector)).sum(-1)
    return scores if terms is None else scores + terms


def weights_of(call: NeighbourCall, scores: Tensor) -> tuple[Tensor, Tensor]:
    """The softmax of scores over each row, (edges, heads), and its log-sum-exp, (targets, heads).

    A row without edges, or with none but of score minus infinity, has weights of 0.
    """
    rows, shape = call.edges.rows, (call.edges.targets, scores.shape[1])
    with torch.no_grad():
        most = scores.new_full(shape, -torch.inf)
        places = rows[:, None].expand_as(scores)
        most = most.scatter_reduce(0, places, scores, "amax").masked_fill_(most.isnan(), torch.nan)
        shift = most.masked_fill(most == -torch.inf, 0)
    exponentials = (scores - shift[rows]).exp()
    sums = scores.new_zeros(shape).index_add(0, rows, exponentials)
    empty = sums == 0
    lse = (shift + sums.masked_fill(empty, 1).log()).masked_fill(empty, -torch.inf)
    return exponentials / sums.masked_fill(empty, 1)[rows], lse


def dropped(call: NeighbourCall, weights: Tensor) -> Tensor:
    """What dropout leaves of weights by place."""
    return weights if call.kept is None else weights * call.kept * call.kept_factor


def output(call: NeighbourCall) -> Tensor:
    """The weighted sums, (targets, heads, value_depth)."""
    weights, _ = weights_of(call, raw_scores(call))
    messages = dropped(call, weights)[..., None] * call.values[call.edges.columns.long()]
    shape = (call.edges.targets, *call.values.shape[1:])
    return messages.new_zeros(shape).index_add(0, call.edges.rows, messages)
