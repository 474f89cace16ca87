"""Packed sequences: several sequences laid end to end, none of which sees the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from weft.errors import InputError, ShapeError
from weft.mechanism.masks import Mask

__all__ = ["Packed", "packed"]


@dataclass(frozen=True, eq=False)
class Packed(Mask):
    """Query i looks at the keys of its own sequence. See `packed`."""

    query_lengths: Tensor
    key_lengths: Tensor

    def ranges(self, queries: int, keys: int) -> Tensor:
        """First key and end for each query, (2, 1, queries); none for queries past the last."""
        ends = self.key_lengths.cumsum(0)
        both = torch.stack((ends - self.key_lengths, ends))
        ranges = both.repeat_interleave(self.query_lengths, dim=1)[:, :queries]
        missing = queries - ranges.shape[1]
        ranges = torch.nn.functional.pad(ranges, (0, missing))
        return ranges.clamp(max=keys)[:, None].contiguous()

    def block(self, rows: range, keys: int, device: torch.device) -> Tensor:
        """See Mask.block."""
        first, end = self.ranges(rows.stop, keys)[:, 0, rows.start :].to(device)
        key = torch.arange(keys, device=device)
        return ((key >= first[:, None]) & (key < end[:, None]))[None, None]

    def check(self, batch: int, heads: int, queries: int, keys: int) -> None:
        """See Mask.check."""
        sizes = (int(self.query_lengths.sum()), int(self.key_lengths.sum()))
        if sizes[0] > queries or sizes[1] > keys:
            raise ShapeError(
                f"packed: the sequences have {sizes[0]} queries and {sizes[1]} keys together, the "
                f"call has {queries} and {keys}. Lay the sequences end to end."
            )


def packed(
    query_lengths: Sequence[int] | Tensor, key_lengths: Sequence[int] | Tensor | None = None
) -> Mask:
    """Sequences laid end to end in one: each sees itself alone.

    query_lengths: the number of queries of each sequence. key_lengths: of keys, if others.
    ``causal() & packed(lengths)`` is causal within each sequence.

    >>> packed([1, 2]).dense(3, 3)[0, 0].int()
    tensor([[1, 0, 0],
            [0, 1, 1],
            [0, 1, 1]], dtype=torch.int32)
    """
    queries = torch.as_tensor(query_lengths)
    keys = queries if key_lengths is None else torch.as_tensor(key_lengths)
    for lengths in (queries, keys):
        if lengths.ndim != 1 or lengths.is_floating_point() or bool((lengths < 0).any()):
            raise InputError(
                f"packed: got lengths {lengths.tolist()}; expected whole numbers, 0 or more, one "
                "for each sequence."
            )
    if len(queries) != len(keys):
        raise InputError(
            f"packed: lengths of queries for {len(queries)} sequences, of keys for {len(keys)}. "
            "Give both for each sequence."
        )
    return Packed(queries.long().cpu(), keys.long().cpu())
