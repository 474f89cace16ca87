"""Packed sequences: a mask that gives each query the keys of its own sequence.

Several sequences laid end to end, none of which sees the others, cost no padding: the kernels
read each query's range and skip the rest.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headloom.errors import InputError
from headloom.mechanism.masks import Mask, Ranges, lengths_of

__all__ = ["Ranges", "packed"]

#: Positions at most: graphs count keys in 32 bits.
_MOST = 2**31 - 1


def packed(
    query_lengths: Sequence[int] | Tensor, key_lengths: Sequence[int] | Tensor | None = None
) -> Mask:
    """Sequences laid end to end in one: each sees itself alone.

    query_lengths: the number of queries of each sequence, [] of none. key_lengths: of keys, if
    others.
    ``causal() & packed(lengths)`` is causal within each sequence.

    >>> packed([1, 2]).dense(3, 3)[0, 0].int()
    tensor([[1, 0, 0],
            [0, 1, 1],
            [0, 1, 1]], dtype=torch.int32)
    """
    queries = lengths_of("packed", query_lengths)
    keys = queries if key_lengths is None else lengths_of("packed", key_lengths)
    for lengths in (queries, keys):
        whole = not (lengths.is_floating_point() or lengths.is_complex())
        whole = whole and lengths.dtype != torch.bool
        if not whole or lengths.ndim != 1 or bool((lengths < 0).any()):
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
    longest = max(queries.double().sum().item(), keys.double().sum().item())
    if longest > _MOST:
        raise InputError(
            f"packed: sequences of {longest:.3g} positions in all; expected {_MOST:,} at most."
        )
    ends = keys.cumsum(0)
    first, end = torch.stack((ends - keys, ends)).repeat_interleave(queries, dim=1)
    return Ranges(first, end, int(keys.sum()))
