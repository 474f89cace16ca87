"""Join the passes of a generation with a cache; each pass adds rows to every layer.

The first pass reads the prompt, each later one a token, whose query sees the keys in the cache: all
passes together have the rows of one pass over the whole text.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
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
from headloom.tracing.model_state import release_memory
from headloom.tracing.recording.joining import Part, Steps, joined_call
from headloom.tracing.recording.layer_call import LayerCall, RowRanges
from headloom.tracing.recording.verification import tolerance

#: Bytes from which on a tensor is buffered in the temporary file.
LARGE = 2**14
#: Bytes written before free memory is returned to the system.
RELEASE_AFTER = 2**26
_OTHER_KEYS = (
    "trace: the cache does not hold the keys that earlier passes computed: it was reordered (by "
    "beams), cropped, rotated, quantized or filled elsewhere. Use another cache, or trace the "
    "generated text."
)
#: Reason why a layer has no matrix.
_EVICTED = "keys were evicted from the cache, so that rows do not see all keys before them"


class _Layer:
    """State of a layer: its parts, the steps not joined yet, and the keys that it computed."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.steps: Steps | None = None
        #: First bytes of each key, (batch, heads, room for keys), and the number of keys.
        self.known: Tensor | None = None
        self.count = 0

    def add_keys(self, keys: Tensor) -> None:
        """Add the first bytes of keys."""
        end = self.count + keys.shape[2]
        if self.known is None or end > self.known.shape[2]:
            room = keys.new_empty(*keys.shape[:2], end + 64)
            if self.known is not None:
                room[:, :, : self.count] = self.known[:, :, : self.count]
            self.known = room
        self.known[:, :, self.count : end] = keys
        self.count = end

    def first(self, count: int) -> _Layer:
        """Return a layer with its first rows and keys."""
        layer, rows = _Layer(), count
        for part in (*self.parts, *([self.steps.joined()] if self.steps else ())):
            if rows > 0:
                layer.parts.append(part.first_rows(rows))
            rows -= part.call.graph.shape[2]
        assert self.known is not None
        layer.add_keys(self.known[:, :, :count])
        return layer

    def has(self, keys: Tensor, first: int, end: int) -> bool:
        """Return whether these are the keys of some positions, but for rounding."""
        assert self.known is not None
        expected, now = self.known[:, :, first:end].contiguous(), _first_bytes(keys)
        if expected.shape != now.shape or torch.equal(expected, now):
            return expected.shape == now.shape
        # Keys that are decompressed from the cache are rounded differently every time.
        old, new = (part[..., None].view(keys.dtype).float() for part in (expected, now))
        size = torch.linalg.vector_norm(old, dim=-1).amax(-1, keepdim=True)
        far = torch.linalg.vector_norm(new - old, dim=-1)
        return bool((far <= tolerance(keys.dtype) * size).all())

    def places(self, keys: Tensor) -> Tensor:
        """Find the first bytes of surviving keys among all; (batch, heads, keys), their places.

        Raises: InputError: a key is none of them, or equals several; the last keys are gone, as
            after cropping, so that what follows is another text.
        """
        assert self.known is not None
        known, order = self.known[:, :, : self.count].sort(-1)
        if keys.shape[:2] != known.shape[:2] or keys.shape[2] > self.count:
            raise InputError(_OTHER_KEYS)
        at = torch.searchsorted(known, keys.contiguous()).clamp(max=self.count - 1)
        twins = known.gather(-1, (at + 1).clamp(max=self.count - 1)) == keys
        unclear = (known.gather(-1, at) != keys) | (twins & (at + 1 < self.count))
        places = order.gather(-1, at)
        is_cropped = torch.equal(places, torch.arange(keys.shape[2]).to(places).expand_as(places))
        if bool(unclear.any()) or is_cropped:
            raise InputError(_OTHER_KEYS)
        return places


