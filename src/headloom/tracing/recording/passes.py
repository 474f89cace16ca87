"""Joins the passes of generation with a cache, of which each adds rows to every layer.

The first pass reads the prompt, each later one a token, whose query looks at the keys in the cache:
the rows of all passes are those of one pass over the whole text.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from weakref import finalize

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from headloom.errors import InputError
from headloom.formats.files import NOT_WRITABLE, disk_errors
from headloom.mechanism.graph import AttentionGraph
from headloom.mechanism.parts import with_tensors
from headloom.tracing.model_state import give_back
from headloom.tracing.recording.layer_call import LayerCall, RowRanges
from headloom.tracing.recording.texts import Beams, chosen_rows
from headloom.tracing.recording.verification import tolerance

__all__ = ["Passes"]

#: Steps of a generation that are joined while it goes on.
TOGETHER = 16
#: Bytes of a tensor from which on it waits in the file.
LARGE = 2**14
#: Bytes that are written before the memory that they took is given back.
GIVEN_BACK = 2**26
_OTHER_KEYS = (
    "trace: the cache holds other keys than the passes before computed: it was thinned, cropped, "
    "quantised or filled elsewhere. Take another cache, or trace the text that was generated."
)


@dataclass(eq=False, slots=True)
class _Part:
    """What the pass of a number adds to a layer, with keys and norms of its own positions alone.

    first: of the keys of its graph, among all; place: of its tensors in the file, None: here.
    """

    call: LayerCall
    first: int
    number: int
    place: int | None = None


class Passes:
    """Receives the recorded calls of the passes of one text, and joins them.

    Args:
        queries_keys: whether queries and keys are wanted; else their shapes alone are kept.
        save: where the trace is to be: long passes wait in a file without a name beside it. None:
            in memory.

    Raises: DataError: nothing can be written there.
    """

    def __init__(self, *, queries_keys: bool = True, save: Path | str | None = None) -> None:
        self._queries_keys = queries_keys
        self._file = None if save is None else _CallFile(save)
        self._parts: dict[tuple[str, int], list[_Part]] = {}
        #: The first bytes of each key that a layer computed, (batch, heads, keys).
        self._keys: dict[tuple[str, int], Tensor] = {}
        self._seen: dict[str, int] = {}
        self._ranges: RowRanges = None  # of a mask, which layers of a pass share
        self._ranges_end = 0
        #: From which rows of the pass before each row can go on, by the layers so far; None: itself
        self._goes_on: Tensor | None = None
        #: Of each pass, how many positions its text had when it began.
        self.begins: list[int] = []
        #: Of each pass, from which row of the pass before every row goes on; None: from itself.
        self.orders: list[Tensor | None] = []

    def new_pass(self, before: int) -> None:
        """The model begins a pass; the cache holds so many positions."""
        self.settle()
        self._seen.clear()
        self._ranges = None
        self.begins.append(before)
        if len(self.begins) % TOGETHER == 0:
            for parts in self._parts.values():
                self._join_steps(parts)
            # Small tensors lie between the tensors of the cache, which is a longer one each step.
            give_back()

    def settle(self) -> None:
        """The rows that the last pass went on from are known when all layers have told."""
        if len(self.orders) == len(self.begins):
            return
        order = None
        if self._goes_on is not None:
            if not bool(self._goes_on.any(1).all()):
                raise InputError(_OTHER_KEYS)
            order, self._goes_on = self._goes_on.int().argmax(1).cpu(), None
        self.orders.append(order)

    @property
    def passes(self) -> int:
        """How many passes there were."""
        return len(self.begins)

    @property
    def are_verified(self) -> bool:
        """Whether the calls of this pass are: of the first, the second, fourth, eighth ..."""
        return self.passes & (self.passes - 1) == 0

    def __call__(self, call: LayerCall) -> None:
        """Take a call of a layer in this pass."""
        place = self._seen.get(call.path, 0)
        self._seen[call.path] = place + 1
        layer = call.path, place
        parts = self._parts.setdefault(layer, [])
        first = 0
        if call.kind != "cross":
            # Encoders with a head for language grow too: with a cache, each later token looks at
            # all before it, the prompt at itself.
            first, new = self._own_keys(layer, call, bool(parts))
            call.keys, call.values = call.keys[:, :, new], call.values[:, :, new]
            if self._queries_keys:
                # A copy: a view would hold the whole cache of every step.
                call.keys = call.keys.clone()
        elif parts:
            call.keys, call.values = call.keys[:, :, :0], call.values[:, :, :0]
        if call.values_known:
            call.value_norms = torch.linalg.vector_norm(call.values.float(), dim=-1)
        call.values = call.values[:, :, :0].clone()
        call.mask = None
        if not self._queries_keys:
            call.queries, call.keys = _shape_of(call.queries), _shape_of(call.keys)
        part = _Part(call, first, self.passes - 1)
        parts.append(self._put(part) if call.graph.shape[2] > 1 else part)

    def _own_keys(self, layer: tuple[str, int], call: LayerCall, later: bool) -> tuple[int, slice]:
        """The place of a call's first key among all of its layer, and which keys are new.

        Caches of a fixed size have room behind the keys, which is hidden; those of windows let go
        of their first ones.
        """
        own, there, before = call.queries.shape[2], call.keys.shape[2], self.begins[-1]
        if call.ranges is not None and call.ranges is not self._ranges:
            ends = [there if rows is None else int(rows[1].max()) for rows in call.ranges]
            self._ranges, self._ranges_end = call.ranges, max(ends, default=0)
        last = there if call.ranges is None else self._ranges_end
        end = min(there, max(before + own, last))
        new = slice(end - own if later else 0, end)
        first = max(0, before + own - there) if before else 0
        now = _first_bytes(call.keys)
        known = self._keys.get(layer)
        if known is None:
            if first:
                raise InputError(_OTHER_KEYS)
            self._keys[layer] = now[:, :, new]
            return first, new
        if new.start:
            known = self._followed(known, now[:, :, : new.start], first, call.keys.dtype)
        self._keys[layer] = torch.cat((known, now[:, :, new]), 2)
        return first, new

    def _followed(self, known: Tensor, now: Tensor, first: int, dtype: torch.dtype) -> Tensor:
        """The keys of a layer in the rows of this pass, whose cache may be reordered, as by beams.

        Raises: InputError: the cache holds others.
        """
        expected = known[:, :, first:]
        if torch.equal(expected, now):
            return known
        if expected.shape[1:] != now.shape[1:]:
            raise InputError(_OTHER_KEYS)
        same = torch.stack([(expected == row).flatten(1).all(1) for row in now])
        if not bool(same.any(1).all()):
            # Keys made of smaller vectors in the cache are made anew, and rounded, every time.
            same = torch.stack([_are_near(expected, row, dtype) for row in now])
        if not bool(same.any(1).all()):
            raise InputError(_OTHER_KEYS)
        self._goes_on = same if self._goes_on is None else self._goes_on & same
        return known[same.int().argmax(1)]

    def _join_steps(self, parts: list[_Part]) -> None:
        """Join the last steps of a layer, but for those whose rows were exchanged: see beams."""
        count = 0
        for part in reversed(parts):
            if part.call.graph.shape[2] > 1 or part.place is not None:
                break
            if part.number and self.orders[part.number] is not None:
                break
            if count and part.call.graph.shape[0] != parts[-1].call.graph.shape[0]:
                break
            count += 1
        if count > 1:
            last = parts[-count:]
            length = last[-1].first + last[-1].call.graph.length
            joined = _joined_call(last, length)
            parts[-count:] = [self._put(_Part(joined, 0, last[0].number))]

    def _put(self, part: _Part) -> _Part:
        """Put what is large of a part into the file, if there is one, until all are joined."""
        if self._file is not None:
            part.place = self._file.put(part.call)
        return part

    def joined(self, beams: Beams | None) -> Iterator[LayerCall]:
        """Every layer, its passes one below the other; of a beam search those of each sequence.

        Each layer's passes are let go when the layer is made, so that memory never holds all twice.
        """
        self.settle()
        while self._parts:
            parts = self._parts.pop(next(iter(self._parts)))
            for part in parts:
                if part.place is not None and self._file is not None:
                    self._file.get(part.call, part.place)
                if beams is not None:
                    places = beams.of_pass(part.number, part.call.graph.shape[0])
                    part.call = chosen_rows(part.call, places)
            yield _joined_call(parts, None)


def _are_near(expected: Tensor, row: Tensor, dtype: torch.dtype) -> Tensor:
    """Which rows of known keys a row of keys is, but for rounding."""
    own, other = (
        part.contiguous()[..., None].view(dtype).float() for part in (expected, row[None])
    )
    size = torch.linalg.vector_norm(own, dim=-1).amax(-1, keepdim=True)
    far = torch.linalg.vector_norm(other - own, dim=-1)
    near: Tensor = far <= tolerance(dtype) * size
    return near.flatten(1).all(1)


def _first_bytes(keys: Tensor) -> Tensor:
    """The first eight bytes of each key as one number: more would take as long as the attention."""
    width = 8 // keys.element_size()
    part = keys[..., :width]
    if keys.shape[3] < width:
        part = pad(part, (0, width - keys.shape[3]))
    return part.contiguous().view(torch.int64)[..., 0]


def _shape_of(tensor: Tensor) -> Tensor:
    """A tensor with the shape of another and a single number, 0, in memory."""
    return tensor.new_zeros(()).expand(tensor.shape)


def _cat(tensors: list[Tensor]) -> Tensor:
    if not any(any(tensor.stride()) for tensor in tensors):  # shapes alone
        batch, heads, _, depth = tensors[0].shape
        return (
            tensors[0]
            .new_zeros(())
            .expand(batch, heads, sum(tensor.shape[2] for tensor in tensors), depth)
        )
    return torch.cat(tensors, 2)


def _joined_call(parts: list[_Part], length: int | None) -> LayerCall:
    """The passes of a layer as one call. length: of all keys; None: of those of the parts."""
    calls = [part.call for part in parts]
    first = calls[0]
    keys = _cat([call.keys for call in calls])
    if length is None:
        length = keys.shape[2]
    if len(parts) == 1 and first.graph.length == length:
        return first
    norms = [call.value_norms for call in calls if call.value_norms is not None]
    return first.changed(
        graph=_joined_graphs([(part.call.graph, part.first) for part in parts], length),
        deviations=[
            max((size for size in of_input if size is not None), default=None)
            for of_input in zip(*(call.deviations for call in calls), strict=False)
        ],
        queries=_cat([call.queries for call in calls]),
        keys=keys,
        value_norms=torch.cat(norms, 2) if norms else None,
        ranges=_joined_ranges(parts, length),
        bias=_joined_bias(parts, length),
    )


def _joined_graphs(graphs: list[tuple[AttentionGraph, int]], length: int) -> AttentionGraph:
    """Graphs with a batch, one below the other, each with the place of its first key among all."""
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


def _joined_ranges(parts: list[_Part], length: int) -> RowRanges:
    """For each input, the ranges of all rows."""
    joined: list[Tensor | None] = []
    for sample in range(len(parts[0].call.ranges or ())):
        rows = [(part.call.ranges or ())[sample] for part in parts]
        if any(own is None for own in rows):
            joined.append(None)
            continue
        moved = [
            # A query that sees nothing has the range 0 to 0 wherever its keys begin.
            torch.where(own[1] > own[0], own + part.first, own)
            for own, part in zip(rows, parts, strict=True)
            if own is not None
        ]
        joined.append(torch.cat(moved, 1).clamp(max=length))
    return tuple(joined) or None


def _joined_bias(parts: list[_Part], length: int) -> Tensor | None:
    """The rows of a bias as the passes had them, 0 for keys that were not there yet, or no more."""
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


class _CallFile:
    """A file in which the large tensors of calls wait while a model goes on.

    Args: path: of the trace that is to be: the file is in the same folder.
    """

    def __init__(self, path: Path | str) -> None:
        self._path = Path(os.path.realpath(path))
        with disk_errors(path, NOT_WRITABLE):
            self._file = tempfile.TemporaryFile(dir=self._path.parent)  # noqa: SIM115
        finalize(self, self._file.close)
        self._written_since = 0

    def put(self, call: LayerCall) -> int:
        """Write the large tensors of a call, leave their shapes in it; returns their place."""
        with disk_errors(self._path):
            place = self._file.seek(0, os.SEEK_END)
            self._change(call, self._written)
            self._file.flush()
        if self._written_since >= GIVEN_BACK:
            self._written_since = 0
            give_back()
        return place

    def get(self, call: LayerCall, place: int) -> None:
        """Read what was put to a place, in the order in which it was written."""
        with disk_errors(self._path):
            self._file.seek(place)
            self._change(call, self._read)

    def _change(self, call: LayerCall, change: Callable[[Tensor], Tensor]) -> None:
        call.graph = with_tensors(call.graph, change)
        call.queries, call.keys = change(call.queries), change(call.keys)

    def _written(self, tensor: Tensor) -> Tensor:
        # An expanded tensor has less memory than numbers.
        if tensor.nbytes < LARGE or not tensor.is_cpu:
            return tensor
        if tensor.untyped_storage().nbytes() < tensor.nbytes:
            return tensor
        self._file.write(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
        self._written_since += tensor.nbytes
        return torch.empty_like(tensor, device="meta")

    def _read(self, tensor: Tensor) -> Tensor:
        if not tensor.is_meta:
            return tensor
        content = np.fromfile(self._file, np.uint8, tensor.nbytes)
        if len(content) < tensor.nbytes:
            raise OSError(errno.EIO, "the temporary file ends too soon")
        return torch.from_numpy(content).view(tensor.dtype).view(tensor.shape)
