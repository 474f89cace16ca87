"""What tensors were computed from: which inputs of a model, and which of its attention calls.

Self-attention projects queries and keys from one tensor, cross-attention from two; the call itself
says nothing of that. So every function of torch that runs is followed: a result comes from the
largest of what the function was given; tensors that are put together from each; the output of
attention from its queries, whose positions it keeps. Parameters and buffers come from nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

#: Functions that put tensors together; and those that write one into another.
_TOGETHER = ("cat", "concat", "concatenate", "stack", "hstack", "vstack")
_WRITES = ("__setitem__", "copy_", "index_copy_", "scatter_", "slice_scatter", "index_put_")
#: Functions that put positions in another order, and the first argument that says the dimension.
_ORDERS = {"flip": 1, "roll": 2, "index_select": 1, "gather": 1}
#: Functions that make tensors of numbers from elsewhere.
_ELSEWHERE = ("from_numpy", "as_tensor", "tensor", "from_dlpack")


@dataclass(eq=False)
class _Track:
    """See `Provenance.call`. calls: on it; origins: these, and what they come from; as bits."""

    number: int
    calls: int = 0
    origins: int = 0


class Provenance:
    """The inputs and calls that tensors were computed from, a bit for each."""

    def __init__(self) -> None:
        self._bits = WeakIdKeyDictionary()
        self._count = 0
        #: By how many positions; and by paths with the bit of each call.
        self._tracks: dict[int, list[_Track]] = {}
        self._before: dict[str, list[tuple[int, _Track]]] = {}
        self._output: int | None = None

    def begin(self, inputs: object, buffers: Iterable[Tensor]) -> None:
        """The model begins to run on some inputs; its buffers come from none."""
        self.__init__()  # type: ignore[misc]
        for tensor in _tensors(inputs):
            self._bits[tensor] = self._next_bit()
        self._bits.update((tensor, 0) for tensor in buffers)

    def call(
        self, path: str, queries: Tensor, keys: Tensor, lengths: Sequence[int]
    ) -> tuple[int, int]:
        """The tracks of the queries and the keys of the attention call that begins; 0: not known.

        A track is the same positions through the model. A call is on that of an earlier one over as
        many if it was computed from what that gave, or from the same input. A module that runs
        again is on another one, unless it reads what it gave itself; so is a call that reads
        positions in another order.
        """
        bits, output = self._bits_of(queries), self._next_bit()
        before = self._before.setdefault(path, [])
        others = [track for own, track in before if not bits & own]
        track = self._track(lengths[0], bits, bool(before), others)
        track.calls |= output
        track.origins |= bits | output
        before.append((output, track))
        self._output = bits | output
        return track.number, self._track(lengths[1], self._bits_of(keys), False, []).number

    def _track(self, length: int, bits: int, again: bool, others: list[_Track]) -> _Track:
        """The track of so many positions that come from `bits`; again: not by an input alone."""
        if bits < 0:
            return _Track(0)
        tracks = self._tracks.setdefault(length, [])
        for track in tracks:
            if track not in others and bits & (track.calls if again else track.origins):
                return track
        tracks.append(_Track(self._next_bit(), origins=bits))
        return tracks[-1]

    def called(self, output: object) -> None:
        """Note what the attention call that began gave."""
        if self._output is not None and output is not None:
            self._bits.update((tensor, self._output) for tensor in _tensors(output))
            self._output = None

    def shared(self, queries: Tensor, keys: Tensor) -> bool:
        """Whether queries come from the same as keys, or as some of the keys."""
        own, other = self._bits_of(queries), self._bits_of(keys)
        if queries is keys or own == other:
            return True
        return own > 0 and other > 0 and not own & ~other

    def _next_bit(self) -> int:
        self._count += 1
        return 1 << self._count

    def _bits_of(self, tensor: Tensor) -> int:
        """Calls and inputs, a bit for each; -1 where no function of torch was seen to make it."""
        if isinstance(tensor, nn.Parameter):
            return 0
        return int(self._bits[tensor]) if tensor in self._bits else -1

    def follow(self, name: str, args: object, result: object) -> None:
        """Note what a function of torch computed: its name, all that it was given, what it gave."""
        results = _tensors(result)
        if not results and name not in _WRITES:
            return
        sources = [part for part in _tensors(args) if not isinstance(part, nn.Parameter)]
        if name in _WRITES:
            results = [*results, *sources[:1]]
        elif "attention" in name or name == "attend":
            sources = sources[:1]
        elif name not in _TOGETHER:
            largest = max((source.numel() for source in sources), default=0)
            sources = [source for source in sources if source.numel() == largest]
        bits = -1 if name in _ELSEWHERE else 0
        for source in sources:
            bits |= self._bits_of(source)
        if bits > 0 and _reorders(name, args, result):
            bits = self._next_bit()
        self._bits.update((tensor, bits) for tensor in results)


def flat(parts: object) -> Iterator[object]:
    """What stands in lists, tuples and mappings, whatever their depth."""
    if isinstance(parts, Mapping):
        parts = list(parts.values())
    if isinstance(parts, list | tuple):
        for part in parts:
            yield from flat(part)
    else:
        yield parts


def _tensors(parts: object) -> list[Tensor]:
    return [part for part in flat(parts) if isinstance(part, Tensor)]


def _reorders(name: str, args: object, result: object) -> bool:
    """Whether a function puts positions of (batch, positions, features) in another order."""
    if name not in (*_ORDERS, "__getitem__") or not isinstance(args, tuple):
        return False
    states = args[0]
    if not isinstance(states, Tensor) or states.ndim != 3 or states.shape[1] < 2:
        return False
    if getattr(result, "shape", None) != states.shape:
        return False
    if name in _ORDERS:
        return any(type(dim) is int and dim in (1, -2) for dim in flat(args[_ORDERS[name] :]))
    match args[1]:
        case (slice(), list() | Tensor() as places, *_):
            return getattr(places, "dtype", None) != torch.bool
    return False
