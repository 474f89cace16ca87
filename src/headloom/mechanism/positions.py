"""Position encodings, which give attention the order of tokens.

Absolute positions (sinusoidal, learned) are added to the embeddings; relative positions (Shaw,
ALiBi, buckets) are added to the scores. Rotary positions are in headloom.mechanism.rotary.

A query's position is its row plus ``offset``: 0 if queries and keys start together,
``keys - queries`` if the queries are the last positions, as with a cache.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from headloom.errors import InputError, ShapeError
from headloom.mechanism.parts import changed
from headloom.mechanism.shapes import describe, finite_number, real_tensor, whole_number


def distances(rows: range, keys: int, offset: int, device: torch.device) -> Tensor:
    """Return the distance ``j - (i + offset)`` from each query to each key, (rows, keys)."""
    position = torch.arange(rows.start, rows.stop, device=device) + offset
    return torch.arange(keys, device=device)[None, :] - position[:, None]


class DistanceTables(NamedTuple):
    """Embeddings of distances, a^K and a^V of `Shaw`: (2 clip + 1, depth), or one for each head."""

    keys: Tensor
    values: Tensor | None


class Relative(ABC):
    """Relative positions for `headloom.attention`: terms added to the scores and the output.

    A new kind is a frozen dataclass with an `offset`. A bias by distance derives from
    `DistanceBias` and defines `bias_of`; kernels, the weight matrix and traces then support it. Any
    other kind overrides the terms that it adds.
    """

    offset: int

    def __post_init__(self) -> None:
        offset = whole_number(type(self).__name__, "offset", self.offset)
        object.__setattr__(self, "offset", offset)  # as a Python int

    def check(self, heads: int, depth: int, value_depth: int) -> None:  # noqa: B027
        """Raise a ShapeError if the tables do not fit a call of these sizes."""

    def key_scores(self, queries: Tensor, rows: range, keys: int) -> Tensor | None:
        """Return the term added to the raw scores, before the scale.

        queries: (batch, heads, rows, depth). Returns: (batch, heads, rows, keys), or None.
        """
        return None

    def bias(self, rows: range, keys: int, device: torch.device) -> Tensor | None:
        """Return the term added to the scaled scores, (heads or 1, rows, keys), or None."""
        return None

    def value_output(self, weights: Tensor, rows: range) -> Tensor | None:
        """Return the term added to the output.

        weights: (batch, heads, rows, keys). Returns: (batch, heads, rows, value_depth), or None.
        """
        return None

    #: Whether a bias by distance, `by_distance`, is the only term.
    only_bias: ClassVar[bool] = False

    def by_distance(self, queries: int, keys: int) -> ByDistance | None:
        """Return all terms as a bias for each distance; None: they depend on more."""
        return None

    def tables(self) -> DistanceTables | None:
        """Return all terms as embeddings of distances; None: they are of another kind."""
        return None

    def in_scores(self) -> Relative:
        """Return the positions without the term of the output, for an `AttentionMatrix`."""
        if self.only_bias:
            return self
        raise InputError(f"{type(self).__name__}: it has no in_scores, which a matrix needs.")

    def moved(self, by: int) -> Self:
        """Return the positions of queries that are `by` positions later."""
        return changed(self, offset=self.offset + by)

    def of_head(self, head: int, heads: int) -> Relative:
        """Return the positions of one of `heads` heads, for a call with this head only."""
        raise InputError(f"{type(self).__name__}: it has no of_head, which a matrix needs.")


class DistanceBias(Relative):
    """Relative positions that add a bias to the scores, which depends only on the distance.

    looked_up: whether every bias is an entry of a table; otherwise it is a parameter times the
        distance, which also multiplies the gradient.
    """

    only_bias = True
    looked_up: ClassVar[bool] = False

    @abstractmethod
    def bias_of(self, distance: Tensor) -> Tensor:
        """Return the bias of distances ``j - i``, integers (...): (heads or 1, ...)."""

    def bias(self, rows: range, keys: int, device: torch.device) -> Tensor:
        return self.bias_of(distances(rows, keys, self.offset, device))

    def by_distance(self, queries: int, keys: int) -> ByDistance:
        # In the order of the keys, the distances of the last query start at 1 - queries.
        distance = torch.arange(1 - queries, max(keys, 1 - queries)) - self.offset
        return ByDistance(self.bias_of(distance), queries - 1)

    def of_head(self, head: int, heads: int) -> Relative:
        return _BiasOfHead(self, head, self.offset)


@dataclass(frozen=True, eq=False)
class _BiasOfHead(DistanceBias):
    """Bias of one head."""

    relative: DistanceBias
    head: int
    offset: int = 0

    def bias_of(self, distance: Tensor) -> Tensor:
        bias = self.relative.bias_of(distance)
        return bias if len(bias) == 1 else bias[self.head, None]


@dataclass(frozen=True, eq=False)
class ByDistance(DistanceBias):
    """Bias for each distance: ``values[:, zero + j - i - offset]``; (heads or 1, distances)."""

    looked_up: ClassVar[bool] = True

    values: Tensor
    zero: int
    offset: int = 0

    def bias_of(self, distance: Tensor) -> Tensor:
        return self.values.to(distance.device)[:, distance + self.zero]

    def transposed(self) -> ByDistance:
        """Return the bias of (j, i) for (i, j); the call has all distances of the values."""
        return ByDistance(self.values.flip(1), self.values.shape[1] - 1 - self.zero, -self.offset)


def sinusoidal(length: int, width: int, base: float = 10_000.0) -> Tensor:
    """Return sinusoidal positions, to be added to the embeddings.

        PE(position, 2i)     = sin(position / base^(2i / width))
        PE(position, 2i + 1) = cos(position / base^(2i / width))

    Returns: (length, width).
    Raises: InputError: the width is odd, or a number is below 0.
    Source: Vaswani et al. 2017, section 3.5.

    >>> sinusoidal(2, 4)
    tensor([[0.0000, 1.0000, 0.0000, 1.0000],
            [0.8415, 0.5403, 0.0100, 0.9999]])
    """
    length = whole_number("sinusoidal", "length", length, 0)
    width = whole_number("sinusoidal", "width", width, 0)
    if finite_number("sinusoidal", "base", base) <= 0:
        raise InputError(f"sinusoidal: base={base:g}; expected a number above 0, as 10,000.")
    if width % 2:
        raise InputError(
            f"sinusoidal: width {width} is odd; sines and cosines come in pairs. Choose an even "
            "width, or no positions."
        )
    position = torch.arange(length, dtype=torch.float64)[:, None]
    frequency = base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angle = position * frequency
    return torch.stack((angle.sin(), angle.cos()), -1).flatten(-2).to(torch.get_default_dtype())


def alibi_slopes(heads: int) -> Tensor:
    """Return the slopes of ALiBi, one for each head: a geometric series from 2^(-8 / heads).

    If the number of heads is no power of two, the series of the next smaller power is completed by
    every other term of the series of the next larger one.

    Returns: (heads,).
    Source: Press et al. 2022, section 3.

    >>> alibi_slopes(4)
    tensor([0.2500, 0.0625, 0.0156, 0.0039])
    """
    heads = whole_number("alibi_slopes", "heads", heads, 1)
    power = 2 ** int(math.log2(heads))
    slopes = [2 ** (-8 * (head + 1) / power) for head in range(power)]
    slopes += [2 ** (-8 * (head + 1) / (2 * power)) for head in range(0, 2 * power, 2)]
    return torch.tensor(slopes[:heads])


def bucket_of_distance(
    distance: Tensor, buckets: int, max_distance: int, bidirectional: bool
) -> Tensor:
    """Return the bucket of a distance: one for each small distance, logarithmic for large ones.

    Args:
        distance: j - i, any shape, integers.
        buckets: number of buckets.
        max_distance: all keys farther away share the last bucket.
        bidirectional: whether keys after the query have their own buckets (the upper half);
            otherwise they share bucket 0.

    Raises: InputError: too few buckets, or a max_distance that is too small for them.
    Source: Raffel et al. 2020, section 2.1.

    >>> bucket_of_distance(torch.tensor([-200, -9, -1, 0, 1, 9]), 32, 128, True)
    tensor([15,  8,  1,  0, 17, 24])
    """
    check_buckets("bucket_of_distance", buckets, max_distance, bidirectional=bidirectional)
    first = torch.zeros_like(distance)
    if bidirectional:
        buckets //= 2
        first = (distance > 0).long() * buckets
        distance = distance.abs()
    else:
        distance = (-distance).clamp(min=0)
    exact = buckets // 2
    ratio = (distance.clamp(min=1).float() / exact).log() / math.log(max_distance / exact)
    far = (exact + (ratio * (buckets - exact)).long()).clamp(max=buckets - 1)
    return first + torch.where(distance < exact, distance, far)


def check_buckets(operation: str, buckets: int, max_distance: int, *, bidirectional: bool) -> None:
    """Raise an InputError if some distances would have no bucket."""
    whole_number(operation, "buckets", buckets, 0)
    whole_number(operation, "max_distance", max_distance, 1)
    exact = (buckets // 2 if bidirectional else buckets) // 2
    if exact < 1 or max_distance <= exact:
        raise InputError(
            f"{operation}: {buckets} buckets with max_distance={max_distance}; expected "
            f"{4 if bidirectional else 2} buckets or more, and a max_distance above {exact}, the "
            "first distance that shares its bucket."
        )


@dataclass(frozen=True, eq=False)
class Shaw(Relative):
    """Learned relative positions for keys and values.

        e_ij = q_i . (k_j + a^K_{clip(j - i)}) / sqrt(depth)
        z_i  = sum_j w_ij (v_j + a^V_{clip(j - i)})

    with distances clipped to [-clip, clip]. No (queries, keys, depth) tensor is formed: each query
    has 2 clip + 1 dot products with the table; each row of weights is first summed by distance.

    key_table: a^K, (2 clip + 1, depth) or (heads, 2 clip + 1, depth); row 0 is distance -clip.
    value_table: a^V, the same with the values' depth, or None.
    Source: Shaw et al. 2018, equations 3 to 5.
    """

    key_table: Tensor
    value_table: Tensor | None = None
    offset: int = 0

    @property
    def clip(self) -> int:
        """Largest distance with its own embedding."""
        return (self.key_table.shape[-2] - 1) // 2

    def check(self, heads: int, depth: int, value_depth: int) -> None:
        tables = [("key", self.key_table, depth)]
        if self.value_table is not None:
            tables.append(("value", self.value_table, value_depth))
        for name, table, expected in tables:
            if (
                real_tensor("Shaw", f"the {name} table", table).ndim not in (2, 3)
                or table.shape[-1] != expected
                or table.shape[-2] % 2 == 0
                or table.shape[-2] != self.key_table.shape[-2]
                or (table.ndim == 3 and table.shape[0] not in (1, heads))
            ):
                raise ShapeError(
                    f"Shaw: the {name} table is {describe(table)}; expected (2 clip + 1, "
                    f"{expected}) or ({heads}, 2 clip + 1, {expected}), with one clip for both "
                    "tables."
                )

    def tables(self) -> DistanceTables:
        return DistanceTables(self.key_table, self.value_table)

    def in_scores(self) -> Shaw:
        return changed(self, value_table=None)

    def of_head(self, head: int, heads: int) -> Shaw:
        def select(table: Tensor) -> Tensor:
            return table[head, None] if table.ndim == 3 and len(table) > 1 else table

        values = None if self.value_table is None else select(self.value_table)
        return Shaw(select(self.key_table), values, self.offset)

    def _rows_of_table(self, rows: range, keys: int, device: torch.device) -> Tensor:
        clipped = distances(rows, keys, self.offset, device).clamp(-self.clip, self.clip)
        return clipped + self.clip

    def key_scores(self, queries: Tensor, rows: range, keys: int) -> Tensor:
        by_distance = queries @ self.key_table.to(queries.dtype).transpose(-2, -1)
        index = self._rows_of_table(rows, keys, queries.device)
        return by_distance.gather(-1, index.expand(*queries.shape[:2], *index.shape))

    def value_output(self, weights: Tensor, rows: range) -> Tensor | None:
        if self.value_table is None:
            return None
        index = self._rows_of_table(rows, weights.shape[-1], weights.device)
        by_distance = weights.new_zeros(*weights.shape[:3], self.value_table.shape[-2])
        by_distance = by_distance.scatter_add(-1, index.expand_as(weights), weights)
        return by_distance @ self.value_table.to(weights.dtype)


@dataclass(frozen=True, eq=False)
class ALiBi(DistanceBias):
    """Bias that falls linearly with the distance: ``bias_ij = -slope |j - i|``.

    slopes: (heads,), see `alibi_slopes`.
    Source: Press et al. 2022; symmetric about the query if later keys are visible.
    """

    slopes: Tensor
    offset: int = 0

    def check(self, heads: int, depth: int, value_depth: int) -> None:
        real_tensor("ALiBi", "slopes", self.slopes)
        if self.slopes.shape != (heads,):
            raise ShapeError(
                f"ALiBi: the slopes are {describe(self.slopes)}; expected one a head, ({heads},)."
            )

    def bias_of(self, distance: Tensor) -> Tensor:
        slopes = self.slopes.to(distance.device)
        if slopes.dtype in (torch.float16, torch.bfloat16):
            slopes = slopes.float()  # products with distances need more digits
        return slopes.reshape(-1, *(1,) * distance.ndim) * -distance.abs()


@dataclass(frozen=True, eq=False)
class Buckets(DistanceBias):
    """Learned bias for each bucket of distances and each head (T5).

    table: (buckets, heads); see `bucket_of_distance`.
    Source: Raffel et al. 2020, section 2.1.
    """

    looked_up: ClassVar[bool] = True

    table: Tensor
    bidirectional: bool = True
    max_distance: int = 128
    offset: int = 0

    def check(self, heads: int, depth: int, value_depth: int) -> None:
        real_tensor("Buckets", "the table", self.table)
        if self.table.ndim != 2 or self.table.shape[1] != heads:
            raise ShapeError(
                f"Buckets: the table is {describe(self.table)}; expected (buckets, {heads}), one "
                "column a head."
            )
        buckets = self.table.shape[0]
        check_buckets("Buckets", buckets, self.max_distance, bidirectional=self.bidirectional)

    def bias_of(self, distance: Tensor) -> Tensor:
        bucket = bucket_of_distance(
            distance, self.table.shape[0], self.max_distance, self.bidirectional
        )
        return self.table[bucket].movedim(-1, 0)
