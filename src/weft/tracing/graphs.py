"""What a tracer does to a caught graph: cut padding off, and prove the rule of its mask."""

from __future__ import annotations

import torch
from torch import Tensor

from weft.mechanism.graph import AttentionGraph

__all__ = ["cut", "proven_mask"]


def cut(graph: AttentionGraph, queries: slice, keys: slice) -> AttentionGraph:
    """The part of a graph between some queries and some keys.

    Mass on an edge to a key that is cut off goes to `rest`; from padding, which no query may look
    at, there is none.
    """
    _, rows, length = graph.shape
    whole = slice(0, rows), slice(0, length)
    if (queries, keys) == whole and graph.k <= length:
        return graph
    columns = graph.keys[:, queries]
    inside = (columns >= keys.start) & (columns < keys.stop)
    # Edges that stay move forward, in their order, and empty places to the end.
    order = (~inside).to(torch.uint8).sort(dim=-1, stable=True).indices
    kept = min(graph.k, keys.stop - keys.start)
    order = order[..., :kept]
    inside_now = inside.gather(-1, order)
    weights = graph.weights[:, queries]
    lost = torch.where(inside | (columns < 0), 0.0, weights).sum(-1)

    def taken(tensor: Tensor, empty: float) -> Tensor:
        return torch.where(inside_now, tensor.gather(-1, order), empty)

    return AttentionGraph(
        keys=taken(columns - keys.start, -1),
        scores=taken(graph.scores[:, queries], -torch.inf),
        weights=taken(weights, 0),
        lse=graph.lse[:, queries].clone(),
        entropy=graph.entropy[:, queries].clone(),
        rest=graph.rest[:, queries] + lost,
        count=graph.count[:, queries].clone(),
        length=keys.stop - keys.start,
        symmetric=graph.symmetric,
    )


def proven_mask(graph: AttentionGraph) -> str | None:
    """The rule of the mask, where the graph proves it: "all", "causal", or None.

    Every key allowed in every row is "all". Rows that allow as many keys as they have kept edges,
    namely those up to themselves, are "causal".
    """
    _, queries, keys = graph.shape
    if bool((graph.count == keys).all()):
        return "all"
    positions = torch.arange(queries, device=graph.keys.device)
    ahead = graph.keys > positions[:, None]
    if queries == keys and bool((graph.count == positions + 1).all()) and not bool(ahead.any()):
        complete = bool((graph.k >= graph.count).all())
        return "causal" if complete else None
    return None
