"""Joins the passes of generation with a cache, of which each adds rows to every layer.

The first pass reads the prompt, each later one a token, whose query looks at the keys in the cache.
The rows of all passes, one below the other, are those of one pass over the whole text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from headloom.errors import InputError
from headloom.mechanism.parts import with_tensors
from headloom.tracing.recording.beams import Beams
from headloom.tracing.recording.cached_keys import OTHER_KEYS, THINNED, CachedKeys
from headloom.tracing.recording.call_file import CallFile
from headloom.tracing.recording.joining import (
    Part,
    Ranges,
    cropped,
    joined_call,
    joined_ranges,
    of_beams,
    shape_of,
)
from headloom.tracing.recording.layer_call import LayerCall, RecordedCall
from headloom.tracing.recording.step_room import StepRoom

__all__ = ["Passes"]


#: Steps of a generation that are joined while it goes on.
TOGETHER = 16


class Passes:
    """Receives the recorded calls of the passes of one text, and joins them.

    Args:
        queries_keys: whether queries and keys are wanted; else their shapes alone are kept.
        file: where long passes, as that of the prompt, wait for the last one; None: in memory.
    """

    def __init__(self, *, queries_keys: bool = True, file: CallFile | None = None) -> None:
        self._queries_keys, self._file = queries_keys, file
        self._rooms: dict[tuple[str, int], StepRoom] = {}
        self._parts: dict[tuple[str, int], list[Part]] = {}
        self._cached: dict[tuple[str, int], CachedKeys] = {}
        #: Of each layer, how many positions its cache had let go of before its first pass.
        self._gone: dict[tuple[str, int], int] = {}
        self._seen: dict[str, int] = {}
        self._before = 0
        #: Of each pass, how many positions its text had when it began.
        self.begins: list[int] = []
        #: Of each pass, which row of the pass before it every row goes on from; None: from itself.
        self.orders: list[Tensor | None] = []
        self._order: Tensor | None = None
        #: The ranges of steps that were joined last, and of what: layers share them.
        self._ranges: tuple[list[Ranges], Ranges] = ([], None)

    def new_pass(self, before: int) -> None:
        """The model begins a pass; the cache holds so many positions."""
        self._before = before
        self._seen.clear()
        self.begins.append(before)
        self.orders.append(self._order)
        self._order = None

    def reorder(self, order: Tensor) -> None:
        """The cache takes row ``order[b]`` as row b, before the next pass."""
        self._settle()
        self._order = order.detach() if self._order is None else self._order[order]

    @property
    def passes(self) -> int:
        """How many passes there were."""
        return len(self.begins)

    def crop(self, length: int, encodes: bool) -> None:
        """The cache lets go of its positions from one on, as of candidates that are not accepted.

        encodes: whether the layers of kind "encoder" read another text, which no cache holds.
        """
        self._settle()
        for layer, parts in self._parts.items():
            grows = not (encodes and parts and parts[-1].call.kind == "encoder")
            cached = self._cached.get(layer)
            if grows and cached is not None and cached.known is not None:
                if cached.places is not None:
                    raise InputError(OTHER_KEYS)
                cached.known = cached.known[:, :, : length - self._gone[layer]]
            while parts and grows:
                part = parts[-1]
                rows = part.call.graph.shape[2]
                beyond = self.begins[part.number] + rows - length
                if beyond <= 0:
                    break
                whole = self._taken(parts.pop())
                if beyond < rows:
                    part = replace(whole, call=cropped(whole.call, beyond))
                    parts.append(self._put_if_long(part))

    def are_verified(self) -> bool:
        """Whether the calls of this pass are: of the first, the second, fourth, eighth ..."""
        return self.passes & (self.passes - 1) == 0

    def new_keys(self, call: LayerCall, ranges: Ranges) -> slice | None:
        """The keys of a call that no pass before it had; of two sequences those of the first.

        None: it is a step of one token, whose values are asked for with those of the steps around
        it.

        ranges: of the mask of the call, as RecordedCall has them.
        """
        parts = self._parts.get((call.path, self._seen.get(call.path, 0)))
        if call.kind == "cross" or call.weights_only:
            return slice(0, 0) if parts else slice(None)
        own, there = call.queries.shape[2], call.keys.shape[2]
        if parts and own == 1 and there >= TOGETHER and call.bias is None:
            return None
        end = self._end(own, there, ranges)
        if parts:
            return slice(end - own, end)
        # Queries that are pooled, or latents, are fewer than the keys that they see.
        return slice(0, end if end == there else max(end, _seen_end(call, ranges)))

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
            self._step(call, parts, place)
            return
        self._join_steps(parts)
        part = self._part(call, parts, place) if grows else Part(call, 0, number)
        if not self._queries_keys:
            call.queries, call.keys = shape_of(call.queries), shape_of(call.keys)
        parts.append(self._put_if_long(part))
        self._join_last(parts)

    def _step(self, call: RecordedCall, parts: list[Part], place: int) -> None:
        """A pass of one query, which waits for others.

        In every layer of every step, what is done here meets cold caches, at many times its usual
        price. So norms, ranges and edges are joined of several steps at once.
        """
        assert call.keys is not None and call.values is not None
        there = call.keys.shape[2]
        end = self._end(1, there, call.ranges)
        first = self._place(call, place, slice(end - 1, end))
        call.keys = call.keys[:, :, end - 1 : end]
        call.values = call.values[:, :, end - 1 : end]
        room = self._rooms.get((call.path, place))
        if room is None:
            room = self._rooms[call.path, place] = StepRoom(call, TOGETHER, self._queries_keys)
        waiting = _waiting(parts)
        # Copies: views would hold the cache until the next step of the layer has a longer one.
        if not room.take(call, waiting):
            call.keys, call.values = call.keys.clone(), call.values.clone()
        parts.append(Part(call, first, self.passes - 1, waits=True))
        if waiting + 1 == TOGETHER:
            self._join_steps(parts)

    def _settle(self) -> None:
        """Join all steps that wait: the cache is about to change, or no other will come."""
        for parts in self._parts.values():
            self._join_steps(parts)

    def _join_steps(self, parts: list[Part]) -> None:
        """Join the steps of a layer that wait.

        Their many small tensors would lie between the tensors of the cache, which is a new and
        longer one at each step, and the memory that it leaves could not be used again.
        """
        count = _waiting(parts)
        if not count:
            return
        waiting = parts[-count:]
        values = torch.cat([v for part in waiting if (v := part.call.values) is not None], 2)
        length = waiting[-1].first + waiting[-1].call.graph.length
        ranges = [part.call.ranges for part in waiting]
        if any(part.first for part in waiting):
            ranges_of_all = joined_ranges(waiting, length)
        else:
            known, ranges_of_all = self._ranges
            if len(known) != count or any(a is not b for a, b in zip(known, ranges, strict=True)):
                ranges_of_all = joined_ranges(waiting, length)
                self._ranges = ranges, ranges_of_all
        for part in waiting:
            part.call.ranges = part.call.values = None
            if not self._queries_keys:
                part.call.queries = shape_of(part.call.queries)
                part.call.keys = shape_of(part.call.keys)
        joined = joined_call(waiting, length)
        joined.value_norms = torch.linalg.vector_norm(values.float(), dim=-1)
        joined.ranges = ranges_of_all
        if count == 1:
            # It was not joined with any, and the room is for others.
            joined = replace(
                with_tensors(joined, Tensor.clone), graph=with_tensors(joined.graph, Tensor.clone)
            )
        part = Part(joined, 0, waiting[0].number, count)
        parts[-count:] = [self._put(part)]

    def _join_last(self, parts: list[Part]) -> None:
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
        joined = joined_call(last, length)
        part = Part(joined, 0, last[0].number, TOGETHER)
        parts[-TOGETHER:] = [self._put(part)]

    def _put_if_long(self, part: Part) -> Part:
        """Steps that come one by one are joined first."""
        return part if part.call.graph.shape[2] == 1 else self._put(part)

    def _put(self, part: Part) -> Part:
        """Put what is large of a part into the file, if there is one, until all are joined."""
        if self._file is not None:
            part.place, part.call = self._file.put(part.call)
        return part

    def _taken(self, part: Part) -> Part:
        """A part with all that is in the file of it."""
        if part.place is None or self._file is None:
            return part
        return replace(part, call=self._file.get(part.call, part.place), place=None)

    def _first_key(self, call: RecordedCall, place: int, there: int) -> int:
        """The place of the first key of a call among all that the layer's passes have.

        Caches of windows let go of their first keys, some before the first pass that is recorded.
        """
        assert call.queries is not None
        beyond = self._before + call.queries.shape[2] - there
        # Without a cache keys may be pooled, and fewer than queries.
        gone = max(0, beyond) if self._before else 0
        call.gone = self._gone.setdefault((call.path, place), gone)
        return gone - call.gone

    def _part(self, call: RecordedCall, parts: list[Part], place: int) -> Part:
        """A pass of self-attention with its own keys alone."""
        assert call.queries is not None and call.keys is not None
        assert call.value_norms is not None
        own, there = call.queries.shape[2], call.keys.shape[2]
        # Of the first pass as many as `new_keys` said, whose norms were taken.
        end = self._end(own, there, call.ranges) if parts else call.value_norms.shape[2]
        new = slice(end - own if parts else 0, end)
        first = self._place(call, place, new)
        # Not views: they would keep the whole cache of every step in memory.
        call.keys = call.keys[:, :, new].clone() if self._queries_keys else call.keys[:, :, new]
        return Part(call, first, self.passes - 1)

    def _end(self, own: int, there: int, ranges: Ranges) -> int:
        """The end of a call's keys: caches of a fixed size have room behind it, which is hidden.

        Where it is not, this cache holds more than that of the first layer, by which models count.
        """
        end = min(there, self._before + own)
        sees = (of_input is not None and int(of_input[1, -1]) > end for of_input in ranges or ())
        return there if end < there and any(sees) else end

    def _place(self, call: RecordedCall, place: int, new: slice) -> int:
        """Take the keys of a call; the place of the first of them, as a `Part` has it."""
        assert call.keys is not None
        layer = call.path, place
        first = self._first_key(call, place, call.keys.shape[2])
        cached = self._cached.setdefault(layer, CachedKeys())
        cached.take(call.keys, new, first, self.orders[-1])
        if cached.places is None or cached.known is None:
            return first
        self.begins[-1] = self._gone[layer] + cached.known.shape[2] - (new.stop - new.start)
        cached.move(call)
        return 0

    def joined(self, beams: Beams | None = None) -> Iterator[RecordedCall]:
        """Every layer, its passes one below the other; of a beam search those of each sequence.

        Each layer's passes are let go when the layer is made, so that memory never holds all twice.
        """
        self._settle()
        while self._parts:
            layer = next(iter(self._parts))
            parts = self._parts.pop(layer)
            call = joined_call(of_beams([self._taken(part) for part in parts], beams))
            if layer in self._cached and self._cached[layer].places is not None:
                call.missing = THINNED
            yield call


def _seen_end(call: LayerCall, ranges: Ranges) -> int:
    """The end of the keys that some query of a call may look at."""
    keys = call.keys.shape[2]
    if call.mask is None:
        return keys if call.bias is None else 0
    ends = [int(own[1].max()) for own in ranges or () if own is not None and own.numel()]
    if len(ends) == len(call.queries):
        return max(ends)
    cells = call.mask.cells(range(call.queries.shape[2]), keys, call.queries.device)
    seen = cells.expand(*cells.shape[:-1], keys).flatten(0, -2).any(0).nonzero()
    return int(seen[-1]) + 1 if len(seen) else 0


def _waiting(parts: list[Part]) -> int:
    """How many steps of a layer wait to be joined, the last ones."""
    count = 0
    while count < len(parts) and parts[-1 - count].waits:
        count += 1
    return count
