"""Which tensor queries and keys were computed from: the same, or two.

Self-attention projects queries and keys from one tensor, cross-attention from two; the call itself
says nothing of that. So every function of torch that runs is followed: what is computed from one
tensor alone (a projection, a norm, a split, a new shape) comes from it; of several (a sum) from
what all of them come from, or, where one is larger, from the larger; a product, as rotary positions
make it, and tensors that are put together, from each of them. Parameters count if projected.

From which attention calls and inputs of the model a tensor was computed at all is followed too: by
the largest of what a function is given, and by the queries of attention, whose positions it keeps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

__all__ = ["Provenance"]

#: Products; functions that put tensors together; and those that write one into another.
_PRODUCTS = ("mul", "__mul__", "__rmul__", "multiply")
_TOGETHER = ("cat", "concat", "concatenate", "stack", "hstack", "vstack")
_WRITES = ("__setitem__", "copy_", "index_copy_", "scatter_", "slice_scatter", "index_put_")
#: Functions that project the first tensor they are given, perhaps queries that a model learns.
_PROJECTIONS = ("linear", "matmul", "__matmul__", "einsum", "layer_norm")
#: Functions that put positions in another order, and the first argument that says the dimension.
_ORDERS = {"flip": 1, "roll": 2, "index_select": 1, "gather": 1}
#: Functions that make tensors of numbers from elsewhere.
_ELSEWHERE = ("from_numpy", "as_tensor", "tensor", "from_dlpack")
#: Tensors that one is said to come from, at most: the nearest.
_NEAREST = 48


@dataclass(eq=False)
class _Track:
    """See `Provenance.call`. calls: on it; origins: these, and what they come from; as bits."""

    number: int
    calls: int = 0
    origins: int = 0


class Provenance:
    """The tensors that others were computed from, as numbers."""

    def __init__(self) -> None:
        self._origins: Any = WeakIdKeyDictionary()
        self._numbers = count()
        self._bits: Any = WeakIdKeyDictionary()
        self._count = 0
        #: By how many positions; and by paths with the bit of each call.
        self._tracks: dict[int, list[_Track]] = {}
        self._before: dict[str, list[tuple[int, _Track]]] = {}
        self._output: int | None = None

    def begin(self, inputs: Iterable[Any], buffers: Iterable[Tensor]) -> None:
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
        many if it was computed from what that gave, as the layers of a stack are, or from the same
        input. A module that runs again, on chunks, windows or pictures, is on another one each
        time, unless it reads what it gave itself, as a layer does that a whole stack shares. So is
        a call that reads positions in another order.
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

    def called(self, output: Any) -> None:
        """Note what the attention call that began gave."""
        if self._output is not None and output is not None:
            self._bits.update((tensor, self._output) for tensor in _tensors((output,)))
            self._output = None

    def _next_bit(self) -> int:
        self._count += 1
        return 1 << self._count

    def _bits_of(self, tensor: Tensor) -> int:
        """Calls and inputs, a bit for each; -1 where no function of torch was seen to make it."""
        return 0 if isinstance(tensor, nn.Parameter) else int(self._bits.get(tensor, -1))

    def pass_on(self, name: str, args: Iterable[Any], result: Any) -> None:
        """Note which calls and inputs the result of a function of torch comes from."""
        results = _tensors((result,))
        if not results and name not in _WRITES:
            return
        sources = [part for part in _tensors(args) if not isinstance(part, nn.Parameter)]
        if name in _WRITES:
            results = [*results, *sources[:1]]
        elif "attention" in name or name == "attend":
            sources = sources[:1]
        else:
            largest = max((source.numel() for source in sources), default=0)
            sources = [source for source in sources if source.numel() == largest]
        bits = -1 if name in _ELSEWHERE else 0
        for source in sources:
            bits |= self._bits_of(source)
        if bits > 0 and _reorders(name, tuple(args), result):
            bits = self._next_bit()
        self._bits.update((tensor, bits) for tensor in results)

    def of(self, tensor: Tensor) -> frozenset[int]:
        """What a tensor comes from: itself, and all that it was computed from alone."""
        known: frozenset[int] | None = self._origins.get(tensor)
        if known is None:
            self._origins[tensor] = known = frozenset((next(self._numbers),))
        return known

    def shared(self, first: Tensor, second: Tensor) -> bool:
        """Whether two tensors come from one."""
        return first is second or bool(self.of(first) & self.of(second))

    def follow(self, name: str, args: Iterable[Any], result: Any) -> None:
        """Note what a function of torch computed.

        Args: name: of the function; args: all that it was given; result: what it gave.
        """
        self.pass_on(name, args, result)
        sources = [part for part in _flat(args) if _is_computed(part)]
        sources = sources or (_tensors(args)[:1] if name in _PROJECTIONS else [])
        if name in _WRITES and sources:
            written = frozenset().union(*map(self.of, sources))
            for tensor in (sources[0], result):
                if isinstance(tensor, Tensor):
                    self._origins[tensor] = written
            return
        results = [part for part in _flat((result,)) if _is_computed(part)]
        if not results or any(part is source for part in results for source in sources):
            return
        origins = self._joined(name, sources)
        for part in results:
            own = next(self._numbers)
            nearest = sorted(origins)[-_NEAREST:] if len(origins) > _NEAREST else origins
            self._origins[part] = frozenset((*nearest, own))

    def _joined(self, name: str, sources: list[Tensor]) -> frozenset[int]:
        """What the result of a function of these tensors comes from."""
        if not sources:
            return frozenset()
        largest = max(source.numel() for source in sources)
        if name in _TOGETHER:
            return frozenset().union(*map(self.of, sources))
        origins = [self.of(source) for source in sources if source.numel() == largest]
        join = frozenset.union if name in _PRODUCTS else frozenset.intersection
        return join(*origins)


def _flat(parts: Iterable[Any]) -> Iterable[Any]:
    for part in parts:
        if isinstance(part, list | tuple):
            yield from _flat(part)
        elif isinstance(part, Mapping):
            yield from _flat(part.values())
        else:
            yield part


def _tensors(parts: Iterable[Any]) -> list[Tensor]:
    return [part for part in _flat(parts) if isinstance(part, Tensor)]


def _is_computed(part: Any) -> bool:
    """Whether a thing is a tensor of numbers that is no parameter."""
    return (
        isinstance(part, Tensor) and not isinstance(part, nn.Parameter) and part.is_floating_point()
    )


def _reorders(name: str, args: tuple[Any, ...], result: Any) -> bool:
    """Whether a function puts positions of (batch, positions, features) in another order."""
    if name not in (*_ORDERS, "__getitem__") or not isinstance(states := args[0], Tensor):
        return False
    if states.ndim != 3 or states.shape[1] < 2 or getattr(result, "shape", None) != states.shape:
        return False
    if name in _ORDERS:
        return any(type(dim) is int and dim in (1, -2) for dim in _flat(args[_ORDERS[name] :]))
    match args[1]:
        case (slice(), list() | Tensor() as places, *_):
            return getattr(places, "dtype", None) != torch.bool
    return False
