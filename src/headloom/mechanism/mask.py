"""`Mask`: a rule that says which keys a query may look at, and what can be asked of every mask.

A mask is a rule, not a matrix: it is asked for a block of rows at a time, so that a causal mask
over 100,000 tokens costs nothing. Rules combine by ``&``, ``|`` and ``~``.

A new mask is a class with `block`. Everything else has a default, right for any mask. A mask that
knows its ranges overrides `bounds`, and the kernels then skip the keys that it hides.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from headloom.errors import Hints, InputError, ShapeError
from headloom.mechanism.shapes import describe, in_words, real_tensor

#: Cells of a mask that are looked at together.
BLOCK_CELLS = 2**24


class Mask(ABC, Hints):
    """A rule that says which keys a query may look at.

    Rules combine: ``a & b`` may look where both allow it, ``a | b`` where one does, ``~a`` where a
    does not. One of your own is a class with `block`:

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
    #: Whether it may differ from head to head.
    by_head: ClassVar[bool] = True
    #: NumPy leaves ``array & mask`` to the mask, which says what it takes.
    __array_ufunc__ = None

    @abstractmethod
    def block(self, rows: range, keys: int, device: torch.device) -> Tensor:
        """Some rows of the mask, on a device.

        Returns: bool, broadcastable to (batch, heads, rows, keys); True = may look.
        """

    def cells(self, rows: range, keys: int, device: torch.device) -> Tensor:
        """Some rows of the mask, `block` with four dimensions.

        Returns: bool, (batch or 1, heads or 1, rows or 1, keys or 1).
        Raises: InputError, ShapeError: `block` gave no bool tensor of these sizes.
        """
        block = self.block(rows, keys, device)
        name = f"{type(self).__name__}.block"
        if not isinstance(block, Tensor) or block.dtype != torch.bool:
            given = block.dtype if isinstance(block, Tensor) else type(block).__name__
            raise InputError(f"{name}: gave {given}; expected a tensor of bool, True = may look.")
        # A program that is compiled for any length has no sizes yet.
        fits = torch.compiler.is_compiling() or all(
            size in (1, want)
            for size, want in zip(block.shape[::-1], (keys, len(rows)), strict=False)
        )
        if block.ndim > 4 or not fits:
            raise ShapeError(
                f"{name}: gave {describe(block)} for {len(rows)} rows and {keys} keys; expected "
                "what broadcasts to (batch, heads, rows, keys)."
            )
        return block.reshape((1,) * (4 - block.ndim) + tuple(block.shape))

    def check(self, batch: int, heads: int, queries: int, keys: int) -> None:
        """Raise a ShapeError where the mask does not fit a call of these sizes.

        By its first row, where a class knows no better.
        """
        if torch.compiler.is_compiling() or not queries:
            return
        sizes = self.cells(range(1), keys, torch.device("cpu")).shape
        if sizes[0] not in (1, batch) or sizes[1] not in (1, heads):
            raise ShapeError(
                f"{type(self).__name__}.block: gave cells for a batch of {sizes[0]} and "
                f"{sizes[1]} heads; the call has a batch of {batch} and {heads} heads. Give one "
                "for each, or one for all."
            )

    def bounds(self, queries: int, keys: int) -> KeyRanges:
        """The mask as ranges, which the kernels read, and what is left cell by cell."""
        return KeyRanges(rest=self)

    def ranges(self, queries: int, keys: int, sample: int = 0) -> Tensor | None:
        """The first key of each query and the end of its keys, for one sequence of a batch.

        Returns: int64, (2, queries), 0 and 0 for a query without keys. None: some query sees keys
        that are not side by side, or heads differ.

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
        """The mask with a row for each key: whether query i may look at key j, at (j, i).

        queries, keys: sizes of the call whose mask it is.
        """
        return Explicit(self.dense(queries, keys).transpose(-2, -1))

    def of_head(self, head: int) -> Mask:
        """The mask of one head, for a call of that head alone."""
        return _OfHead(self, head) if self.by_head else self

    def dense(self, queries: int, keys: int, device: torch.device | str = "cpu") -> Tensor:
        """The whole mask, broadcastable to (batch, heads, queries, keys).

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
    """The keys that queries may look at, as ranges; each part that is not None hides the others.

    band         query i sees keys ``i + band[0]`` to ``i + band[1]``
    by_sequence  first key and end for each sequence, int64, (2, batch or 1)
    by_query     first key and end for each query, int64, (2, 1, queries)
    rest         a mask that hides more, cell by cell; None: the ranges say it all
    """

    band: tuple[int, int] | None = None
    by_sequence: Tensor | None = None
    by_query: Tensor | None = None
    rest: Mask | None = None

    def narrowed_by(self, other: KeyRanges) -> KeyRanges:
        """The keys that lie in the ranges of both."""
        # (No operators: the compiler of torch before 2.9 knows none of frozen classes.)
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
        """First key and end for each query of one sequence, (2, queries); 0 and 0 for no key."""
        position = torch.arange(queries)
        first, end = torch.zeros_like(position), torch.full_like(position, keys)
        if self.band is not None:
            first = (position + self.band[0]).clamp(0, keys)
            end = (position + self.band[1] + 1).clamp(0, keys)
        ranges = torch.stack((first, end))
        if self.by_sequence is not None:
            own = self.by_sequence[:, min(sample, self.by_sequence.shape[1] - 1), None]
            ranges = _intersection(ranges, own.expand(2, queries))
        if self.by_query is not None:
            ranges = _intersection(ranges, self.by_query[:, 0])
        return without_empty(ranges)


