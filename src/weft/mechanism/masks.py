"""Masks: who may look at whom. True = may look.

A mask is a rule, not a matrix: it is asked for a block of rows at a time, so that a causal mask
over 100,000 tokens costs nothing. Rules combine by ``&`` and ``|``.

    >>> (causal() & padding([3])).dense(4, 4)[0, 0].int()
    tensor([[1, 0, 0, 0],
            [1, 1, 0, 0],
            [1, 1, 1, 0],
            [1, 1, 1, 0]], dtype=torch.int32)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from weft.errors import InputError, ShapeError
from weft.mechanism.shapes import FARTHEST, describe, whole_number

__all__ = [
    "Both",
    "Either",
    "Explicit",
    "Mask",
    "Padding",
    "Window",
    "as_mask",
    "causal",
    "padding",
    "window",
]


class Mask(ABC):
    """A rule that says which keys a query may look at."""

    @abstractmethod
    def block(self, rows: range, keys: int, device: torch.device) -> Tensor:
        """Some rows of the mask.

        Args:
            rows: the queries asked for.
            keys: number of keys.
            device: where the tensor is wanted.

        Returns: bool, broadcastable to (batch, heads, rows, keys); True = may look.
        """

    def check(self, batch: int, heads: int, queries: int, keys: int) -> None:  # noqa: B027
        """Raise a ShapeError where the mask does not fit a call of these sizes."""

    def dense(self, queries: int, keys: int, device: torch.device | str = "cpu") -> Tensor:
        """The whole mask, broadcastable to (batch, heads, queries, keys).

        >>> window(1, 0).dense(3, 3)[0, 0].int()
        tensor([[1, 0, 0],
                [1, 1, 0],
                [0, 1, 1]], dtype=torch.int32)
        """
        return self.block(range(queries), keys, torch.device(device))

    def __and__(self, other: Mask | Tensor) -> Mask:
        return Both(self, as_mask(other))

    def __or__(self, other: Mask | Tensor) -> Mask:
        return Either(self, as_mask(other))

    def __rand__(self, other: Mask | Tensor) -> Mask:
        return Both(as_mask(other), self)

    def __ror__(self, other: Mask | Tensor) -> Mask:
        return Either(as_mask(other), self)


@dataclass(frozen=True)
class Both(Mask):
    """May look where both masks allow it: ``first & second``."""

    first: Mask
    second: Mask

    def block(self, rows: range, keys: int, device: torch.device) -> Tensor:
        """See Mask.block."""
        return self.first.block(rows, keys, device) & self.second.block(rows, keys, device)

    def check(self, batch: int, heads: int, queries: int, keys: int) -> None:
        """See Mask.check."""
        self.first.check(batch, heads, queries, keys)
        self.second.check(batch, heads, queries, keys)


@dataclass(frozen=True)
class Either(Mask):
    """May look where one of the masks allows it: ``first | second``."""

    first: Mask
    second: Mask

    def block(self, rows: range, keys: int, device: torch.device) -> Tensor:
        """See Mask.block."""
        return self.first.block(rows, keys, device) | self.second.block(rows, keys, device)

    def check(self, batch: int, heads: int, queries: int, keys: int) -> None:
        """See Mask.check."""
        self.first.check(batch, heads, queries, keys)
        self.second.check(batch, heads, queries, keys)


@dataclass(frozen=True)
class Window(Mask):
    """Query i looks at keys from ``i + offset - left`` to ``i + offset + right``; None = open."""

    left: int | None
    right: int | None
    offset: int = 0

    def __post_init__(self) -> None:
        offset = whole_number("window", "offset", self.offset)
        object.__setattr__(self, "offset", offset)  # NumPy's whole numbers become Python's
        for name, size in (("left", self.left), ("right", self.right)):
            if size is None:
                continue
            try:
                keys: int | None = whole_number("window", name, size, 0, None)
            except InputError:
                raise InputError(
                    f"window: {name} is {size!r}; expected 0 or more keys, or None for an open "
                    "side."
                ) from None
            # No key lies as far as this from any position: the side is open, and a number of 64
            # bits holds every sum of position, offset and side.
            object.__setattr__(self, name, None if keys is None or keys > 4 * FARTHEST else keys)

    def block(self, rows: range, keys: int, device: torch.device) -> Tensor:
        """See Mask.block."""
        position = torch.arange(rows.start, rows.stop, device=device)[:, None] + self.offset
        key = torch.arange(keys, device=device)[None, :]
        allowed = torch.ones(len(rows), keys, dtype=torch.bool, device=device)
        if self.left is not None:
            allowed &= key >= position - self.left
        if self.right is not None:
            allowed &= key <= position + self.right
        return allowed[None, None]


@dataclass(frozen=True, eq=False)
class Padding(Mask):
    """Keys that are padding are never looked at. ``allowed``: bool, (batch, keys)."""

    allowed: Tensor | None
    lengths: Tensor | None = None

    def block(self, rows: range, keys: int, device: torch.device) -> Tensor:
        """See Mask.block."""
        if self.allowed is not None:
            return self.allowed.to(device)[:, None, None, :]
        assert self.lengths is not None
        real = torch.arange(keys, device=device)[None, :] < self.lengths.to(device)[:, None]
        return real[:, None, None, :]

    def check(self, batch: int, heads: int, queries: int, keys: int) -> None:
        """See Mask.check."""
        given = self.allowed if self.allowed is not None else self.lengths
        assert given is not None
        if given.shape[0] not in (1, batch):
            raise ShapeError(
                f"padding: {given.shape[0]} sequences in the mask, {batch} in the batch. "
                "Give one length, or one row of the mask, for each."
            )
        if self.lengths is not None and self.lengths.numel() and int(self.lengths.max()) > keys:
            raise ShapeError(
                f"padding: a length is {int(self.lengths.max())}, the call has {keys} keys. A "
                "sequence has as many real keys as there are, or fewer."
            )
        if self.allowed is not None and self.allowed.shape[1] != keys:
            raise ShapeError(
                f"padding: the mask has {self.allowed.shape[1]} keys, from "
                f"{describe(self.allowed)}, the call has {keys}. Give one column for each key."
            )


@dataclass(frozen=True, eq=False)
class Explicit(Mask):
    """A mask given as a bool tensor, broadcastable to (batch, heads, queries, keys)."""

    allowed: Tensor

    def block(self, rows: range, keys: int, device: torch.device) -> Tensor:
        """See Mask.block."""
        allowed = self.allowed.to(device)
        allowed = allowed.reshape((1,) * (4 - allowed.ndim) + tuple(allowed.shape))
        return allowed if allowed.shape[2] == 1 else allowed[:, :, rows.start : rows.stop]

    def check(self, batch: int, heads: int, queries: int, keys: int) -> None:
        """See Mask.check."""
        expected = (batch, heads, queries, keys)
        sizes = (1,) * (4 - self.allowed.ndim) + tuple(self.allowed.shape)
        if any(size not in (1, want) for size, want in zip(sizes, expected, strict=True)):
            raise ShapeError(
                f"mask: {describe(self.allowed)} does not broadcast to (batch, heads, queries, "
                f"keys) = {expected}. For a mask over the keys of each sequence, use "
                "weft.padding(mask)."
            )


def causal(offset: int = 0) -> Mask:
    """Query i looks at keys 0 to ``i + offset``.

    offset: the position of the first query among the keys: 0 where both begin together (as in
    torch's ``is_causal``), ``keys - queries`` where the queries are the last ones (a cache).

    >>> causal().dense(2, 3)[0, 0].int()
    tensor([[1, 0, 0],
            [1, 1, 0]], dtype=torch.int32)
    >>> causal(offset=1).dense(2, 3)[0, 0].int()
    tensor([[1, 1, 0],
            [1, 1, 1]], dtype=torch.int32)
    """
    return Window(None, 0, offset)


def window(left: int | None, right: int | None, offset: int = 0) -> Mask:
    """Query i looks at ``left`` keys before it, itself and ``right`` keys after it.

    None leaves a side open: ``window(None, 0)`` is causal, ``window(0, None)`` anti-causal.
    offset: the position of the first query among the keys, as for `causal`.
    """
    return Window(left, right, offset)


def padding(lengths: Sequence[int] | Tensor | int) -> Mask:
    """Keys past the end of their sequence are never looked at.

    lengths: the number of real keys of each sequence, (batch,); or a bool tensor (batch, keys),
    True = a real key, for padding on the left or in between.

    >>> padding([1, 3]).dense(1, 3)[:, 0, 0].int()
    tensor([[1, 0, 0],
            [1, 1, 1]], dtype=torch.int32)
    """
    try:
        given = torch.as_tensor(lengths)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise InputError(
            f"padding: got {type(lengths).__name__} that makes no tensor; expected one length, a "
            "whole number, for each sequence."
        ) from None
    if given.ndim == 0:
        given = given[None]
    if given.dtype == torch.bool:
        if given.ndim == 1:
            given = given[None]
        if given.ndim == 2:
            return Padding(given)
    elif given.ndim == 1 and not given.is_floating_point() and not given.is_complex():
        if bool((given < 0).any()):
            raise InputError(f"padding: a length is {int(given.min())}; expected 0 or more keys.")
        return Padding(None, given)
    raise InputError(
        f"padding: got {given.dtype} of shape {describe(given)}; expected lengths, integers of "
        "shape (batch,), or a bool tensor of shape (batch, keys), True = a real key."
    )


def as_mask(mask: Mask | Tensor) -> Mask:
    """A mask, or a bool tensor as a mask."""
    if isinstance(mask, Mask):
        return mask
    if not isinstance(mask, Tensor):
        raise InputError(f"mask: got {type(mask).__name__}; expected a weft mask or a bool tensor.")
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
