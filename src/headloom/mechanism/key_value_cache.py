"""Keys and values of earlier steps, written into memory that is there already."""

from __future__ import annotations

import torch
from torch import Tensor

from headloom.errors import ShapeError
from headloom.mechanism.shapes import describe

#: Positions that the first memory has, at least.
_FIRST = 16
#: Keys and values.
_Pair = tuple[Tensor, Tensor]


class KeyValueCache:
    """Keys and values that an attention layer has already computed, for step-by-step decoding.

    Self-attention appends to it, cross-attention fills it once. Both tensors are
    (batch, kv_heads, keys, depth), or None before the first call.

    Where no derivatives are taken, new positions are written behind the others, in memory that
    doubles when it is full, so that a step copies what is new alone. What `keys` and `values` give
    may then be written over by `reorder`. In a compiled program all steps of a cache are in
    `torch.inference_mode`, or none.

    Position by position, the rows of one call over all of them:

    >>> import headloom
    >>> layer, tokens = headloom.MultiHeadAttention(8, 2, kind="decoder"), torch.randn(1, 5, 8)
    >>> cache, rows = KeyValueCache(), []
    >>> for token in tokens.split(1, dim=1):
    ...     mask = headloom.causal(offset=cache.length)  # the first new query is at this position
    ...     rows.append(layer(token, mask=mask, cache=cache))
    >>> torch.allclose(torch.cat(rows, 1), layer(tokens, mask=headloom.causal()), atol=1e-6)
    True
    """

    def __init__(self) -> None:
        self.keys: Tensor | None = None
        self.values: Tensor | None = None
        # Where both lie, (batch, positions, kv_heads, depth), and what was given of it; None: they
        # fill their own memory.
        self._room: tuple[_Pair, _Pair] | None = None

    def __copy__(self) -> KeyValueCache:
        """Another that goes on from here: what one writes, the other does not see."""
        other = KeyValueCache()
        other.keys, other.values = self.keys, self.values
        self._room = None  # what this one writes next goes to memory of its own
        return other

    @property
    def length(self) -> int:
        """How many keys it holds."""
        return 0 if self.keys is None else self.keys.shape[2]

    def append(self, keys: Tensor, values: Tensor, *, kept: bool = False) -> _Pair:
        """Add keys and values of new positions; returns all of them.

        kept: whether somebody holds on to what is returned: it will not change.

        Raises: ShapeError: other sizes than the positions that it holds.
        """
        if self.keys is not None and self.values is not None:
            both = ((self.keys, keys), (self.values, values))
            for old, new in both:
                if old.shape[:2] != new.shape[:2] or old.shape[3] != new.shape[3]:
                    raise ShapeError(
                        f"KeyValueCache: it holds {describe(old)} as (batch, heads, positions, "
                        f"depth), and is given {describe(new)}. Begin a new cache, or reorder this "
                        "one."
                    )
            fit = all(old.dtype == new.dtype and old.device == new.device for old, new in both)
            if kept or torch.is_grad_enabled() or not fit or keys.shape[2] != values.shape[2]:
                keys, values = torch.cat(both[0], 2), torch.cat(both[1], 2)
                self._room = None
            else:
                start, end = self.length, self.length + keys.shape[2]
                room = self._own_room()
                if room is None or room[0].shape[1] < end:
                    room = (_roomier(self.keys, end), _roomier(self.values, end))
                for part, new in zip(room, (keys, values), strict=True):
                    part[:, start:end] = new.transpose(1, 2)
                keys, values = self._use(room, end)
        self.keys, self.values = keys, values
        return keys, values

    def _use(self, room: _Pair, end: int) -> _Pair:
        """So many positions of a memory from now on."""
        keys, values = (part[:, :end].transpose(1, 2) for part in room)
        self._room = room, (keys, values)
        return keys, values

    def _own_room(self) -> _Pair | None:
        """The memory, where it holds what `keys` and `values` are and may be written to."""
        if self._room is None:
            return None
        room, given = self._room
        # Somebody may have put others in the place of those that were given.
        own = self.keys is given[0] and self.values is given[1]
        return room if own and _may_be_written(room[0]) else None

    def reorder(self, order: Tensor) -> None:
        """Take sequence ``order[b]`` as sequence b: beams survive, die or split.

        Where no derivatives are taken, only sequences that change places are copied.

        order: indices into the batch, (new_batch,).
        """
        if self.keys is None or self.values is None:
            return
        room = self._own_room()
        if room is None or torch.is_grad_enabled() or len(order) > len(self.keys):
            self.keys = self.keys.index_select(0, order)
            self.values = self.values.index_select(0, order)
            self._room = None
            return
        end, count = self.length, len(order)
        moved = (order != torch.arange(count, device=order.device)).nonzero()[:, 0]
        for part in room:
            part[moved, :end] = part[: len(self.keys), :end].index_select(0, order[moved])
        self.keys, self.values = self._use((room[0][:count], room[1][:count]), end)


def _may_be_written(tensor: Tensor) -> bool:
    """Whether a tensor is none of inference mode, or this is it."""
    # The compiler knows neither: it leaves inference mode while it reads a program.
    if torch.compiler.is_compiling():
        return True
    return torch.is_inference_mode_enabled() or not tensor.is_inference()


def _roomier(tensor: Tensor, end: int) -> Tensor:
    """Room for twice as many positions as there will be, with those that are there."""
    batch, heads, length, depth = tensor.shape
    room = tensor.new_empty(batch, max(2 * end, _FIRST), heads, depth)
    room[:, :length] = tensor.transpose(1, 2)
    return room
