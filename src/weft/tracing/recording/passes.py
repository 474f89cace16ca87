"""Joins the passes of generation with a cache, of which each adds rows to every layer.

The first pass reads the prompt, each later one a token, whose query looks at the keys in the cache.
The rows of all passes, one below the other, are those of one pass over the whole text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from weft.errors import InputError
from weft.mechanism.graph import AttentionGraph
from weft.tracing.recording.beams import Beams, chosen_rows
from weft.tracing.recording.layer_call import LayerCall, RecordedCall

__all__ = ["Passes", "joined_graphs"]


_REORDERED = (
    "trace: the cache holds other keys than the pass before left, and was not reordered by its "
    "reorder_cache. Trace the text that was generated."
)


#: Steps of a generation that are joined while it goes on.
TOGETHER = 16

#: See RecordedCall.ranges.
Ranges = tuple[Tensor | None, ...] | None


@dataclass(eq=False, slots=True)
class _Part:
    """What one pass adds to a layer.

    call: of the pass; keys and norms are those of its own positions alone.
    first: the place of the first key of its graph among all keys.
    number: of the pass, from 0; of several passes the first.
    passes: how many these are.
    end: of a step that waits to be joined, the end of its keys in the cache; else None. Of the
        steps that wait the last one alone has keys and values: the whole cache, with those of all.
    own: of a step that waits, a copy of its own key, against which the next cache is held: a cache
        that is written in place would be compared with itself.
    """

    call: RecordedCall
    first: int
    number: int
    passes: int = 1
    end: int | None = None
    own: Tensor | None = None


class Passes:
    """Receives the recorded calls of the passes of one text, and joins them.

    Args: queries: whether queries are wanted; else their number alone is kept.
    """

    def __init__(self, *, queries: bool = True) -> None:
        self._queries = queries
        self._parts: dict[tuple[str, int], list[_Part]] = {}
        self._seen: dict[str, int] = {}
        self._before = 0
        #: How many passes there were.
        self.passes = 0
        #: Of each pass, which row of the pass before it every row goes on from; None: from itself.
        self.orders: list[Tensor | None] = []
        self._order: Tensor | None = None
        #: Whether a layer of this pass has told that the cache holds what the pass before left.
        self._continued = False
        #: The ranges of steps that were joined last, and of what: layers share them.
        self._ranges: tuple[list[Ranges], Ranges] = ([], None)

    def new_pass(self, before: int) -> None:
        """The model begins a pass; the cache holds so many positions."""
        self._before = before
        self._continued = False
        self._seen.clear()
        self.passes += 1
        self.orders.append(self._order)
        self._order = None

    def reorder(self, order: Tensor) -> None:
        """The cache takes row ``order[b]`` as row b, before the next pass."""
        self._settle()
        self._order = order.detach() if self._order is None else self._order[order]

    def are_verified(self) -> bool:
        """Whether the calls of this pass are: of the first, the second, fourth, eighth ..."""
        return self.passes & (self.passes - 1) == 0

    def new_keys(self, call: LayerCall) -> slice | None:
        """The keys of a call that no pass before it had; of two sequences those of the first.

        None: it is a step of one token, whose values are asked for with those of the steps around
        it.
        """
        parts = self._parts.get((call.path, self._seen.get(call.path, 0)))
        if call.kind == "cross" or call.weights_only:
            return slice(0, 0) if parts else slice(None)
        own, there = call.queries.shape[2], call.keys.shape[2]
        if parts and own == 1 and there >= TOGETHER and call.bias is None:
            return None
        return self._own_keys(own, there, first=not parts)

    def _own_keys(self, own: int, there: int, first: bool) -> slice:
        """The keys of so many queries among those that are there, of the first pass all before."""
        # Caches of a fixed size have room at the end, which the mask hides.
        end = min(there, self._before + own)
        return slice(0 if first else end - own, end)

    def __call__(self, call: RecordedCall) -> None:
        """Take a call of a layer in this pass."""
        place = self._seen.get(call.path, 0)
        self._seen[call.path] = place + 1
        parts = self._parts.setdefault((call.path, place), [])
        # Encoders with a head for language grow too: with a cache, each later token looks at all
        # before it, the prompt at itself.
        grows = call.kind != "cross" and call.queries is not None
        number = self.passes - 1
        if grows and call.values is not None:
            self._step(call, parts)
            return
        self._join_steps(parts)
        parts.append(self._part(call, parts) if grows else _Part(call, 0, number))
        if call.queries is not None and not self._queries:
            call.queries = call.queries[..., :0].clone()
        self._join_last(parts)

    def _step(self, call: RecordedCall, parts: list[_Part]) -> None:
        """A pass of one query, which waits for others.

        In every layer of every step, what is done here meets cold caches, at many times its usual
        price. So keys, norms and queries are taken of several steps at once.
        """
        assert call.keys is not None
        there, last = call.keys.shape[2], parts[-1]
        end = min(there, self._before + 1)
        if end > 1:
            self._check_continued(call, parts, end - 1)
        if last.end is not None:
            # The cache of this step has them too.
            last.call.keys = last.call.values = None
        first = max(0, self._before + 1 - there)
        own = call.keys[:, :, end - 1 : end].clone()
        parts.append(_Part(call, first, self.passes - 1, end=end, own=own))
        if len(parts) >= TOGETHER and parts[-TOGETHER].end is not None:
            self._join_steps(parts)

    def _settle(self) -> None:
        """Join all steps that wait: the cache is about to change, or no other will come."""
        for parts in self._parts.values():
            self._join_steps(parts)

    def _join_steps(self, parts: list[_Part]) -> None:
        """Join the steps of a layer that wait.

        Their many small tensors would lie between the tensors of the cache, which is a new and
        longer one at each step, and the memory that it leaves could not be used again.
        """
        count = 0
        while count < len(parts) and parts[-1 - count].end is not None:
            count += 1
        if not count:
            return
        waiting = parts[-count:]
        call, end = waiting[-1].call, waiting[-1].end
        assert end is not None
        assert call.keys is not None
        assert call.values is not None
        assert call.queries is not None
        keys, values = (tensor[:, :, end - count : end] for tensor in (call.keys, call.values))
        call.keys = call.values = None
        length = waiting[-1].first + call.graph.length
        ranges = [part.call.ranges for part in waiting]
        if any(part.first for part in waiting):
            joined_ranges = _ranges(waiting, length)
        else:
            known, joined_ranges = self._ranges
            if len(known) != count or any(a is not b for a, b in zip(known, ranges, strict=True)):
                joined_ranges = _ranges(waiting, length)
                self._ranges = ranges, joined_ranges
        for part in waiting:
            part.call.ranges = None
            if not self._queries:
                part.call.queries = None
        joined = _joined(waiting, length)
        # Not views: they would keep the whole cache in memory.
        joined.keys = keys.clone()
        joined.value_norms = torch.linalg.vector_norm(values.float(), dim=-1)
        joined.ranges = joined_ranges
        if not self._queries:
            joined.queries = call.graph.lse.new_empty(*call.graph.lse.shape[:2], count, 0)
        parts[-count:] = [_Part(joined, 0, waiting[0].number, count)]

    def _join_last(self, parts: list[_Part]) -> None:
        """Join the last steps of a layer that keeps no cache of its own; see `_join_steps`."""
        last = parts[-TOGETHER:]
        if (
            len(last) < TOGETHER
            or any(part.passes > 1 or part.call.graph.shape[2] > 1 for part in last)
            or any(part.call.bias is not None or part.call.queries is None for part in last)
            # Beams that are exchanged are told pass by pass.
            or any(order is not None for order in self.orders[last[0].number :])
        ):
            return
        length = last[-1].first + last[-1].call.graph.length
        parts[-TOGETHER:] = [_Part(_joined(last, length), 0, last[0].number, TOGETHER)]

    def _part(self, call: RecordedCall, parts: list[_Part]) -> _Part:
        """A pass of self-attention with its own keys alone."""
        assert call.queries is not None and call.keys is not None
        assert call.value_norms is not None
        own, there = call.queries.shape[2], call.keys.shape[2]
        # Caches of windows have let go of the first keys.
        first = max(0, self._before + own - there)
        new = self._own_keys(own, there, first=not parts)
        end = new.stop
        if parts and end > own:
            self._check_continued(call, parts, end - own)
        # Not a view: it would keep the whole cache of every step in memory.
        call.keys = call.keys[:, :, new].clone()
        return _Part(call, first, self.passes - 1)

    def _check_continued(self, call: RecordedCall, parts: list[_Part], begin: int) -> None:
        """Raise an InputError where the cache before a place is not what the last pass left.

        A cache is changed in all layers: of passes that are not verified the first one tells.
        """
        if self._continued and not self.are_verified():
            return
        self._continued = True
        last, before, order = parts[-1].call.keys, parts[-1].own, self.orders[-1]
        assert last is not None
        assert call.keys is not None
        before = last[:, :, -1:] if before is None else before
        before = before if order is None else before[order.to(last.device)]
        if not torch.equal(before, call.keys[:, :, begin - 1 : begin]):
            raise InputError(_REORDERED)

    def joined(self, beams: Beams | None = None) -> Iterator[RecordedCall]:
        """Every layer, its passes one below the other; of a beam search those of each sequence.

        Each layer's passes are let go when the layer is made, so that memory never holds all twice.
        """
        self._settle()
        while self._parts:
            yield _joined(_of_beams(self._parts.pop(next(iter(self._parts))), beams))


def _of_beams(parts: list[_Part], beams: Beams | None) -> list[_Part]:
    if beams is None:
        return parts
    return [
        replace(
            part, call=chosen_rows(part.call, beams.of_pass(part.number, part.call.graph.shape[0]))
        )
        for part in parts
    ]


def _joined(parts: list[_Part], length: int | None = None) -> RecordedCall:
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
        ranges=_ranges(parts, length),
        bias=_bias(calls, length),
    )


def _length(parts: list[_Part]) -> int:
    """How many keys the layer has in the end."""
    first = parts[0].call
    if first.kind == "cross" or first.keys is None:
        return first.graph.length
    return sum(part.call.keys.shape[2] for part in parts if part.call.keys is not None)


def _cat(tensors: list[Tensor | None]) -> Tensor | None:
    known = [tensor for tensor in tensors if tensor is not None]
    return torch.cat(known, 2) if known else None


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


def _ranges(parts: list[_Part], length: int) -> Ranges:
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


def _bias(calls: list[RecordedCall], length: int) -> Tensor | None:
    """A bias by distance of all rows, taken from the last one, which sees every distance.

    Keys ahead of a query, which it never sees, have the bias 0 here.
    """
    last = calls[-1].bias
    if last is None:
        return None
    row = last[:, :, -1, :]
    if last.shape[-1] != length or calls[0].kind == "encoder":
        # Between two sequences, or in a window: not a bias by distance that is known whole. In an
        # encoder the prompt looks ahead, at distances that the last query does not see.
        if last.shape[-1] == length:
            return _rows_of_bias(calls, length)
        return torch.cat([call.bias for call in calls if call.bias is not None], 2)
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
                return _rows_of_bias(calls, length)
        start = end
    return whole


def _rows_of_bias(calls: list[RecordedCall], length: int) -> Tensor:
    """The rows of a bias as the passes had them, 0 for keys that were not there yet."""
    rows = [part.bias for part in calls if part.bias is not None]
    return torch.cat([pad(row, (0, length - row.shape[-1])) for row in rows], 2)