def _intersection(one: Tensor, other: Tensor) -> Tensor:
    return torch.stack((torch.maximum(one[0], other[0]), torch.minimum(one[1], other[1])))


def _narrower(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    if one is None or other is None:
        return other if one is None else one
    return _intersection(one, other)


def without_empty(ranges: Tensor) -> Tensor:
    """Ranges, (2, queries), in which a query without keys has 0 and 0."""
    return ranges * (ranges[1] > ranges[0]).long()


def _ranges_of_rows(mask: Mask, rows: range, keys: int, sample: int) -> Tensor | None:
    """`Mask.ranges` of some rows, by their cells."""
    cells = mask.cells(rows, keys, torch.device("cpu"))
    cells = cells[min(sample, len(cells) - 1)]
    cells = cells.expand(len(cells), len(rows), keys)
    count = cells[0].sum(1)
    if not keys:
        return torch.zeros(2, len(rows), dtype=torch.int64)
    numbers = cells[0].to(torch.uint8)
    ends = torch.stack((numbers.argmax(1), keys - numbers.flip(1).argmax(1)))
    apart = (count > 0) & (ends[1] - ends[0] != count)
    heads_differ = (cells != cells[:1]).any()
    return None if bool(apart.any() | heads_differ) else ends * (count > 0)


class _Made(Mask):
    """A mask made of masks, which are its fields."""

    @property
    def parts(self) -> list[Mask]:
        """The masks that it is made of."""
        return [getattr(self, name) for name in type(self).__match_args__]  # type: ignore[attr-defined]

    def check(self, batch: int, heads: int, queries: int, keys: int) -> None:
        for part in self.parts:
            part.check(batch, heads, queries, keys)

    def transposed(self, queries: int, keys: int) -> Mask:
        return type(self)(*(part.transposed(queries, keys) for part in self.parts))

    def of_head(self, head: int) -> Mask:
        return type(self)(*(part.of_head(head) for part in self.parts))


@dataclass(frozen=True)
class Both(_Made):
    """May look where both masks allow it: ``first & second``."""

    first: Mask
    second: Mask

    def block(self, rows: range, keys: int, device: torch.device) -> Tensor:
        return self.first.cells(rows, keys, device) & self.second.cells(rows, keys, device)

    def bounds(self, queries: int, keys: int) -> KeyRanges:
        return self.first.bounds(queries, keys).narrowed_by(self.second.bounds(queries, keys))


@dataclass(frozen=True)
class Either(_Made):
    """May look where one of the masks allows it: ``first | second``."""

    first: Mask
    second: Mask

    def block(self, rows: range, keys: int, device: torch.device) -> Tensor:
        return self.first.cells(rows, keys, device) | self.second.cells(rows, keys, device)


@dataclass(frozen=True)
class Not(_Made):
    """May look where a mask does not allow it: ``~mask``."""

    mask: Mask

    def block(self, rows: range, keys: int, device: torch.device) -> Tensor:
        return ~self.mask.cells(rows, keys, device)


@dataclass(frozen=True, eq=False)
class Explicit(Mask):
    """A mask given as a bool tensor, broadcastable to (batch, heads, queries, keys)."""

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
    """The mask of one head among those of a mask."""

    mask: Mask
    head: int
    by_head = False

    def block(self, rows: range, keys: int, device: torch.device) -> Tensor:
        allowed = self.mask.cells(rows, keys, device)
        return allowed if allowed.shape[1] == 1 else allowed[:, self.head : self.head + 1]


def as_mask(mask: Mask | Tensor) -> Mask:
    """A mask, or a bool tensor as a mask."""
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
            f"mask: got a tensor of {mask.dtype}; expected bool, True = may look. For numbers that "
            "are added to the scores, use bias=."
        )
    if not 2 <= mask.ndim <= 4:
        raise ShapeError(
            f"mask: {describe(mask)}; expected (queries, keys), (heads, queries, keys) or (batch, "
            "heads, queries, keys)."
        )
    return Explicit(mask)
