"""`Mask`: which keys each query may attend to; combinations of masks and masks from tensors.

A mask is a rule, not a matrix: it is computed one block of rows at a time, so that a causal mask
over 100,000 tokens costs nothing. Masks combine by ``&``, ``|`` and ``~``.

A new mask is a class with `block`; everything else has a default that is right for any mask. A mask
made of ranges overrides `bounds`, so that the kernels skip the hidden keys.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from headloom.errors import Hints, InputError, ShapeError
from headloom.mechanism.shapes import describe, in_words, real_tensor

#: Cells of a mask that are computed together.
BLOCK_CELLS = 2**24


class Mask(ABC, Hints):
    """Rule for the keys that each query may attend to.

    Masks combine: ``a & b`` shows the keys that both show, ``a | b`` those that one of them shows,
    ``~a`` those that a hides. To write your own, subclass Mask and define `block`:

    >>> import headloom
    >>> class EverySecond(headloom.Mask):
    ...     def block(self, rows, keys, device):
    ...         i = torch.arange(rows.start, rows.stop, device=device)[:, None]
    ...         return (i - torch.arange(keys, device=device)) % 2 == 0
    >>> (headloom.causal() & ~EverySecond()).dense(3, 3)[0, 0].int()
    tensor([[0, 0, 0],
            [1, 0, 0],
            [0, 1, 0]], dtype=torch.int32)
    """

    _elsewhere: ClassVar[dict[str, str]] = dict.fromkeys(
        ("shape", "numpy", "float", "bool", "to", "logical_not"), "dense(queries, keys), a tensor"
    )
    #: Whether it may differ between heads.
    by_head: ClassVar[bool] = True
    #: NumPy leaves ``array & mask`` to the mask, whose error names the types it takes.
    __array_ufunc__ = None

    @abstractmethod
    def block(self, rows: range, keys: int, device: torch.device) -> Tensor:
        """Return some rows of the mask, on a device.

        Returns: bool, broadcastable to (batch, heads, rows, keys); True = visible.
        """

    def cells(self, rows: range, keys: int, device: torch.device) -> Tensor:
        """Return some rows of the mask: `block`, checked, with four dimensions.

        Returns: bool, (batch or 1, heads or 1, rows or 1, keys or 1).
        Raises: InputError, ShapeError: `block` returned no bool tensor of these sizes.
        """
        block = self.block(rows, keys, device)
        name = f"{type(self).__name__}.block"
        if not isinstance(block, Tensor) or block.dtype != torch.bool:
            kind = block.dtype if isinstance(block, Tensor) else type(block).__name__
            raise InputError(f"{name}: gave {kind}; expected a tensor of bool, True = visible.")
        # In a program compiled for dynamic lengths the sizes are not known yet.
        fits = torch.compiler.is_compiling() or all(
            size in (1, want)
            for size, want in zip(block.shape[::-1], (keys, len(rows)), strict=False)
        )
        if block.ndim > 4 or not fits:
            raise ShapeError(
                f"{name}: gave {describe(block)} for {len(rows)} rows and {keys} keys; expected "
                "a shape that broadcasts to (batch, heads, rows, keys)."
            )
        return block.reshape((1,) * (4 - block.ndim) + tuple(block.shape))

    def check(self, batch: int, heads: int, queries: int, keys: int) -> None:
        """Raise a ShapeError if the mask does not fit a call of these sizes.

        By default only the first row is checked.
        """
        if torch.compiler.is_compiling() or not queries:
            return
        sizes = self.cells(range(1), keys, torch.device("cpu")).shape
        if sizes[0] not in (1, batch) or sizes[1] not in (1, heads):
            raise ShapeError(
                f"{type(self).__name__}.block: gave cells for a batch of {sizes[0]} and "
                f"{sizes[1]} heads; the call has a batch of {batch} and {heads} heads. Return "
                "cells for each, or size 1 for all."
            )

    def bounds(self, queries: int, keys: int) -> KeyRanges:
        """Return the mask as ranges for the kernels, and the rest as cells."""
        return KeyRanges(rest=self)

    def ranges(self, queries: int, keys: int, sample: int = 0) -> Tensor | None:
        """Return the first key of each query and the end of its keys, for one input of a batch.

        Returns: int64, (2, queries), 0 and 0 for a query without keys. None: the keys of some query
        are not contiguous, or heads differ.

        >>> import headloom
        >>> (headloom.causal() & headloom.padding([3])).ranges(4, 4)
        tensor([[0, 0, 0, 0],
                [1, 2, 3, 3]])
        """
        bounds = self.bounds(queries, keys)
        if bounds.rest is None:
            return bounds.of_sample(queries, keys, sample)
        size = max(1, BLOCK_CELLS // max(1, keys))
        parts = [torch.zeros(2, 0, dtype=torch.int64)]
        for start in range(0, queries, size):
            rows = range(start, min(start + size, queries))
            ranges = _ranges_of_rows(self, rows, keys, sample)
            if ranges is None:
                return None
            parts.append(ranges)
        return torch.cat(parts, 1)

    def transposed(self, queries: int, keys: int) -> Mask:
        """Return the transposed mask: cell (j, i) tells whether query i sees key j.

        queries, keys: sizes of the call before it is transposed.
        """
        return Explicit(self.dense(queries, keys).transpose(-2, -1))

    def of_head(self, head: int) -> Mask:
        """Return the mask of one head, for a call with this head only."""
        return _OfHead(self, head) if self.by_head else self

    def dense(self, queries: int, keys: int, device: torch.device | str = "cpu") -> Tensor:
        """Return the whole mask, broadcastable to (batch, heads, queries, keys).

        >>> import headloom
        >>> headloom.window(1, 0).dense(3, 3)[0, 0].int()
        tensor([[1, 0, 0],
                [1, 1, 0],
                [0, 1, 1]], dtype=torch.int32)
        """
        return self.cells(range(queries), keys, torch.device(device))

    def __and__(self, other: Mask | Tensor) -> Mask:
        return Both(self, as_mask(other))

    def __or__(self, other: Mask | Tensor) -> Mask:
        return Either(self, as_mask(other))

    def __invert__(self) -> Mask:
        return Not(self)

    def __rand__(self, other: Mask | Tensor) -> Mask:
        return Both(as_mask(other), self)

    def __ror__(self, other: Mask | Tensor) -> Mask:
        return Either(as_mask(other), self)


@dataclass(frozen=True, eq=False)
class KeyRanges:
    """Visible keys of each query as ranges: the intersection of all parts that are not None.

    band         query i sees keys ``i + band[0]`` to ``i + band[1]``
    by_sequence  first key and end for each sequence, int64, (2, batch or 1)
    by_query     first key and end for each query, int64, (2, 1, queries)
    rest         a mask that hides more, cell by cell; None: the ranges are the whole mask
    """

    band: tuple[int, int] | None = None
    by_sequence: Tensor | None = None
    by_query: Tensor | None = None
    rest: Mask | None = None

    def narrowed_by(self, other: KeyRanges) -> KeyRanges:
        """Return the intersection of both."""
        # (No operators: before torch 2.9 the compiler does not support those of frozen classes.)
        band = self.band or other.band
        if self.band and other.band:
            band = max(self.band[0], other.band[0]), min(self.band[1], other.band[1])
        rest = self.rest or other.rest
        if self.rest and other.rest:
            rest = Both(self.rest, other.rest)
        return KeyRanges(
            band,
            _narrower(self.by_sequence, other.by_sequence),
            _narrower(self.by_query, other.by_query),
            rest,
        )

    def of_sample(self, queries: int, keys: int, sample: int) -> Tensor:
        """Return first key and end of each query of one input, (2, queries); 0 and 0 if empty."""
        position = torch.arange(queries)
        first, end = torch.zeros_like(position), torch.full_like(position, keys)
        if self.band is not None:
            first = (position + self.band[0]).clamp(0, keys)
            end = (position + self.band[1] + 1).clamp(0, keys)
        ranges = torch.stack((first, end))
        if self.by_sequence is not None:
            keys_range = self.by_sequence[:, min(sample, self.by_sequence.shape[1] - 1), None]
            ranges = _intersection(ranges, keys_range.expand(2, queries))
        if self.by_query is not None:
            ranges = _intersection(ranges, self.by_query[:, 0])
        return without_empty(ranges)


def _intersection(a: Tensor, b: Tensor) -> Tensor:
    return torch.stack((torch.maximum(a[0], b[0]), torch.minimum(a[1], b[1])))


def _narrower(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    if a is None or b is None:
        return b if a is None else a
    return _intersection(a, b)


def without_empty(ranges: Tensor) -> Tensor:
    """Set ranges, (2, queries), of queries without keys to 0 and 0."""
    return ranges * (ranges[1] > ranges[0]).long()


def _ranges_of_rows(mask: Mask, rows: range, keys: int, sample: int) -> Tensor | None:
    """Compute `Mask.ranges` of some rows from their cells."""
    cells = mask.cells(rows, keys, torch.device("cpu"))
    cells = cells[min(sample, len(cells) - 1)]
    cells = cells.expand(len(cells), len(rows), keys)
    count = cells[0].sum(1)
    if not keys:
        return torch.zeros(2, len(rows), dtype=torch.int64)
    numbers = cells[0].to(torch.uint8)
    ends = torch.stack((numbers.argmax(1), keys - numbers.flip(1).argmax(1)))
    gaps = (count > 0) & (ends[1] - ends[0] != count)
    heads_differ = (cells != cells[:1]).any()
    return None if bool(gaps.any() | heads_differ) else ends * (count > 0)


class _Combined(Mask):
    """Combination of the masks in its fields."""

    @property
    def parts(self) -> list[Mask]:
        """Masks that are combined."""
        return [getattr(self, name) for name in type(self).__match_args__]  # type: ignore[attr-defined]

    def check(self, batch: int, heads: int, queries: int, keys: int) -> None:
        for part in self.parts:
            part.check(batch, heads, queries, keys)

    def transposed(self, queries: int, keys: int) -> Mask:
        return type(self)(*(part.transposed(queries, keys) for part in self.parts))

    def of_head(self, head: int) -> Mask:
        return type(self)(*(part.of_head(head) for part in self.parts))


@dataclass(frozen=True)
class Both(_Combined):
    """Intersection of two masks: ``first & second``."""

    first: Mask
    second: Mask

    def block(self, rows: range, keys: int, device: torch.device) -> Tensor:
        return self.first.cells(rows, keys, device) & self.second.cells(rows, keys, device)

    def bounds(self, queries: int, keys: int) -> KeyRanges:
        return self.first.bounds(queries, keys).narrowed_by(self.second.bounds(queries, keys))


@dataclass(frozen=True)
class Either(_Combined):
    """Union of two masks: ``first | second``."""

    first: Mask
    second: Mask

    def block(self, rows: range, keys: int, device: torch.device) -> Tensor:
        return self.first.cells(rows, keys, device) | self.second.cells(rows, keys, device)


@dataclass(frozen=True)
class Not(_Combined):
    """Complement of a mask: ``~mask``."""

    mask: Mask

    def block(self, rows: range, keys: int, device: torch.device) -> Tensor:
        return ~self.mask.cells(rows, keys, device)


@dataclass(frozen=True, eq=False)
class Explicit(Mask):
    """Mask from a bool tensor, broadcastable to (batch, heads, queries, keys)."""

    allowed: Tensor

    def block(self, rows: range, keys: int, device: torch.device) -> Tensor:
        allowed = self.allowed.to(device)
        allowed = allowed.reshape((1,) * (4 - allowed.ndim) + tuple(allowed.shape))
        return allowed if allowed.shape[2] == 1 else allowed[:, :, rows.start : rows.stop]

    def check(self, batch: int, heads: int, queries: int, keys: int) -> None:
        expected = (batch, heads, queries, keys)
        sizes = (1,) * (4 - self.allowed.ndim) + tuple(self.allowed.shape)
        if any(size not in (1, want) for size, want in zip(sizes, expected, strict=True)):
            raise ShapeError(
                f"mask: {describe(self.allowed)} does not broadcast to (batch, heads, queries, "
                f"keys) = {expected}. For a mask over the keys of each sequence, use "
                "headloom.padding(mask)."
            )


@dataclass(frozen=True, eq=False)
class _OfHead(Mask):
    """Mask of one head of a mask that differs between heads."""

    mask: Mask
    head: int
    by_head = False

    def block(self, rows: range, keys: int, device: torch.device) -> Tensor:
        allowed = self.mask.cells(rows, keys, device)
        return allowed if allowed.shape[1] == 1 else allowed[:, self.head : self.head + 1]


def as_mask(mask: Mask | Tensor) -> Mask:
    """Return a mask as it is, a bool tensor as a mask."""
    if isinstance(mask, Mask):
        return mask
    if not isinstance(mask, Tensor):
        raise InputError(
            f'mask: got {in_words(mask)}; expected "causal", a headloom mask or a bool tensor, as '
            "from torch.as_tensor."
        )
    real_tensor("mask", "the mask", mask)
    if mask.dtype != torch.bool:
        raise InputError(
            f"mask: got a tensor of {mask.dtype}; expected bool, True = visible. For numbers that "
            "are added to the scores, use bias=."
        )
    if not 2 <= mask.ndim <= 4:
        raise ShapeError(
            f"mask: {describe(mask)}; expected (queries, keys), (heads, queries, keys) or (batch, "
            "heads, queries, keys)."
        )
    return Explicit(mask)
