"""The attention calls behind an AttentionMatrix: as given, turned over, one sequence beside itself.

A call here has no values of its own and no batch: it is what makes the scores. Sinks are no part
of it, since they change no score; a matrix knows them as a log-sum-exp.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from weft.errors import ShapeError
from weft.mechanism.adjacency import Neighbours
from weft.mechanism.backends.torch_blocks import block_scores, with_float_tensors
from weft.mechanism.call import AttentionCall
from weft.mechanism.checked import check_tensors, checked_call
from weft.mechanism.function import Backend, attend
from weft.mechanism.graph import AttentionGraph, Top
from weft.mechanism.masks import Both, Either, Explicit, Mask, Padding, Window
from weft.mechanism.packed import Ranges
from weft.mechanism.positions import ALiBi, Buckets, Relative, Shaw
from weft.mechanism.scores import Dot
from weft.mechanism.shapes import describe, repeat_kv_heads
from weft.mechanism.transposed import ByDistance, transposed_mask, transposed_relative

__all__ = ["COLUMNS", "MatrixCall", "matrix_call"]

#: Columns of values that one call takes; more are several.
COLUMNS = 512


@dataclass(frozen=True, eq=False)
class MatrixCall:
    """Queries (heads, queries, depth), keys (kv_heads, keys, depth), and the rules of their scores.

    bias: broadcastable to (heads, queries, keys), with three dimensions.
    """

    queries: Tensor
    keys: Tensor
    mask: Mask | None
    bias: Tensor | None
    relative: Relative | None
    scale: float
    softcap: float | None
    backend: Backend | None

    @property
    def shape(self) -> tuple[int, int, int]:
        """(heads, queries, keys)."""
        return self.queries.shape[0], self.queries.shape[1], self.keys.shape[1]

    @property
    def by_shaw(self) -> bool:
        """Whether the scores hold Shaw's positions, which depend on more than the distance."""
        return isinstance(self.relative, Shaw)

    def every_key(self) -> Tensor:
        """The keys with a head for each of the queries'."""
        return repeat_kv_heads(self.keys[None], self.shape[0])[0]

    def nothing(self, length: int) -> Tensor:
        """Values without columns, for calls that are asked for their rows alone."""
        return self.queries.new_empty(length, 0)

    def attend(self, values: Tensor, keep: Top) -> tuple[Tensor, AttentionGraph]:
        """Output and graph for values (keys, columns), or (heads, keys, columns)."""
        if values.shape[-1] > COLUMNS:
            parts = [self.attend(some, keep) for some in torch.split(values, COLUMNS, -1)]
            return torch.cat([output for output, _ in parts], -1), parts[0][1]
        # Where values come by head, so must the keys.
        keys = self.every_key() if values.ndim == 3 else self.keys
        return attend(
            self.queries,
            keys,
            values.expand(keys.shape[0], -1, -1),
            mask=self.mask,
            bias=self.bias,
            relative=self.relative,
            scale=self.scale,
            softcap=self.softcap,
            keep=keep,
            backend=self.backend,
        )

    def rows(self, keep: Top) -> AttentionGraph:
        """The graph alone."""
        return self.attend(self.nothing(self.shape[2]), keep)[1]

    def twice(self) -> MatrixCall:
        """The call whose scores are twice as high."""
        relative = self.relative
        if relative is not None and not self.by_shaw:
            relative = self._by_distance(2.0)
        return replace(
            self,
            scale=2 * self.scale,
            softcap=None if self.softcap is None else 2 * self.softcap,
            bias=None if self.bias is None else 2 * self.bias,
            relative=relative,
        )

    def turned(self, row_bias: Tensor) -> MatrixCall:
        """Queries and keys exchanged, a number for each query added: (heads, 1, queries)."""
        _, queries, keys = self.shape
        relative = self.relative
        if relative is not None and queries and keys:
            relative = transposed_relative(relative, queries, keys)
        return replace(
            self,
            queries=self.every_key(),
            keys=self.queries,
            mask=transposed_mask(self.mask, queries, keys),
            bias=row_bias if self.bias is None else row_bias + self.bias.transpose(1, 2),
            relative=relative,
        )

    def beside_itself(self, row_bias: Tensor) -> MatrixCall:
        """The call whose scores are s_ij + s_ji, a number for each j added. No cap, no Shaw."""
        assert self.softcap is None and not self.by_shaw
        _, queries, keys = self.shape
        repeated = self.every_key()
        mask = self.mask
        if mask is not None:
            turned = transposed_mask(mask, queries, keys)
            assert turned is not None
            mask = mask & turned
        relative, bias = self.relative, row_bias
        if relative is not None and keys:
            there = self._by_distance(1.0).values
            relative = ByDistance(there + there.flip(1), keys - 1)
        if self.bias is not None:
            bias = bias + self.bias + self.bias.transpose(1, 2)
        return replace(
            self,
            queries=torch.cat((self.queries, repeated), -1),
            keys=torch.cat((repeated, self.queries), -1),
            mask=mask,
            bias=bias,
            relative=relative,
        )

    def head(self, h: int) -> MatrixCall:
        """The call of one head alone."""
        heads = self.shape[0]
        group = heads // self.keys.shape[0]
        bias, relative = self.bias, self.relative
        if bias is not None and bias.shape[0] > 1:
            bias = bias[h : h + 1]
        return replace(
            self,
            queries=self.queries[h : h + 1],
            keys=self.keys[h // group : h // group + 1],
            mask=None if self.mask is None else _mask_of_head(self.mask, h),
            bias=bias,
            relative=None if relative is None else _relative_of_head(relative, h, self.shape),
        )

    def scores(self, rows: range, columns: range) -> Tensor:
        """The scores of some rows and columns, (heads, rows, columns), -inf where hidden."""
        inside = slice(columns.start, columns.stop)
        relative: Any = self.relative
        if relative is not None:
            # Key 0 of the tile is key columns.start of the matrix.
            relative = replace(relative, offset=relative.offset - columns.start)
        bias = self.bias
        if bias is not None:
            bias = bias[None] if bias.shape[2] == 1 else bias[None, :, :, inside]
        queries, keys = self.queries[None], self.every_key()[None, :, inside]
        scores = block_scores(
            AttentionCall(
                queries, keys, keys, Dot(), self.scale, None, relative, bias, self.softcap
            ),
            queries[:, :, rows.start : rows.stop],
            keys,
            rows,
        )[0]
        if self.mask is None:
            return scores
        allowed = self.mask.block(rows, self.shape[2], scores.device)[0]
        allowed = allowed if allowed.shape[2] == 1 else allowed[..., inside]
        return scores.masked_fill(~allowed, -torch.inf)

    def _by_distance(self, factor: float) -> ByDistance:
        """The relative bias as a vector by distance, times a factor."""
        return _relative_by_distance(self.relative, self.shape, factor)


def matrix_call(
    queries: Tensor,
    keys: Tensor,
    mask: Mask | Tensor | None,
    bias: Tensor | None,
    relative: Relative | None,
    scale: float | None,
    softcap: float | None,
    sinks: Tensor | None,
    backend: Backend | None,
) -> MatrixCall:
    """The arguments of an AttentionMatrix, checked; half precision in float32."""
    name = "AttentionMatrix"
    check_tensors(name, queries, keys)
    for which, tensor in (("queries", queries), ("keys", keys)):
        if tensor.ndim != 3:
            raise ShapeError(
                f"{name}: {which} are {describe(tensor)}; expected (heads, positions, depth). "
                "Take one sequence of a batch at a time."
            )
    if isinstance(relative, Shaw):  # the weights know nothing of values
        relative = replace(relative, value_table=None)
    values = keys[..., :0]
    scale = 1 / math.sqrt(max(queries.shape[2], 1)) if scale is None else scale
    checked = checked_call(
        name, queries, keys, values, mask, Dot(), relative, bias, scale, softcap, sinks, 0.0
    )
    half = queries.dtype in (torch.float16, torch.bfloat16)
    dtype = torch.float32 if half else queries.dtype
    return MatrixCall(
        queries.detach().to(dtype),
        keys.detach().to(dtype),
        checked.mask,
        None if checked.bias is None else checked.bias.detach()[0].to(dtype),
        with_float_tensors(relative) if half else relative,
        checked.scale,
        softcap,
        backend,
    )


def _relative_by_distance(
    relative: Relative | None, shape: tuple[int, int, int], factor: float = 1.0
) -> ByDistance:
    _, queries, keys = shape
    turned = transposed_relative(relative, queries, keys)
    assert isinstance(turned, ByDistance)
    return ByDistance(factor * turned.values.flip(1), queries - 1)


def _relative_of_head(relative: Relative, h: int, shape: tuple[int, int, int]) -> Relative:
    if isinstance(relative, Shaw):
        table = relative.key_table
        own = table.ndim == 3 and len(table) > 1
        return replace(relative, key_table=table[h : h + 1] if own else table)
    if isinstance(relative, ALiBi):
        return replace(relative, slopes=relative.slopes[h : h + 1])
    if isinstance(relative, Buckets):
        return replace(relative, table=relative.table[:, h : h + 1])
    if not isinstance(relative, ByDistance):
        relative = _relative_by_distance(relative, shape)
    values = relative.values
    return replace(relative, values=values[h : h + 1] if len(values) > 1 else values)


@dataclass(frozen=True, eq=False)
class _OfHead(Mask):
    """The mask of one head among those of a mask."""

    mask: Mask
    head: int

    def block(self, rows: range, keys: int, device: torch.device) -> Tensor:
        """See Mask.block."""
        allowed = self.mask.block(rows, keys, device)
        return allowed if allowed.shape[1] == 1 else allowed[:, self.head : self.head + 1]


def _mask_of_head(mask: Mask, h: int) -> Mask:
    if isinstance(mask, Window | Ranges | Padding | Neighbours):
        return mask
    if isinstance(mask, Both | Either):
        return type(mask)(_mask_of_head(mask.first, h), _mask_of_head(mask.second, h))
    if isinstance(mask, Explicit):
        allowed = mask.allowed
        if allowed.ndim < 3 or allowed.shape[-3] == 1:
            return mask
        return Explicit(allowed[..., h : h + 1, :, :])
    return _OfHead(mask, h)
