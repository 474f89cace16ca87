"""Reciprocity: how far looking is mutual."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headloom.analysis.arguments import check_source
from headloom.analysis.graphs.strength import received
from headloom.analysis.interval import Interval, Source, check_numbers, column_maxima, left_out
from headloom.errors import ShapeError
from headloom.mechanism.graph import AttentionGraph

__all__ = ["reciprocity"]


def reciprocity(source: Source) -> Interval:
    """How far looking is mutual, for each head.

        <P, P^T> / |P|^2 = sum_ij p_ij p_ji / sum_ij p_ij^2

    1 where P is symmetric, 0 where nobody looks back. From kept edges, with M_i the mass that row i
    left out, l_i the largest weight in it, c_i the largest weight of column i and r_i its sum:

        numerator:   from the pairs with both edges kept, to 2 sum_i min(M_i c_i, l_i r_i) more
        denominator: from the kept edges, to sum_i M_i l_i more

    since each term of the numerator that was missed has an edge (i, j) that was left out, and is
    p_ij p_ji: at most p_ij c_i, which add up to M_i c_i, and at most l_i p_ji.

    Args: source: all weights, or the kept edges, of a sequence that looks at itself.
    Returns: (heads,); 0 for a head without weights. A layer's is the mean over its heads.
    Raises: ShapeError: there are not as many keys as queries.
    Source: Garlaschelli and Loffredo 2004; for weights, Squartini et al. 2013.

    >>> import headloom
    >>> left = torch.tensor([[[9.0, 0.0], [9.0, 0.0]]])          # both look at position 0
    >>> _, graph = headloom.attend(left, torch.eye(2)[None], left, scale=9.0, keep=headloom.Top(2))
    >>> reciprocity(graph).middle                                # 1 of 2: 0 looks back at itself
    tensor([0.5000])
    """
    check_source("reciprocity", source)
    heads, queries, keys = source.shape
    if queries != keys:
        raise ShapeError(
            f"reciprocity: {queries} queries and {keys} keys; expected as many keys as queries, "
            "of a sequence that looks at itself."
        )
    check_numbers(source, "reciprocity")
    if not isinstance(source, AttentionGraph):
        there, squares = source.reciprocity().sum(-1), source.sum_of_squares().sum(-1)
        exact = _ratio(there, squares)
        return Interval(exact, exact)
    mass, largest = (part.double() for part in left_out(source))
    back = received(source).upper.double()
    column = column_maxima(source, source.weights, largest)
    more = 2 * torch.minimum(mass * column, largest * back).sum(-1)
    squares = source.weights.double().square().sum((-2, -1))
    mutual = torch.tensor([_mutual(source, head) for head in range(heads)], dtype=torch.float64)
    lower = _ratio(mutual, squares + (mass * largest).sum(-1))
    upper = _ratio(mutual + more, squares).clamp(max=1)
    # Where nothing was kept, anything can be.
    upper = torch.where((squares == 0) & (mass.sum(-1) > 0), 1.0, upper)
    return Interval(lower.float(), torch.maximum(lower, upper).float())


def _ratio(above: Tensor, below: Tensor) -> Tensor:
    return torch.where(below > 0, above / below.clamp(min=1e-30), 0.0)


def _mutual(graph: AttentionGraph, head: int) -> float:
    """``sum p_ij p_ji`` over the kept edges."""
    edges: Any = graph.adjacency(head).astype("float64")
    return float(edges.multiply(edges.T.tocsr()).sum())
