"""Keys and values of earlier steps, in preallocated memory."""

from __future__ import annotations

import torch
from torch import Tensor

from headloom.errors import ShapeError
from headloom.mechanism.shapes import describe

#: Least number of positions of the first memory.
_FIRST = 16
#: Keys and values.
_Pair = tuple[Tensor, Tensor]


class KeyValueCache:
    """Keys and values that an attention layer has already computed, for step-by-step decoding.

    Self-attention appends to it, cross-attention fills it once. Both tensors are
    (batch, kv_heads, keys, depth), or None before the first call.

    If gradients are off, new positions are written in place, in memory that doubles when it is
    full, so that a step copies only the new positions. `reorder` may then overwrite the tensors
    `keys` and `values`. In a compiled program either all steps of a cache run in
    `torch.inference_mode`, or none.

    Step by step, it gives the same rows as one call over all positions:

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
        # Memory, (batch, positions, kv_heads, depth), and its views that were returned; None:
        # there is no spare memory.
        self._memory: tuple[_Pair, _Pair] | None = None

    def __copy__(self) -> KeyValueCache:
        """Return an independent copy: later appends to one do not change the other."""
        copied = KeyValueCache()
        copied.keys, copied.values = self.keys, self.values
        self._memory = None  # so that this cache does not write to shared memory
        return copied

    @property
    def length(self) -> int:
        """Number of keys."""
        return 0 if self.keys is None else self.keys.shape[2]

    def append(self, keys: Tensor, values: Tensor, *, kept: bool = False) -> _Pair:
        """Add keys and values of new positions; return all of them.

        kept: whether the caller keeps the returned tensors: they are then never overwritten.

        Raises: ShapeError: sizes that differ from those of the positions in the cache.
        """
        if self.keys is not None and self.values is not None:
            both = ((self.keys, keys), (self.values, values))
            for old, new in both:
                if old.shape[:2] != new.shape[:2] or old.shape[3] != new.shape[3]:
                    raise ShapeError(
                        f"KeyValueCache: it has {describe(old)} as (batch, heads, positions, "
                        f"depth), the new positions {describe(new)}. Use a new cache, or reorder "
                        "this one."
                    )
            fit = all(old.dtype == new.dtype and old.device == new.device for old, new in both)
            if kept or torch.is_grad_enabled() or not fit or keys.shape[2] != values.shape[2]:
                keys, values = torch.cat(both[0], 2), torch.cat(both[1], 2)
                self._memory = None
            else:
                start, end = self.length, self.length + keys.shape[2]
                memory = self._writable_memory()
                if memory is None or memory[0].shape[1] < end:
                    memory = (_enlarged(self.keys, end), _enlarged(self.values, end))
                for part, new in zip(memory, (keys, values), strict=True):
                    part[:, start:end] = new.transpose(1, 2)
                keys, values = self._use(memory, end)
        self.keys, self.values = keys, values
        return keys, values

    def _use(self, memory: _Pair, end: int) -> _Pair:
        """Return views of the first positions of a memory, and keep both."""
        keys, values = (part[:, :end].transpose(1, 2) for part in memory)
        self._memory = memory, (keys, values)
        return keys, values

    def _writable_memory(self) -> _Pair | None:
        """Return the memory if `keys` and `values` are views of it and it may be written to."""
        if self._memory is None:
            return None
        memory, views = self._memory
        # The caller may have replaced the attributes `keys` and `values`.
        unchanged = self.keys is views[0] and self.values is views[1]
        # Not an inference tensor outside inference mode, which the compiler leaves while it traces.
        inference = torch.compiler.is_compiling() or torch.is_inference_mode_enabled()
        return memory if unchanged and (inference or not memory[0].is_inference()) else None

    def reorder(self, order: Tensor) -> None:
        """Make sequence ``order[b]`` the new sequence b, as beam search does.

        If gradients are off, only sequences that move are copied.

        order: indices into the batch, (new_batch,).
        """
        if self.keys is None or self.values is None:
            return
        memory = self._writable_memory()
        if memory is None or torch.is_grad_enabled() or len(order) > len(self.keys):
            self.keys = self.keys.index_select(0, order)
            self.values = self.values.index_select(0, order)
            self._memory = None
            return
        end, count = self.length, len(order)
        moved = (order != torch.arange(count, device=order.device)).nonzero()[:, 0]
        for part in memory:
            part[moved, :end] = part[: len(self.keys), :end].index_select(0, order[moved])
        self.keys, self.values = self._use((memory[0][:count], memory[1][:count]), end)


def _enlarged(tensor: Tensor, end: int) -> Tensor:
    """Return memory for twice as many positions, with a copy of the present ones."""
    batch, heads, length, depth = tensor.shape
    memory = tensor.new_empty(batch, max(2 * end, _FIRST), heads, depth)
    memory[:, :length] = tensor.transpose(1, 2)
    return memory
