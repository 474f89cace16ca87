"""Masks that give each query a range of keys of its own; packed sequences are one.

Several sequences laid end to end, none of which sees the others, cost no padding: the kernels
read each query's range and skip the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from weft.errors import InputError, ShapeError
from weft.mechanism.masks import Mask

__all__ = ["Packed", "Ranges", "packed"]


@dataclass(frozen=True, eq=False)
class Ranges(Mask):
    """Query i looks at the keys from ``first[i]`` up to, without, ``end[i]``; int64, (queries,)."""

    first: Tensor
    end: Tensor

    def ranges(self, queries: int, keys: int) -> Tensor:
        """First key and end for each query, (2, 1, queries)."""
        both = torch.stack((self.first, self.end))[:, :queries]
        return both.clamp(0, keys)[:, None].contiguous()

    def block(self, rows: range, keys: int, device: torch.device) -> Tensor:
        """See Mask.block."""
        first, end = self.ranges(rows.stop, keys)[:, 0, rows.start :].to(device)
        key = torch.arange(keys, device=device)
        allowed: Tensor = (key >= first[:, None]) & (key < end[:, None])
        return allowed[None, None]

    def check(self, batch: int, heads: int, queries: int, keys: int) -> None:
        """See Mask.check."""
        if len(self.first) != queries:
            raise ShapeError(
                f"ranges: ranges for {len(self.first)} queries, the call has {queries}. Give one "
                "for each query; packed sequences must fill the call."
            )


@dataclass(frozen=True, eq=False)
class Packed(Ranges):
    """Query i looks at the keys of its own sequence. See `packed`."""

    query_lengths: Tensor
    key_lengths: Tensor


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
    try:
        queries = torch.as_tensor(query_lengths)
        keys = queries if key_lengths is None else torch.as_tensor(key_lengths)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise InputError(
            "packed: the lengths make no tensor; expected whole numbers, 0 or more, one for each "
            "sequence."
        ) from None
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
    queries, keys = queries.long().cpu(), keys.long().cpu()
    ends = keys.cumsum(0)
    first, end = torch.stack((ends - keys, ends)).repeat_interleave(queries, dim=1)
    return Packed(first, end, queries, keys)
