"""Calls on parts of an input: windows of an image, frames of a video, chunks of a text.

Such a model gives its attention a batch of its own, of so many parts for each input. Of one input,
every part is its own, whatever their order: side by side they are one layer, in which no part looks
into another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from weft.mechanism.graph import AttentionGraph
from weft.tracing.caught import Caught

__all__ = ["part_names", "side_by_side"]


def part_names(parts: int, length: int) -> list[str]:
    """The names of the positions of parts that lie side by side.

    >>> part_names(2, 2)
    ['part 0, position 0', 'part 0, position 1', 'part 1, position 0', 'part 1, position 1']
    """
    return [f"part {part}, position {i}" for part in range(parts) for i in range(length)]


def side_by_side(caught: Caught) -> Caught:
    """A call on the parts of one input as a call on the whole of it, with a batch of one."""
    graph = caught.graph
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
        caught,
        graph=whole,
        queries=None if caught.queries is None else _joined(caught.queries),
        keys=None if caught.keys is None else _joined(caught.keys),
        value_norms=None if caught.value_norms is None else _joined(caught.value_norms),
        ranges=_ranges(caught.ranges, parts, queries, keys),
        bias=None,
    )
    if caught.bias is None or caught.queries is None or caught.keys is None:
        return changed
    bias = caught.bias.expand(parts, -1, queries, keys)
    if bias[0].numel() * parts * parts > caught.queries.numel() + caught.keys.numel():
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
    found = []
    for part in range(parts):
        own = ranges[min(part, len(ranges) - 1)]
        if own is None:
            return (None,)
        found.append(torch.where(own[1] > own[0], own + part * keys, 0))
    return (torch.cat(found, 1),)