class Passes:
    """Collects the recorded calls of the passes of one text, and joins them.

    Args:
        queries_keys: whether to keep queries and keys; otherwise only their number.
        save: path of the trace, beside which large tensors are buffered in an unnamed temporary
            file. None: in memory.

    Raises: DataError: the file cannot be written.
    """

    def __init__(self, *, queries_keys: bool = True, save: Path | str | None = None) -> None:
        self._queries_keys = queries_keys
        self._file = None if save is None else _CallFile(save)
        self._layers: dict[tuple[str, int], _Layer] = {}
        self._calls: dict[str, int] = {}
        self._ranges: RowRanges = None  # of a mask, which layers of a pass share
        self._ranges_end = 0
        #: Whether the cache of this pass was compared with computed keys.
        self._is_compared = False
        #: Whether keys were evicted from the cache.
        self._is_thinned = False
        #: Number of positions of the text at the beginning of each pass.
        self.begins: list[int] = []

    def new_pass(self, before: int) -> None:
        """Begin a pass. before: number of positions in the cache."""
        self._calls.clear()
        self._ranges, self._is_compared = None, False
        self.begins.append(before)

    @property
    def are_verified(self) -> bool:
        """Whether the calls of this pass are verified: in the passes 1, 2, 4, 8 ..."""
        passes = len(self.begins)
        return passes & (passes - 1) == 0

    def __call__(self, call: LayerCall) -> None:
        """Add a call of a layer in this pass."""
        place = self._calls.get(call.path, 0)
        self._calls[call.path] = place + 1
        layer = self._layers.setdefault((call.path, place), _Layer())
        later, first = bool(layer.parts), 0
        if call.kind != "cross":
            # Encoders with a language head grow too: with a cache, each later token sees all before
            # it, the prompt sees itself.
            first, new, places = self._own_keys(layer, call)
            if places is not None:
                first = 0
                call.graph, call.ranges = _moved(call.graph, places, layer.count), None
                call.bias, call.missing = None, _EVICTED
            call.keys, call.values = call.keys[:, :, new], call.values[:, :, new]
        elif later:
            call.keys, call.values = call.keys[:, :, :0], call.values[:, :, :0]
        if call.values_known:
            call.value_norms = torch.linalg.vector_norm(call.values.float(), dim=-1)
        call.values = call.values[:, :, :0].clone()
        call.mask = None
        if not self._queries_keys:
            call.queries = call.queries.new_empty(*call.queries.shape[:3], 0)
            call.keys = call.keys.new_empty(*call.keys.shape[:3], 0)
        is_step = later and call.graph.shape[2] == 1 and call.bias is None
        if layer.steps is not None and not (is_step and layer.steps.fits(call)):
            layer.parts.append(self._put(layer.steps.joined()))
            layer.steps = None
        if is_step:
            layer.steps = layer.steps or Steps(call)
            layer.steps.take(call, first)
            return
        if self._queries_keys:
            # A copy: a view would keep the whole cache of every step.
            call.keys = call.keys.clone()
        layer.parts.append(self._put(Part(call, first)))

    def _own_keys(self, layer: _Layer, call: LayerCall) -> tuple[int, slice, Tensor | None]:
        """Return the place of a call's first key among its layer's keys, and the slice of new keys.

        And the places of all its keys, (batch, heads, keys), if some between were evicted. Caches
        of a fixed size have hidden room behind the keys; caches of windows drop their first keys.
        """
        queries, keys, before = call.queries.shape[2], call.keys.shape[2], self.begins[-1]
        if call.ranges is not None and call.ranges is not self._ranges:
            ends = [keys if rows is None else int(rows[1].max()) for rows in call.ranges]
            self._ranges, self._ranges_end = call.ranges, max(ends, default=0)
        last = keys if call.ranges is None else self._ranges_end
        end = min(keys, max(before + queries, last))
        new = slice(0 if layer.known is None else end - queries, end)
        first = max(0, before + queries - keys) if before else 0
        if layer.known is None and first:
            raise InputError(_OTHER_KEYS)
        places = self._compare(layer, call.keys[:, :, : new.start], first) if new.start else None
        if places is not None:
            added = torch.arange(layer.count, layer.count + queries).to(places)
            places = torch.cat((places, added.expand(*places.shape[:2], -1)), 2)
        layer.add_keys(_first_bytes(call.keys[:, :, new]))
        return first, new, places

    def _compare(self, layer: _Layer, keys: Tensor, first: int) -> Tensor | None:
        """Compare the keys of a cache with the keys that a layer computed, from the first on.

        For one text with a whole cache the first layer is enough, except in passes that are
        verified. Returns: None, or the places of the keys that survive in a thinned cache.
        """
        if (
            not first and self._is_compared and len(keys) == 1 and keys.shape[2] == layer.count
            and not (self.are_verified or self._is_thinned)
        ):  # fmt: skip
            return None
        self._is_compared = True
        if layer.has(keys, first, layer.count):
            return None
        self._is_thinned = True
        return layer.places(_first_bytes(keys))

    def _put(self, part: Part) -> Part:
        """Move the large tensors of a part to the file, if there is one, until all are joined."""
        if self._file is not None:
            part.place = self._file.put(part.call)
        return part

    @property
    def is_empty(self) -> bool:
        """Whether no call was recorded."""
        return not self._layers

    def holds(self, call: LayerCall, count: int) -> bool:
        """Return whether the cached keys of another text's call are of this text's first positions.

        count: number of the positions, of which the last ones may be cached.
        """
        layer = self._layers.get((call.path, 0))
        if layer is None or layer.count < count:
            return False
        keys = call.keys[:, :, : -call.queries.shape[2]]
        return layer.has(keys, count - keys.shape[2], count)

    def begin_with(self, other: Passes, count: int) -> None:
        """Take the rows of another text's first positions, which are the same in this text."""
        self._layers = {place: layer.first(count) for place, layer in other._layers.items()}

    def joined(self) -> Iterator[LayerCall]:
        """Yield every layer, its passes one below the other.

        The passes of a layer are freed with it, so that memory never holds all of them twice.
        """
        while self._layers:
            layer = self._layers.pop(next(iter(self._layers)))
            parts = layer.parts + ([] if layer.steps is None else [layer.steps.joined()])
            for part in parts:
                if part.place is not None and self._file is not None:
                    self._file.get(part.call, part.place)
            yield joined_call(parts)


