"""Keys and values of earlier steps, written into memory that is there already."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["KeyValueCache"]

#: Positions that the first memory has, at least.
_FIRST = 16


class KeyValueCache:
    """Keys and values that an attention layer has already computed, for step-by-step decoding.

    Self-attention appends to it, cross-attention fills it once. Both tensors are
    (batch, kv_heads, keys, depth), or None before the first call.

    New positions are written behind the others, in memory that doubles when it is full, so that a
    step copies what is new alone. What `keys` and `values` give may be written over by `reorder`.
    """

    def __init__(self) -> None:
        self.keys: Tensor | None = None
        self.values: Tensor | None = None
        # Where both lie, (batch, positions, kv_heads, depth); None: they fill their own memory.
        self._room: tuple[Tensor, Tensor] | None = None

    @property
    def length(self) -> int:
        """How many keys it holds."""
        return 0 if self.keys is None else self.keys.shape[2]

    def append(self, keys: Tensor, values: Tensor, *, kept: bool = False) -> tuple[Tensor, Tensor]:
        """Add keys and values of new positions; returns all of them.

        kept: whether somebody holds on to what is returned: it will not change.
        """
        if self.keys is not None and self.values is not None:
            if kept or not _may_be_written(self.keys, keys):
                keys = torch.cat((self.keys, keys), 2)
                values = torch.cat((self.values, values), 2)
                self._room = None
            else:
                keys, values = self._written(self.keys, self.values, keys, values)
        self.keys, self.values = keys, values
        return keys, values

    def _written(
        self, old_keys: Tensor, old_values: Tensor, keys: Tensor, values: Tensor
    ) -> tuple[Tensor, Tensor]:
        """New keys and values behind the old ones."""
        start = old_keys.shape[2]
        end = start + keys.shape[2]
        if self._room is None or self._room[0].shape[1] < end:
            self._room = (_roomier(old_keys, end), _roomier(old_values, end))
        for room, new in zip(self._room, (keys, values), strict=True):
            room[:, start:end] = new.transpose(1, 2)
        whole_keys, whole_values = (room[:, :end].transpose(1, 2) for room in self._room)
        return whole_keys, whole_values

    def reorder(self, order: Tensor) -> None:
        """Take sequence ``order[b]`` as sequence b: beams survive, die or split.

        Only sequences that change places are copied.

        order: indices into the batch, (new_batch,).
        """
        if self.keys is None or self.values is None:
            return
        if self._room is None or len(order) > len(self.keys):
            self.keys = self.keys.index_select(0, order)
            self.values = self.values.index_select(0, order)
            self._room = None
            return
        end, count = self.length, len(order)
        moved = (order != torch.arange(count, device=order.device)).nonzero()[:, 0]
        for room in self._room:
            room[moved, :end] = room[order[moved], :end]
        keys_room, values_room = (room[:count] for room in self._room)
        self._room = keys_room, values_room
        self.keys, self.values = (room[:, :end].transpose(1, 2) for room in self._room)


def _may_be_written(old: Tensor, new: Tensor) -> bool:
    """Whether new keys can be written behind old ones: of one kind, and without gradients."""
    with_gradients = torch.is_grad_enabled() and (old.requires_grad or new.requires_grad)
    alike = old.dtype == new.dtype and old.device == new.device
    return alike and not with_gradients and old.shape[:2] == new.shape[:2]


def _roomier(tensor: Tensor, end: int) -> Tensor:
    """Room for twice as many positions as there will be, with those that are there."""
    batch, heads, length, depth = tensor.shape
    room = tensor.new_empty(batch, max(2 * end, _FIRST), heads, depth)
    room[:, :length] = tensor.transpose(1, 2)
    return room
