"""A call graph cut to an input: off its padding, and the parts of an input side by side.

A model may give its attention a batch of its own: windows of an image, frames of a video, chunks of
a text. Of one input, every part is its own, whatever their order: side by side they are one layer,
in which no part looks into another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from headloom.mechanism.graph import AttentionGraph
from headloom.tracing.recording.layer_call import RecordedCall

__all__ = ["cut", "part_names", "part_numbers", "proven_mask", "side_by_side"]


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


def part_numbers(parts: int, length: int) -> list[int]:
    """The part of each position of parts that lie side by side.

    >>> part_numbers(2, 2)
    [0, 0, 1, 1]
    """
    return [part for part in range(parts) for _ in range(length)]


def part_names(parts: int, length: int) -> list[str]:
    """The names of the positions of parts that lie side by side.

    >>> part_names(2, 2)
    ['part 0, position 0', 'part 0, position 1', 'part 1, position 0', 'part 1, position 1']
    """
    return [f"part {part}, position {i}" for part in range(parts) for i in range(length)]


def side_by_side(call: RecordedCall) -> RecordedCall:
    """A call on the parts of one input as a call on the whole of it, with a batch of one."""
    graph = call.graph
    parts, _, queries, keys = graph.shape
    first = torch.arange(parts, device=graph.keys.device)[:, None, None, None] * keys
    moved = torch.where(graph.keys >= 0, graph.keys + first.to(graph.keys.dtype), graph.keys)
    whole = AttentionGraph(
        keys=_joined(moved),
        scores=_joined(graph.scores),
        weights=_joined(graph.weights),
        lse=_joined(graph.lse),
        entropy=_joined(graph.entropy),
        rest=_joined(graph.rest),
        count=_joined(graph.count),
        length=parts * keys,
    )
    changed = replace(
        call,
        graph=whole,
        queries=None if call.queries is None else _joined(call.queries),
        keys=None if call.keys is None else _joined(call.keys),
        value_norms=None if call.value_norms is None else _joined(call.value_norms),
        ranges=_ranges(call.ranges, parts, queries, keys),
        bias=None,
        deviations=[max((d for d in call.deviations if d is not None), default=None)],
    )
    if call.bias is None or call.queries is None or call.keys is None:
        return changed
    bias = call.bias.expand(parts, -1, queries, keys)
    if bias[0].numel() * parts * parts > call.queries.numel() + call.keys.numel():
        return replace(changed, missing="a bias within each of its parts is added to its scores")
    block_diag: Callable[..., Tensor] = torch.block_diag
    blocks = [block_diag(*bias[:, head]) for head in range(bias.shape[1])]
    return replace(changed, bias=torch.stack(blocks)[None])


def _joined(tensor: Tensor) -> Tensor:
    """From (parts, heads, positions, ...) to (1, heads, parts * positions, ...)."""
    return tensor.transpose(0, 1).flatten(1, 2)[None]


def _ranges(
    ranges: tuple[Tensor | None, ...] | None, parts: int, queries: int, keys: int
) -> tuple[Tensor | None, ...] | None:
    """The ranges of all rows; a batch of one stands for every part."""
    if ranges is None:
        return None
    joined = []
    for part in range(parts):
        own = ranges[min(part, len(ranges) - 1)]
        if own is None:
            return (None,)
        joined.append(torch.where(own[1] > own[0], own + part * keys, 0))
    return (torch.cat(joined, 1),)
