"""Which tensor queries and keys were computed from: the same, or two.

Self-attention projects queries and keys from one tensor, cross-attention from two; the call itself
says nothing of that. So every function of torch that runs is followed: what is computed from one
tensor alone (a projection, a norm, a split, a new shape) comes from it; of several (a sum) from
what all of them come from, or, where one is larger, from the larger; a product, as rotary positions
make it, and tensors that are put together, from each of them. Parameters count for nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import Any

from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

__all__ = ["Provenance"]

#: Products; functions that put tensors together; and those that write one into another.
_PRODUCTS = ("mul", "__mul__", "__rmul__", "multiply")
_TOGETHER = ("cat", "concat", "concatenate", "stack", "hstack", "vstack")
_WRITES = ("__setitem__", "copy_", "index_copy_", "scatter_", "slice_scatter", "index_put_")
#: Tensors that one is said to come from, at most: the nearest.
_NEAREST = 48


class Provenance:
    """The tensors that others were computed from, as numbers."""

    def __init__(self) -> None:
        self._origins: Any = WeakIdKeyDictionary()
        self._numbers = count()

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
        sources = [part for part in _flat(args) if _is_computed(part)]
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
        else:
            yield part


def _is_computed(part: Any) -> bool:
    """Whether a thing is a tensor of numbers that is no parameter."""
    return (
        isinstance(part, Tensor) and not isinstance(part, nn.Parameter) and part.is_floating_point()
    )
