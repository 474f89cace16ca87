"""Joins what the passes of a layer gave: the rows of all, one below the other, as one call."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from headloom.errors import InputError
from headloom.mechanism.graph import AttentionGraph
from headloom.mechanism.parts import changed, with_tensors
from headloom.tracing.recording.beams import Beams, chosen_rows
from headloom.tracing.recording.layer_call import RecordedCall

__all__ = [
    "Part",
    "Ranges",
    "cropped",
    "joined_call",
    "joined_graphs",
    "joined_ranges",
    "of_beams",
    "shape_of",
]

#: See RecordedCall.ranges.
Ranges = tuple[Tensor | None, ...] | None


@dataclass(eq=False, slots=True)
class Part:
    """What one pass adds to a layer, or several that were joined.

    call: of the pass; keys and norms are those of its own positions alone.
    first: the place of the first key of its graph among all keys.
    number: of the pass, from 0; of several passes the first.
    passes: how many these are.
    waits: whether it is a step that waits to be joined, with its own value in place of its norm.
    place: where its tensors are in the file of the passes; None: they are here.
    """

    call: RecordedCall
    first: int
    number: int
    passes: int = 1
    waits: bool = False
    place: int | None = None


def of_beams(parts: list[Part], beams: Beams | None) -> list[Part]:
    """The passes of a layer with the rows of each sequence that a beam search gave."""
    if beams is None:
        return parts
    return [
        replace(
            part, call=chosen_rows(part.call, beams.of_pass(part.number, part.call.graph.shape[0]))
        )
        for part in parts
    ]


def joined_call(parts: list[Part], length: int | None = None) -> RecordedCall:
    """The passes of a layer as one call. length: of all keys; None: of those of the parts."""
    first = parts[0].call
    length = _length(parts) if length is None else length
    if len(parts) == 1 and first.graph.length == length:
        return first
    calls = [part.call for part in parts]
    keys, norms = first.keys, first.value_norms
    if first.kind != "cross":
        keys = _cat([call.keys for call in calls])
        norms = _cat([call.value_norms for call in calls])
    return replace(
        first,
        graph=joined_graphs([(part.call.graph, part.first) for part in parts], length),
        deviations=[
            max((size for size in of_input if size is not None), default=None)
            for of_input in zip(*(call.deviations for call in calls), strict=False)
        ],
        queries=_cat([call.queries for call in calls]),
        keys=keys,
        value_norms=norms,
        ranges=joined_ranges(parts, length),
        bias=_bias(parts, length),
    )


def cropped(call: RecordedCall, count: int) -> RecordedCall:
    """A call without its last positions, so many, which the cache has let go of again.

    Raises: InputError: a query that stays looked at one of them.
    """
    kept = call.graph.shape[2] - count
    graph = with_tensors(call.graph, lambda tensor: tensor[:, :, :kept])
    rows = [own if own is None else own[:, :kept] for own in call.ranges or ()]
    bias = call.bias if call.bias is None or call.bias.shape[2] == 1 else call.bias[:, :, :kept]
    call = replace(
        call, graph=graph, queries=_start(call.queries, kept), ranges=tuple(rows) or None, bias=bias
    )
    if call.kind == "cross":
        return call
    length = graph.length - count
    ahead = any(own is not None and bool((own[1] > length).any()) for own in rows)
    if ahead or bool((graph.keys >= length).any()):
        raise InputError(
            f"trace: a query of layer {call.path} looked at a position after it that the cache was "
            "cropped by afterwards. Trace the text that was generated."
        )
    return replace(
        call,
        graph=changed(graph, length=length),
        keys=_start(call.keys, -count),
        value_norms=_start(call.value_norms, -count),
        bias=bias if bias is None or bias.shape[3] == 1 else bias[..., :length],
    )


def _start(tensor: Tensor | None, end: int) -> Tensor | None:
    return None if tensor is None else tensor[:, :, :end]


def _length(parts: list[Part]) -> int:
    """How many keys the layer has in the end."""
    first = parts[0].call
    if first.kind == "cross" or first.keys is None:
        return first.graph.length
    return sum(part.call.keys.shape[2] for part in parts if part.call.keys is not None)


def _cat(tensors: list[Tensor | None]) -> Tensor | None:
    known = [tensor for tensor in tensors if tensor is not None]
    if known and not any(any(tensor.stride()) for tensor in known):
        batch, heads, _, depth = known[0].shape
        length = sum(tensor.shape[2] for tensor in known)
        return known[0][:, :, :1].expand(batch, heads, length, depth)
    return torch.cat(known, 2) if known else None


def shape_of(tensor: Tensor | None) -> Tensor | None:
    """A tensor with the shape of another and a single number, 0, in memory.

    Those of several passes are joined in the same way.
    """
    return None if tensor is None else tensor.new_zeros(()).expand(tensor.shape)


def joined_graphs(graphs: list[tuple[AttentionGraph, int]], length: int) -> AttentionGraph:
    """Graphs with a batch, one below the other.

    Args:
        graphs: each with the place of its first key among all.
        length: all keys.
    """
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
        keys=below("keys", -1),
        scores=below("scores", -torch.inf),
        weights=below("weights", 0),
        lse=below("lse"),
        entropy=below("entropy"),
        rest=below("rest"),
        count=below("count"),
        length=length,
    )


def joined_ranges(parts: list[Part], length: int) -> Ranges:
    """For each input, the ranges of all rows."""
    of_samples: list[Tensor | None] = []
    for sample, ranges in enumerate(parts[0].call.ranges or ()):
        if ranges is None:
            of_samples.append(None)
            continue
        rows = []
        for part in parts:
            own = (part.call.ranges or ())[sample]
            if own is None:
                break
            if part.first:
                # A query that sees nothing has the range 0 to 0 wherever its keys begin.
                own = torch.where(own[1] > own[0], own + part.first, own)
            rows.append(own)
        whole = len(rows) == len(parts)
        of_samples.append(torch.cat(rows, 1).clamp(max=length) if whole else None)
    return tuple(of_samples) or None


def _bias(parts: list[Part], length: int) -> Tensor | None:
    """A bias by distance of all rows, taken from the last one, which sees every distance.

    Keys ahead of a query, which it never sees, have the bias 0 here.
    """
    calls = [part.call for part in parts]
    last = calls[-1].bias
    if last is None:
        return None
    row = last[:, :, -1, :]
    if last.shape[-1] != length or calls[0].kind == "encoder":
        # Between two sequences, or in a window: not a bias by distance that is known whole. In an
        # encoder the prompt looks ahead, at distances that the last query does not see.
        return _rows_of_bias(parts, length)
    values = pad(row, (0, length - 1))
    queries = sum(call.graph.shape[2] for call in calls)
    index = torch.arange(length)[None, :] - torch.arange(queries)[:, None] + length - 1
    whole = values[:, :, index.clamp(min=0)]
    start = 0
    for call in calls:
        own = call.bias
        end = start + call.graph.shape[2]
        if own is not None:
            same = own.tril(start) == whole[:, :, start:end, : own.shape[-1]].tril(start)
            if not bool(same.all()):
                # Not by distance: what is known, and nothing ahead.
                return _rows_of_bias(parts, length)
        start = end
    return whole


def _rows_of_bias(parts: list[Part], length: int) -> Tensor:
    """The rows of a bias as the passes had them, 0 for keys that were not there yet, or no more."""
    rows = [(part.first, part.call.bias) for part in parts if part.call.bias is not None]
    if all(row.shape[-1] == 1 for _, row in rows):
        # The same for every key.
        return torch.cat([row for _, row in rows], 2)
    return torch.cat([pad(row, (first, length - first - row.shape[-1])) for first, row in rows], 2)
