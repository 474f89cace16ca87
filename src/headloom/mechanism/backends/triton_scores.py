"""What the kernels for GPUs share: which keys a block of rows sees, and its scores of a tile.

This file and the kernels' need Triton; importing them compiles nothing.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["of_order", "order_of", "ranges_of", "ranges_of_rows", "scores_of", "with_rules"]

# Small functions of the kernels are written where they are used: the interpreter takes a while to
# enter one.


@triton.jit
def order_of(scores):  # type: ignore[no-untyped-def]
    """Whole numbers in the order of float32 scores; -0 comes below 0."""
    bits = scores.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def of_order(ordered):  # type: ignore[no-untyped-def]
    """The scores that `order_of` put in whole numbers."""
    return (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit  # type: ignore[untyped-decorator]
def ranges_of_rows(  # type: ignore[no-untyped-def]
    rows, real, batch, query_count, key_count, batch_count, left, right, key_range, row_range,
    BANDED: tl.constexpr, HAS_KEY_RANGE: tl.constexpr, HAS_ROW_RANGE: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """The first key that each row may see by its ranges, and that behind the last."""
    low = tl.zeros((ROWS,), tl.int32)
    high = tl.zeros((ROWS,), tl.int32) + key_count
    if BANDED:
        low = tl.maximum(low, rows + left)
        high = tl.minimum(high, rows + right + 1)
    if HAS_KEY_RANGE:
        low = tl.maximum(low, tl.load(key_range + batch))
        high = tl.minimum(high, tl.load(key_range + batch_count + batch))
    if HAS_ROW_RANGE:
        ranges = row_range + batch * query_count + rows
        low = tl.maximum(low, tl.load(ranges, mask=real, other=0))
        ends = ranges + (tl.zeros((ROWS,), tl.int64) + batch_count) * query_count
        high = tl.minimum(high, tl.load(ends, mask=real, other=0))
    return low, tl.where(real, high, 0)


@triton.jit  # type: ignore[untyped-decorator]
def ranges_of(  # type: ignore[no-untyped-def]
    block, batch, query_count, key_count, batch_count, left, right, key_range, row_range,
    BANDED: tl.constexpr, HAS_ALLOWED: tl.constexpr, HAS_KEY_RANGE: tl.constexpr,
    HAS_ROW_RANGE: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Which keys the rows of a block may see by their ranges; hidden cells come later.

    Returns: for each row the first key, that behind the last, and whether it is real; the block's
    first key, rounded to tiles, and how many tiles it has; of these, which all rows see whole.
    """
    rows = block * ROWS + tl.arange(0, ROWS)
    real = rows < query_count
    low, high = ranges_of_rows(
        rows, real, batch, query_count, key_count, batch_count, left, right, key_range, row_range,
        BANDED, HAS_KEY_RANGE, HAS_ROW_RANGE, ROWS,
    )  # fmt: skip
    begin = tl.min(tl.where(real, low, key_count)) // TILE * TILE
    tiles = tl.maximum(tl.max(high) - begin + TILE - 1, 0) // TILE
    solid_begin = (tl.max(tl.where(real, low, 0)) + TILE - 1) // TILE - begin // TILE
    solid_end = tl.min(tl.where(real, high, key_count)) // TILE - begin // TILE
    if HAS_ALLOWED:
        solid_end = solid_end * 0
    solid_begin = tl.minimum(solid_begin, tiles)
    solid_end = tl.maximum(tl.minimum(solid_end, tiles), solid_begin)
    return low, high, real, begin, tiles, solid_begin, solid_end


@triton.jit  # type: ignore[untyped-decorator]
def scores_of(  # type: ignore[no-untyped-def]
    first, query, low, high, rows, real, at_keys, key_row, key_count, depth, scale, softcap,
    offset_bias, cells, bias_row, allowed, allowed_row,
    MASKED: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_OFFSET_BIAS: tl.constexpr,
    HAS_ALLOWED: tl.constexpr, CAPPED: tl.constexpr, SCALED: tl.constexpr, WIDE: tl.constexpr,
    PRECISION: tl.constexpr, TILE: tl.constexpr, DEPTH: tl.constexpr, WHOLE_DEPTHS: tl.constexpr,
):  # fmt: skip
    """The scores of a tile of keys, minus infinity where hidden."""
    column = first + tl.arange(0, TILE)
    by_depth = tl.arange(0, DEPTH)
    of_key = at_keys + column[None, :].to(tl.int64) * key_row + by_depth[:, None]
    if MASKED or not WHOLE_DEPTHS:
        there = column < key_count
        key = tl.load(of_key, mask=there[None, :] & (by_depth[:, None] < depth), other=0.0)
    else:
        key = tl.load(of_key)
    if WIDE:  # the interpreter multiplies no bfloat16
        key = key.to(tl.float32)
    scores = tl.dot(query, key, input_precision=PRECISION)
    return with_rules(
        scores, column, low, high, rows, real, scale, softcap,
        offset_bias, cells, bias_row, allowed, allowed_row,
        MASKED, HAS_BIAS, HAS_OFFSET_BIAS, HAS_ALLOWED, CAPPED, SCALED,
    )  # fmt: skip


@triton.jit  # type: ignore[untyped-decorator]
def with_rules(  # type: ignore[no-untyped-def]
    scores, column, low, high, rows, real, scale, softcap,
    offset_bias, cells, bias_row, allowed, allowed_row,
    MASKED: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_OFFSET_BIAS: tl.constexpr,
    HAS_ALLOWED: tl.constexpr, CAPPED: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    """Of products of queries and keys the scores: scaled, capped, added to, hidden."""
    if not SCALED:
        scores *= scale
    if CAPPED:
        # tanh(x) = 1 - 2 / (e^2x + 1)
        scores = softcap * (1 - 2 / (tl.exp(2 * scores / softcap) + 1))
    visible = real[:, None] & (column[None, :] >= 0)
    if MASKED:
        visible = (column[None, :] >= low[:, None]) & (column[None, :] < high[:, None])
    if HAS_OFFSET_BIAS:
        distance = column[None, :] - rows[:, None]
        scores += tl.load(offset_bias + distance, mask=visible, other=0.0)
    if HAS_BIAS:
        cell = cells + rows[:, None].to(tl.int64) * bias_row + column[None, :]
        scores += tl.load(cell, mask=visible, other=0.0)
    if HAS_ALLOWED:
        cell = allowed + rows[:, None].to(tl.int64) * allowed_row + column[None, :]
        visible = visible & (tl.load(cell, mask=visible, other=0) != 0)
    if MASKED:
        scores = tl.where(visible, scores, -float("inf"))
    return scores
