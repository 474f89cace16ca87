"""Masks: windows (causal masks are windows), padding, and a range of keys for each query.

    >>> (causal() & padding([3])).dense(4, 4)[0, 0].int()
    tensor([[1, 0, 0, 0],
            [1, 1, 0, 0],
            [1, 1, 1, 0],
            [1, 1, 1, 0]], dtype=torch.int32)

The base class and combinations of masks are in `headloom.mechanism.mask`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from headloom.errors import InputError, ShapeError
from headloom.mechanism.mask import Both, KeyRanges
from headloom.mechanism.mask import Mask as Mask
from headloom.mechanism.mask import as_mask as as_mask
from headloom.mechanism.shapes import FARTHEST, describe, whole_number

#: Type of mask arguments; None: every query sees every key.
MaskLike = Mask | Tensor | Literal["causal"] | None


@dataclass(frozen=True)
class Window(Mask):
    """Mask to keys ``i + offset - left`` to ``i + offset + right`` of query i; None = open."""

    left: int | None
    right: int | None
    offset: int = 0
    by_head = False

    def __post_init__(self) -> None:
        offset = whole_number("window", "offset", self.offset)
        object.__setattr__(self, "offset", offset)  # as a Python int
        for name, size in (("left", self.left), ("right", self.right)):
            if size is not None:
                keys = whole_number("window", name, size, 0, None)
                # No key is this far from any position, so the side is open; sums of position,
                # offset and side then fit 64 bits.
                object.__setattr__(self, name, None if keys > 4 * FARTHEST else keys)

    def check(self, batch: int, heads: int, queries: int, keys: int) -> None:
        """Accept every call."""

    def block(self, rows: range, keys: int, device: torch.device) -> Tensor:
        position = torch.arange(rows.start, rows.stop, device=device)[:, None] + self.offset
        key = torch.arange(keys, device=device)[None, :]
        allowed = torch.ones(rows.stop - rows.start, keys, dtype=torch.bool, device=device)
        if self.left is not None:
            allowed &= key >= position - self.left
        if self.right is not None:
            allowed &= key <= position + self.right
        return allowed[None, None]

    def bounds(self, queries: int, keys: int) -> KeyRanges:
        far = queries + keys + 1  # beyond every key on either side
        left = -far if self.left is None else max(-far, self.offset - self.left)
        right = far if self.right is None else min(far, self.offset + self.right)
        return KeyRanges(band=(max(left, -(2**40)), min(right, 2**40)))

    def transposed(self, queries: int, keys: int) -> Mask:
        return Window(self.right, self.left, -self.offset)


def ends_before(mask: Mask | Tensor, position: int) -> bool:
    """Whether the first query of a window sees only keys before a position."""
    if isinstance(mask, Both):
        return ends_before(mask.first, position) or ends_before(mask.second, position)
    if not isinstance(mask, Window) or mask.right is None:
        return False
    return mask.offset + mask.right < position


def _extreme(lengths: Tensor, function: Callable[[Tensor], Tensor]) -> int | None:
    """Return the smallest or largest length; None if there is none or it is not known yet."""
    if not lengths.numel() or torch.compiler.is_compiling():
        return None
    try:
        return int(function(lengths))
    except RuntimeError:
        return None


@dataclass(frozen=True, eq=False)
class Padding(Mask):
    """Mask that hides padding.

    real: number of real keys at the start of each sequence, integers, (batch,); or flags of the
        real keys, bool, (batch, keys).
    """

    real: Tensor
    by_head = False

    def marked(self, keys: int, device: torch.device) -> Tensor:
        """Return flags of the real keys of each sequence: bool, (batch or 1, keys)."""
        real = self.real.to(device)
        if real.dtype == torch.bool:
            return real
        return torch.arange(keys, device=device)[None, :] < real[:, None]

    def block(self, rows: range, keys: int, device: torch.device) -> Tensor:
        return self.marked(keys, device)[:, None, None, :]

    def bounds(self, queries: int, keys: int) -> KeyRanges:
        if self.real.dtype != torch.bool:
            lengths = self.real.to("cpu", torch.int64)
            return KeyRanges(by_sequence=torch.stack((torch.zeros_like(lengths), lengths)))
        marked = self.real.cpu()
        if marked.shape[1] == 0 or torch.compiler.is_compiling():
            return KeyRanges(rest=self)
        first, count = marked.int().argmax(1), marked.sum(1)
        last = marked.shape[1] - marked.flip(1).int().argmax(1)
        if bool(((count > 0) & (last - first != count)).any()):
            return KeyRanges(rest=self)
        return KeyRanges(by_sequence=torch.stack((first, first + count)))

    def transposed(self, queries: int, keys: int) -> Mask:
        real = self.marked(keys, torch.device("cpu"))
        if len(real) != 1:
            return super().transposed(queries, keys)
        return Ranges(torch.zeros(keys, dtype=torch.int64), real[0].long() * queries)

    def check(self, batch: int, heads: int, queries: int, keys: int) -> None:
        if self.real.shape[0] not in (1, batch):
            raise ShapeError(
                f"padding: {self.real.shape[0]} sequences in the mask, {batch} in the batch. "
                "Give one length, or one row of the mask, for each."
            )
        if self.real.dtype == torch.bool:
            if self.real.shape[1] != keys:
                raise ShapeError(
                    f"padding: the mask has {self.real.shape[1]} keys, from "
                    f"{describe(self.real)}, the call has {keys}. Give one column for each key."
                )
            return
        most = _extreme(self.real, Tensor.max)
        if most is not None and most > keys:
            raise ShapeError(
                f"padding: a length is {most}, the call has {keys} keys. A sequence has {keys} "
                "real keys or fewer."
            )


@dataclass(frozen=True, eq=False)
class Ranges(Mask):
    """Mask to keys ``first[i]`` to ``end[i] - 1`` of query i; int64, (queries,)."""

    first: Tensor
    end: Tensor
    #: Number of keys that the call must have; None: any.
    keys: int | None = None
    by_head = False

    def bounds(self, queries: int, keys: int) -> KeyRanges:
        both = torch.stack((self.first, self.end))[:, :queries].cpu()
        return KeyRanges(by_query=both.clamp(0, keys)[:, None].contiguous())

    def block(self, rows: range, keys: int, device: torch.device) -> Tensor:
        first, end = torch.stack((self.first, self.end))[:, rows.start : rows.stop].to(device)
        key = torch.arange(keys, device=device)
        allowed: Tensor = (key >= first[:, None]) & (key < end[:, None])
        return allowed[None, None]

    def transposed(self, queries: int, keys: int) -> Mask:
        first, end = self.first[:queries].contiguous(), self.end[:queries].contiguous()
        if bool((first.diff() < 0).any() or (end.diff() < 0).any() or (first > end).any()):
            return super().transposed(queries, keys)
        # Both are sorted: key j is visible from the first query whose keys end after j to the last
        # query whose keys start at j or before.
        key = torch.arange(keys, device=first.device)
        return Ranges(
            torch.searchsorted(end, key, right=True), torch.searchsorted(first, key, right=True)
        )

    def check(self, batch: int, heads: int, queries: int, keys: int) -> None:
        if len(self.first) != queries:
            raise ShapeError(
                f"ranges: ranges for {len(self.first)} queries, the call has {queries}. Give one "
                "for each query; packed sequences must fill the call."
            )
        if self.keys is not None and self.keys != keys:
            raise ShapeError(
                f"packed: the sequences have {self.keys} keys, the call has {keys}. Packed "
                "sequences must fill the call."
            )


def causal(offset: int = 0) -> Mask:
    """Return a mask to keys 0 to ``i + offset`` of query i.

    offset: the position of the first query among the keys: 0 if both start together (as in torch's
    ``is_causal``), ``keys - queries`` if the queries are the last positions (a cache).

    >>> causal().dense(2, 3)[0, 0].int()
    tensor([[1, 0, 0],
            [1, 1, 0]], dtype=torch.int32)
    >>> causal(offset=1).dense(2, 3)[0, 0].int()
    tensor([[1, 1, 0],
            [1, 1, 1]], dtype=torch.int32)
    """
    return Window(None, 0, whole_number("causal", "offset", offset))


def read_mask(mask: MaskLike, is_causal: bool = False, offset: int = 0) -> Mask | None:
    """Return the mask that the arguments `mask` and `is_causal` describe: their intersection.

    offset: position of the first query, for "causal" and is_causal.
    """
    if isinstance(mask, str) and mask == "causal":
        mask, is_causal = None, True
    rule = None if mask is None else as_mask(mask)
    triangle = causal(offset) if is_causal else None
    if triangle is None or rule is None:
        return rule if triangle is None else triangle
    return triangle & rule


def window(left: int | None, right: int | None, offset: int = 0) -> Mask:
    """Return a mask to ``left`` keys before each query, itself and ``right`` keys after it.

    None leaves a side open: ``window(None, 0)`` is causal, ``window(0, None)`` anti-causal.
    offset: the position of the first query among the keys, as for `causal`.
    """
    return Window(left, right, offset)


def _lengths_of(lengths: Sequence[int] | Tensor | int) -> Tensor:
    """Return lengths of sequences as a tensor; an empty list as integers."""
    tensor = torch.as_tensor(lengths)
    empty = tensor.shape == (0,) and not isinstance(lengths, Tensor)
    return tensor.long() if empty else tensor


def padding(lengths: Sequence[int] | Tensor | int) -> Mask:
    """Return a mask that hides padding.

    lengths: the number of real keys of each sequence, (batch,); or a bool tensor (batch, keys),
    True = a real key, for padding on the left or in between. An empty list: no sequences.

    >>> padding([1, 3]).dense(1, 3)[:, 0, 0].int()
    tensor([[1, 0, 0],
            [1, 1, 1]], dtype=torch.int32)
    """
    tensor = _lengths_of(lengths)
    flags = tensor.dtype == torch.bool
    if tensor.ndim == 0 or (flags and tensor.ndim == 1):
        tensor = tensor[None]
    if flags and tensor.ndim == 2:
        return Padding(tensor)
    if not flags and tensor.ndim == 1 and not tensor.is_floating_point():
        least = _extreme(tensor, Tensor.min)
        if least is not None and least < 0:
            raise InputError(f"padding: a length is {least}; expected 0 or more keys.")
        return Padding(tensor)
    raise InputError(
        f"padding: got {tensor.dtype} of shape {describe(tensor)}; expected lengths, integers of "
        "shape (batch,), or a bool tensor of shape (batch, keys), True = a real key."
    )


def packed(
    query_lengths: Sequence[int] | Tensor, key_lengths: Sequence[int] | Tensor | None = None
) -> Mask:
    """Return a mask for concatenated sequences without padding: each sees only itself.

    query_lengths: number of queries of each sequence. key_lengths: number of keys, if different.
    ``causal() & packed(lengths)`` is causal within each sequence.

    >>> packed([1, 2]).dense(3, 3)[0, 0].int()
    tensor([[1, 0, 0],
            [0, 1, 1],
            [0, 1, 1]], dtype=torch.int32)
    """
    queries = _lengths_of(query_lengths)
    keys = queries if key_lengths is None else _lengths_of(key_lengths)
    for lengths in (queries, keys):
        integers = not (lengths.is_floating_point() or lengths.dtype == torch.bool)
        if not integers or lengths.ndim != 1 or bool((lengths < 0).any()):
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
    return Ranges(first, end, int(keys.sum()))
