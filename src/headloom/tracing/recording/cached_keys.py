"""Where the keys in the cache of a layer lie, when somebody has thinned it or moved its keys."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from headloom.errors import InputError
from headloom.mechanism.parts import changed
from headloom.tracing.recording.comparison import tolerance
from headloom.tracing.recording.layer_call import RecordedCall

__all__ = ["OTHER_KEYS", "THINNED", "CachedKeys"]

OTHER_KEYS = (
    "trace: the cache holds other keys than the passes before computed, and was not reordered by "
    "its reorder_cache; one that is quantised rounds them, others turn, merge or repeat them. "
    "Generate with another cache, as the dynamic one, or trace the text that was generated."
)
#: Why a layer has no matrix.
THINNED = "its cache was thinned, or its keys were moved: some rows do not see all keys before them"


class CachedKeys:
    """The first bytes of each key that a layer computed, and the places of those in its cache."""

    def __init__(self) -> None:
        #: (batch, heads, keys), as one number each.
        self.known: Tensor | None = None
        #: Of each key in the cache; None: the last ones, in their order.
        self.places: Tensor | None = None

    def take(self, keys: Tensor, new: slice, first: int, order: Tensor | None) -> None:
        """Take the new keys of a pass, and find those before them, which its cache held.

        Args:
            keys: all of them. new: which of them are its own.
            first: the place of the first key in a cache that nobody changed.
            order: which row of the pass before each goes on from; None: from itself, or repeated.

        Raises: InputError: a key was never computed, stands there twice, or two look the same.
        """
        now = _first_bytes(keys)
        if self.known is not None:
            if order is None and len(keys) != len(self.known):
                order = torch.arange(len(keys)) // max(1, len(keys) // len(self.known))
            if order is not None:
                order = order.to(keys.device)
                self.known = self.known[order]
                self.places = None if self.places is None else self.places[order]
            if new.start:
                self._find(now[:, :, : new.start], first, keys.dtype)
        before = now[:, :, :0] if self.known is None else self.known
        self.known = torch.cat((before, now[:, :, new]), 2)
        if self.places is not None:
            own = torch.arange(before.shape[2], self.known.shape[2], device=keys.device)
            self.places = torch.cat((self.places, own.expand(*now.shape[:2], -1)), 2)

    def _find(self, now: Tensor, first: int, dtype: torch.dtype) -> None:
        known = self.known
        assert known is not None
        expected = known[:, :, first:] if self.places is None else known.gather(2, self.places)
        if torch.equal(expected, now):
            return
        if expected.shape == now.shape:
            # Keys made of smaller vectors in the cache are made anew, and rounded, every time.
            own, other = (part[..., None].view(dtype).float() for part in (expected, now))
            size = torch.linalg.vector_norm(own, dim=-1).amax(-1, keepdim=True)
            far = torch.linalg.vector_norm(other - own, dim=-1)
            if bool((far <= tolerance(dtype) * size).all()):
                return
        if now.shape[:2] != known.shape[:2]:
            raise InputError(OTHER_KEYS)
        ordered, order = known.sort(-1)
        begin, end = (torch.searchsorted(ordered, now.contiguous(), right=r) for r in (False, True))
        if not bool((end - begin == 1).all()):
            raise InputError(OTHER_KEYS)
        self.places = order.gather(-1, begin)
        if not bool(self.places.sort(-1).values.diff(dim=-1).all()):
            raise InputError(OTHER_KEYS)

    def move(self, call: RecordedCall) -> None:
        """Put the edges of a call, whose keys were taken, where these lie."""
        assert self.places is not None and self.known is not None
        keys = call.graph.keys
        places = self.places.repeat_interleave(keys.shape[1] // self.places.shape[1], 1)
        at = places.gather(2, keys.clamp(min=0).long().flatten(2)).reshape(keys.shape)
        at = torch.where(keys >= 0, at.to(keys.dtype), keys)
        call.graph = changed(call.graph, keys=at, length=self.known.shape[2])
        call.ranges, call.bias = tuple(None for _ in call.ranges or ()) or None, None


def _first_bytes(keys: Tensor) -> Tensor:
    """The first eight bytes of each key as one number: more would take as long as the attention."""
    try:
        return keys.view(torch.int64)[..., 0]
    except RuntimeError:  # of another layout, or of an odd depth
        width = 8 // keys.element_size()
        part = pad(keys[..., :width], (0, max(0, width - keys.shape[3])))
        return part.contiguous().view(torch.int64)[..., 0]
