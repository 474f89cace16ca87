"""Provenance of tensors: the inputs of a model and the attention calls they were computed from.

Self-attention projects queries and keys from one tensor, cross-attention from two, which the call
does not show. So every torch function is followed: a result comes from the function's largest
argument; a concatenation from all its parts; the output of attention from its queries, whose
positions it keeps. Parameters and buffers have no origin.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

#: Functions that concatenate tensors; and functions that write one tensor into another.
_TOGETHER = ("cat", "concat", "concatenate", "stack", "hstack", "vstack")
_WRITES = ("__setitem__", "copy_", "index_copy_", "scatter_", "slice_scatter", "index_put_")
#: Functions that reorder positions, and the place of the argument for the dimension.
_ORDERS = {"flip": 1, "roll": 2, "index_select": 1, "gather": 1}
#: Functions that make tensors from other data.
_ELSEWHERE = ("from_numpy", "as_tensor", "tensor", "from_dlpack")


@dataclass(eq=False)
class _Track:
    """Track: see `Provenance.call`. calls: on it; origins: calls and their origins; as bits."""

    number: int
    calls: int = 0
    origins: int = 0


class Provenance:
    """Record of the inputs and calls that tensors were computed from, a bit for each."""

    def __init__(self) -> None:
        self._bits = WeakIdKeyDictionary()
        self._count = 0
        #: Tracks by their number of positions; and earlier calls of each path, with their bits.
        self._tracks: dict[int, list[_Track]] = {}
        self._before: dict[str, list[tuple[int, _Track]]] = {}
        self._output: int | None = None

    def begin(self, inputs: object, buffers: Iterable[Tensor]) -> None:
        """Start a run of the model on some inputs; its buffers have no origin."""
        self.__init__()  # type: ignore[misc]
        for tensor in _tensors(inputs):
            self._bits[tensor] = self._next_bit()
        self._bits.update((tensor, 0) for tensor in buffers)

    def call(
        self, path: str, queries: Tensor, keys: Tensor, lengths: Sequence[int]
    ) -> tuple[int, int]:
        """Return the tracks of a new attention call's queries and keys; 0: unknown.

        A track is one set of positions through the model. A call is on the track of an earlier call
        with as many positions if it was computed from its output, or from the same input. A module
        that runs again gets another track, unless it reads its own output; so does a call that
        reads positions in another order.
        """
        bits, output = self._bits_of(queries), self._next_bit()
        before = self._before.setdefault(path, [])
        others = [track for call_bit, track in before if not bits & call_bit]
        track = self._track(lengths[0], bits, bool(before), others)
        track.calls |= output
        track.origins |= bits | output
        before.append((output, track))
        self._output = bits | output
        return track.number, self._track(lengths[1], self._bits_of(keys), False, []).number

    def _track(self, length: int, bits: int, again: bool, others: list[_Track]) -> _Track:
        """Return the track of positions computed from `bits`; again: not from an input only."""
        if bits < 0:
            return _Track(0)
        tracks = self._tracks.setdefault(length, [])
        for track in tracks:
            if track not in others and bits & (track.calls if again else track.origins):
                return track
        tracks.append(_Track(self._next_bit(), origins=bits))
        return tracks[-1]

    def called(self, output: object) -> None:
        """Note the output of the last attention call."""
        if self._output is not None and output is not None:
            self._bits.update((tensor, self._output) for tensor in _tensors(output))
            self._output = None

    def shared(self, queries: Tensor, keys: Tensor) -> bool:
        """Return whether queries have the same origin as keys, or as some of the keys."""
        of_queries, of_keys = self._bits_of(queries), self._bits_of(keys)
        if queries is keys or of_queries == of_keys:
            return True
        return of_queries > 0 and of_keys > 0 and not of_queries & ~of_keys

    def _next_bit(self) -> int:
        self._count += 1
        return 1 << self._count

    def _bits_of(self, tensor: Tensor) -> int:
        """Return the calls and inputs of a tensor, a bit for each; -1: unknown."""
        if isinstance(tensor, nn.Parameter):
            return 0
        return int(self._bits[tensor]) if tensor in self._bits else -1

    def follow(self, name: str, args: object, result: object) -> None:
        """Note the origin of a torch function's result, by its name and its arguments."""
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
    """Yield the items of nested lists, tuples and mappings."""
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
    """Return whether a function reorders the positions of (batch, positions, features)."""
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
