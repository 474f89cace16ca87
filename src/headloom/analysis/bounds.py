"""Bounds from kept edges: an interval that contains the measure of all weights.

A row's kept edges are its strongest and exact; their mass and the mass left out are known. So row i
has the mass M_i on other keys in total, and none of these weights is above l_i:

    M_i = rest_i if some key was left out, otherwise 0
    l_i = min(M_i, smallest kept weight of the row)

A sink's mass is part of M_i, which makes intervals wider but not wrong. All other functions of
`headloom.analysis` return one number, of all weights or of the kept edges.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from headloom.analysis.compare import variation_of_edges
from headloom.analysis.graphs.strength import received
from headloom.analysis.heads.patterns import Pattern
from headloom.analysis.weights import check_numbers, largest_left_out, left_out
from headloom.errors import InputError
from headloom.mechanism.graph import AttentionGraph


@dataclass(frozen=True, eq=False)
class Interval:
    """Lower and upper bounds of the true numbers; equal if these are known."""

    lower: Tensor
    upper: Tensor


def bounds(graph: AttentionGraph, of: Literal["received"] | Pattern | AttentionGraph) -> Interval:
    """Return the bounds of a measure, float64.

        received      r_j = sum_i w_ij, (heads, keys): beyond the kept sum, each row without key j
                      adds l_i at most, and all rows together M
        a pattern     mass of each row on a set of keys (`headloom.analysis.heads.patterns`),
                      (heads, queries): beyond the kept mass, min(M_i, keys left out l_i)
        another graph total variation of each head, the mean over queries of 1/2 sum_j |p_ij -
                      q_ij|, (heads,): keys kept by both are known, a key kept by one adds from
                      p - l' to p, and all other keys at most M + M'

    Raises: InputError: weights that are not numbers, or another measure.

    >>> import math, headloom
    >>> tokens = torch.eye(3)[None]                    # rows of 2, 1, 1 quarters
    >>> _, graph = headloom.attend(tokens, tokens, tokens, scale=math.log(2), keep=headloom.Top(1))
    >>> interval = bounds(graph, "received")
    >>> interval.lower.tolist(), interval.upper.tolist()
    ([[0.5, 0.5, 0.5]], [[1.5, 1.5, 1.5]])
    """
    check_numbers(graph, "bounds")
    if isinstance(of, AttentionGraph):
        least, most = variation_of_edges(graph, of)
        most = most + left_out(graph) + left_out(of)
        return Interval(least, most.clamp(max=2).mean(-1) / 2)
    if of == "received":
        return _received(graph)
    if isinstance(of, str):
        raise InputError(f'bounds: of={of!r}; expected "received", or a pattern.')
    return _mass(graph, of)


def _received(graph: AttentionGraph) -> Interval:
    lower = received(graph).double()
    if graph.received is not None:
        return Interval(lower, lower)
    mass, largest = left_out(graph), largest_left_out(graph)
    # Upper bound: every row gives l_i to each key that it did not keep.
    places = torch.where(graph.keys >= 0, graph.keys, graph.length).long().flatten(-2)
    known = largest.new_zeros(len(largest), graph.length + 1)
    known.scatter_add_(-1, places, largest[..., None].expand(graph.keys.shape).flatten(-2))
    others = (largest.sum(-1, keepdim=True) - known[..., :-1]).clamp(min=0)
    return Interval(lower, lower + torch.minimum(others, mass.sum(-1, keepdim=True)))


def _mass(graph: AttentionGraph, pattern: Pattern) -> Interval:
    _, queries, keys = graph.shape
    rows, first = torch.arange(queries)[:, None], torch.zeros(queries, dtype=torch.long)
    inside = pattern.contains(rows, graph.keys.clamp(min=0).long()) & (graph.keys >= 0)
    lower = (graph.weights.double() * inside).sum(-1)
    missing = pattern.sizes(first, first + keys) - inside.sum(-1)
    more = torch.minimum(left_out(graph), missing * largest_left_out(graph))
    return Interval(lower, lower + more)