def _moved(graph: AttentionGraph, places: Tensor, length: int) -> AttentionGraph:
    """Return a graph whose keys are at these places of the text, (batch, kv_heads, keys)."""
    heads = graph.keys.shape[1]
    of_heads = places.repeat_interleave(heads // places.shape[1], 1)
    slots = graph.keys.clamp(min=0).long()
    moved = of_heads.gather(-1, slots.flatten(2)).view_as(slots).to(graph.keys.dtype)
    return replace(graph, keys=torch.where(graph.keys < 0, graph.keys, moved), length=length)


def _first_bytes(keys: Tensor) -> Tensor:
    """Return the first eight bytes of each key as an integer; more would be slow."""
    width = 8 // keys.element_size()
    part = keys[..., :width]
    if keys.shape[3] < width:
        part = pad(part, (0, width - keys.shape[3]))
    return part.contiguous().view(torch.int64)[..., 0]


class _CallFile:
    """Temporary file that buffers the large tensors of calls while a model runs."""

    def __init__(self, path: Path | str) -> None:
        self._path = Path(os.path.realpath(path))
        with disk_errors(path, NOT_WRITABLE):
            self._file = tempfile.TemporaryFile(dir=self._path.parent)  # noqa: SIM115
        finalize(self, self._file.close)
        self._written_since = 0

    def put(self, call: LayerCall) -> int:
        """Write the large tensors of a call, leaving their shapes in it; return their place."""
        with disk_errors(self._path):
            place = self._file.seek(0, os.SEEK_END)
            self._change(call, self._written)
            self._file.flush()
        if self._written_since >= RELEASE_AFTER:
            self._written_since = 0
            release_memory()
        return place

    def get(self, call: LayerCall, place: int) -> None:
        """Read the tensors of a call from a place, in the order in which they were written."""
        with disk_errors(self._path):
            self._file.seek(place)
            self._change(call, self._read)

    def _change(self, call: LayerCall, change: Callable[[Tensor], Tensor]) -> None:
        call.graph = with_tensors(call.graph, change)
        call.queries, call.keys = change(call.queries), change(call.keys)

    def _written(self, tensor: Tensor) -> Tensor:
        if tensor.nbytes < LARGE or not tensor.is_cpu:
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
