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
from headloom.tracing.arguments import Arguments, Inputs
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
        assert layer.known is not None
        expected = layer.known[:, :, first : layer.count].contiguous()
        same = expected.shape == keys.shape[:3]
        if (
            same and not first and self._is_compared and len(keys) == 1
            and not (self.are_verified or self._is_thinned)
        ):  # fmt: skip
            return None
        now, self._is_compared = _first_bytes(keys), True
        if same:
            if torch.equal(expected, now):
                return None
            # Keys that are decompressed from the cache are rounded differently every time.
            old, new = (part[..., None].view(keys.dtype).float() for part in (expected, now))
            size = torch.linalg.vector_norm(old, dim=-1).amax(-1, keepdim=True)
            far = torch.linalg.vector_norm(new - old, dim=-1)
            if bool((far <= tolerance(keys.dtype) * size).all()):
                return None
        self._is_thinned = True
        return layer.places(now)

    def _put(self, part: Part) -> Part:
        """Move the large tensors of a part to the file, if there is one, until all are joined."""
        if self._file is not None:
            part.place = self._file.put(part.call)
        return part

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


class Text:
    """Passes of a model over one text, or one batch of texts.

    Args:
        is_pair: whether only the target grows, as in an encoder-decoder.
        prompt: the arguments of the generation; empty: unknown.
        ends: the tokens that end a text, and the padding token after them.
    """

    def __init__(
        self, is_pair: bool, prompt: Inputs, ends: tuple[int | list[int] | None, int | None]
    ) -> None:
        self._prompt_inputs, self._ends = prompt, ends
        self._name = "decoder_input_ids" if is_pair else "input_ids"
        #: Whether the model itself has run, not only its encoder.
        self.decoded = False
        #: Tokens of the prompt: of all passes before the first pass of one token.
        self.prompt: int | None = None
        #: Number of positions of the text; None: unknown.
        self.length: int | None = None
        #: Other arguments of the last pass, and the ids of each pass.
        self._others: dict[str, Tensor] = {}
        self._ids: dict[str, list[Tensor]] = {}

    def new_pass(self, arguments: Inputs, before: int, model: bool) -> None:
        """Add a pass with these arguments.

        before: number of positions before it. model: whether the whole model runs.
        """
        tensors = {name: v for name, v in arguments.items() if isinstance(v, Tensor)}
        for name in ("input_ids", "decoder_input_ids"):
            if name in tensors and tensors[name].ndim == 2:
                ids = tensors.pop(name).detach().cpu()
                self._ids.setdefault(name, []).append(ids)
                if name == self._name:
                    self.length = before + ids.shape[1]
                if name == self._name and model:
                    reads_on = self.prompt == before and ids.shape[1] > 1
                    if self.prompt is None or reads_on:
                        self.prompt = before + ids.shape[1]
        for name, value in tensors.items():
            if name != "attention_mask" or value.ndim == 2:
                self._others[name] = value.detach()
        self.decoded = self.decoded or model

    def inputs(self) -> Arguments:
        """Return the arguments for one pass over the whole text."""
        arguments: Arguments = {
            name: value
            for name, value in self._prompt_inputs.items()
            if isinstance(value, Tensor) and name not in (self._name, "attention_mask")
        }
        arguments |= self._others
        arguments |= {name: torch.cat(parts, 1) for name, parts in self._ids.items()}
        mask_name = self._name.replace("input_ids", "attention_mask")
        ids = arguments.get(self._name)
        if ids is None or self.prompt is None or self.prompt >= ids.shape[1]:
            return arguments
        mask = arguments.get(mask_name)
        if mask is None or mask.shape != ids.shape:
            mask = torch.ones_like(ids)
            first = self._prompt_inputs.get(mask_name)  # a cache of fixed size changes the mask
            if isinstance(first, Tensor) and first.ndim == 2 and len(ids) % len(first) == 0:
                prompt = first[:, : self.prompt].to(mask)
                mask[:, : prompt.shape[1]] = prompt.repeat_interleave(len(ids) // len(first), 0)
        arguments[mask_name] = self._until_end(ids, mask.cpu(), self.prompt)
        return arguments

    def _until_end(self, ids: Tensor, mask: Tensor, prompt: int) -> Tensor:
        """Return the mask of each text of a batch up to its end token; padding follows it."""
        end, padding = self._ends
        if end is None or len(ids) == 1:
            return mask  # one text ends where its generation does
        ends = torch.as_tensor(end).cpu().flatten()
        written = ids[:, prompt:].cpu()
        filled = written == (int(ends[0]) if padding is None else padding)
        rest = filled.flip(1).cumprod(1).flip(1).bool()  # only padding from here on
        last = torch.ones_like(rest[:, :1])
        closes = torch.isin(written, ends) & torch.cat((rest[:, 1:], last), 1)
        after = closes.cumsum(1) > 0
        return mask.masked_fill(torch.cat((after.new_zeros(len(after), prompt), after), 1), 0)
