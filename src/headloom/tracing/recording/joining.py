"""Join the passes of a generation layer by layer: rows below rows, keys after keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from headloom.mechanism.graph import AttentionGraph
from headloom.mechanism.parts import with_tensors
from headloom.tracing.arguments import Arguments
from headloom.tracing.recording.layer_call import LayerCall, RowRanges

#: Steps of a generation that are joined while it runs.
STEPS = 16
#: Tensors of a graph, and of a call, with rows for queries or keys.
_OF_GRAPH = ("keys", "scores", "weights", "lse", "entropy", "rest", "count")
_OF_CALL = ("queries", "keys", "value_norms")


@dataclass(eq=False, slots=True)
class Part:
    """Part of a layer from some passes, with keys and norms of their new positions only.

    first: place of its graph's first key among all keys. place: of its tensors in the file; None:
    they are in memory.
    """

    call: LayerCall
    first: int = 0
    place: int | None = None

    def first_rows(self, count: int) -> Part:
        """Return the part with its first rows, and as many keys; itself if it has no more."""
        call = self.call
        if count >= call.graph.shape[2]:
            return self

        def cut(tensor: Tensor) -> Tensor:
            return tensor[:, :, :count]

        tensors = {name: getattr(call, name) for name in (*_OF_CALL, "bias")}
        rows = {name: cut(tensor) for name, tensor in tensors.items() if tensor is not None}
        ranges = (
            None
            if call.ranges is None
            else tuple(None if part is None else part[:, :count] for part in call.ranges)
        )
        return Part(
            call.changed(graph=with_tensors(call.graph, cut), ranges=ranges, **rows), self.first
        )


class Steps:
    """Steps of one token to be joined, in memory that is allocated once.

    Small tensors of each step would fragment the memory around the cache, which is allocated again
    in each step: for SmolLM2 after 2,000 tokens, a quarter of its memory.
    """

    def __init__(self, call: LayerCall) -> None:
        self._names = [name for name in _OF_CALL if getattr(call, name) is not None]
        tensors = self._tensors(call)
        self._shapes = [tensor.shape for tensor in tensors]
        self._rooms = [
            tensor.new_empty(*tensor.shape[:2], STEPS * tensor.shape[2], *tensor.shape[3:])
            for tensor in tensors
        ]
        self._call = call.changed(graph=None, **dict.fromkeys(self._names))
        self._ranges: list[tuple[RowRanges, int]] = []
        self._deviations: list[Sequence[float | None]] = []
        self._length = 0

    def _tensors(self, call: LayerCall) -> list[Tensor]:
        of_graph = [getattr(call.graph, name) for name in _OF_GRAPH]
        return of_graph + [getattr(call, name) for name in self._names]

    def fits(self, call: LayerCall) -> bool:
        """Return whether there is room for another step."""
        shapes = [tensor.shape for tensor in self._tensors(call)]
        return len(self._ranges) < STEPS and shapes == self._shapes

    def take(self, call: LayerCall, first: int) -> None:
        """Copy the tensors of a step; see `Part`."""
        before = len(self._ranges)
        places = [
            room.narrow(2, before * shape[2], shape[2])
            for room, shape in zip(self._rooms, self._shapes, strict=True)
        ]
        torch._foreach_copy_(places, self._tensors(call))
        if first:
            places[0].add_((places[0] >= 0).int(), alpha=first)
        self._ranges.append((call.ranges, first))
        self._deviations.append(call.deviations)
        self._length = first + call.graph.length

    def joined(self) -> Part:
        """Return all steps as one part."""
        count = len(self._ranges)
        rows = [
            room[:, :, : count * shape[2]]
            for room, shape in zip(self._rooms, self._shapes, strict=True)
        ]
        of_graph: Arguments = dict(zip(_OF_GRAPH, rows, strict=False))
        call = self._call.changed(
            graph=AttentionGraph(**of_graph, length=self._length),
            deviations=_largest(self._deviations),
            ranges=_joined_ranges(self._ranges, self._length),
            **dict(zip(self._names, rows[len(_OF_GRAPH) :], strict=True)),
        )
        return Part(call)


def _largest(deviations: list[Sequence[float | None]]) -> list[float | None]:
    """Return the largest deviation of each input."""
    return [
        max((size for size in of_input if size is not None), default=None)
        for of_input in zip(*deviations, strict=False)
    ]


def joined_call(parts: list[Part]) -> LayerCall:
    """Return the passes of a layer as one call."""
    calls = [part.call for part in parts]
    first = calls[0]
    keys = torch.cat([call.keys for call in calls], 2)
    length = keys.shape[2]
    if len(parts) == 1 and first.graph.length == length:
        return first
    norms = [call.value_norms for call in calls if call.value_norms is not None]
    return first.changed(
        graph=_joined_graphs([(part.call.graph, part.first) for part in parts], length),
        deviations=_largest([call.deviations for call in calls]),
        queries=torch.cat([call.queries for call in calls], 2),
        keys=keys,
        value_norms=torch.cat(norms, 2) if norms else None,
        ranges=_joined_ranges([(part.call.ranges, part.first) for part in parts], length),
        bias=_joined_bias(parts, length),
        missing=next((call.missing for call in calls if call.missing is not None), None),
    )


def _joined_graphs(graphs: list[tuple[AttentionGraph, int]], length: int) -> AttentionGraph:
    """Return graphs one below the other, each given with the place of its first key among all."""
    places = max(graph.k for graph, _ in graphs)

    def below(name: str, empty: float | None = None) -> Tensor:
        parts = []
        for graph, first in graphs:
            tensor = getattr(graph, name)
            if name == "keys" and first:
                tensor = torch.where(tensor >= 0, tensor + first, tensor)
            if empty is not None and graph.k < places:
                tensor = pad(tensor, (0, places - graph.k), value=empty)
            parts.append(tensor)
        return torch.cat(parts, 2)

    return AttentionGraph(
        keys=below("keys", -1), scores=below("scores", -torch.inf), weights=below("weights", 0),
        lse=below("lse"), entropy=below("entropy"), rest=below("rest"), count=below("count"),
        length=length,
    )  # fmt: skip


def _joined_ranges(parts: list[tuple[RowRanges, int]], length: int) -> RowRanges:
    """Return the ranges of all rows of each input; parts come with the place of their first key."""
    joined: list[Tensor | None] = []
    for sample in range(len(parts[0][0] or ())):
        rows = [(ranges[sample], first) for ranges, first in parts if ranges is not None]
        # A query that sees no key has the range 0 to 0 wherever its keys begin.
        moved = [
            torch.where(part[1] > part[0], part + first, part)
            for part, first in rows
            if part is not None
        ]
        whole = len(moved) == len(parts)
        joined.append(torch.cat(moved, 1).clamp(max=length) if whole else None)
    return tuple(joined) or None


def _joined_bias(parts: list[Part], length: int) -> Tensor | None:
    """Return the rows of a bias from all passes; 0 for keys that a pass did not have."""
    rows = [(part.first, part.call.bias) for part in parts if part.call.bias is not None]
    if not rows:
        return None
    if all(row.shape[-1] == 1 for _, row in rows):  # the same for every key
        return torch.cat([row for _, row in rows], 2)
    return torch.cat(
        [
            pad(row[..., :length], (first, max(0, length - first - row.shape[-1])))
            for first, row in rows
        ],
        2,
    )
