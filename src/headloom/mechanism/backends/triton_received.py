"""The third kernel for GPUs, in Triton, where it is asked: what each key receives.

A program has a tile of keys of one head; blocks of queries stream past. Their scores are formed
again, and become weights by what the first kernel wrote of each row; the columns of the weights are
summed cell by cell of a block, and the cells once at the end.
"""

from __future__ import annotations

import triton
import triton.language as tl

from headloom.mechanism.backends.triton_scores import ranges_of_rows, with_rules

__all__ = ["received_kernel"]


@triton.jit  # type: ignore[untyped-decorator]
def _meet(  # type: ignore[no-untyped-def]
    block, mass, largest, late, key, column, at_queries, query_row, batch, one, levels, shares,
    query_count, key_count, batch_count, depth, factor, scale, softcap, left, right, window_begin,
    key_range, row_range, offset_bias, cells, bias_row, allowed, allowed_row,
    MASKED: tl.constexpr, BANDED: tl.constexpr, HAS_KEY_RANGE: tl.constexpr,
    HAS_ROW_RANGE: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_OFFSET_BIAS: tl.constexpr,
    HAS_ALLOWED: tl.constexpr, CAPPED: tl.constexpr, SCALED: tl.constexpr, WIDE: tl.constexpr,
    HAS_WINDOW: tl.constexpr, PRECISION: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Meet one block of queries. Returns: what is carried from block to block, as it is given."""
    by_depth = tl.arange(0, DEPTH)
    rows = block * ROWS + tl.arange(0, ROWS)
    real = rows < query_count
    query = tl.load(
        at_queries + rows[:, None].to(tl.int64) * query_row + by_depth[None, :],
        mask=real[:, None] & (by_depth[None, :] < depth), other=0.0,
    )  # fmt: skip
    if WIDE:
        query = query.to(tl.float32)
    level = tl.load(levels + one * query_count + rows, mask=real, other=0.0)
    share = tl.load(shares + one * query_count + rows, mask=real, other=-1.0)
    low, high = tl.zeros((ROWS,), tl.int32), tl.zeros((ROWS,), tl.int32)
    if MASKED:
        low, high = ranges_of_rows(
            rows, real, batch, query_count, key_count, batch_count, left, right, key_range,
            row_range, BANDED, HAS_KEY_RANGE, HAS_ROW_RANGE, ROWS,
        )  # fmt: skip
    scores = with_rules(
        tl.dot(query, key, input_precision=PRECISION), column, low, high, rows, real, scale,
        softcap, offset_bias, cells, bias_row, allowed, allowed_row,
        MASKED, HAS_BIAS, HAS_OFFSET_BIAS, HAS_ALLOWED, CAPPED, SCALED,
    )  # fmt: skip
    below = tl.where(scores == -float("inf"), -float("inf"), (scores - level[:, None]) * factor)
    # Rows that see nothing, and those behind the last, have a share below 0.
    weights = tl.exp2(below) * tl.where(share > 0, 1.0 / share, 0.0)[:, None]
    mass += weights
    largest = tl.maximum(largest, weights)
    if HAS_WINDOW:
        late += tl.where((rows >= window_begin)[:, None], weights, 0.0)
    return mass, largest, late


@triton.jit  # type: ignore[untyped-decorator]
def received_kernel(  # type: ignore[no-untyped-def]
    queries, keys, received, received_most, received_last,
    bias, offset_bias, allowed, key_range, row_range, levels, shares,
    query_batch, query_head, query_row, key_batch, key_head, key_row,
    bias_batch, bias_head, bias_row, allowed_batch, allowed_head, allowed_row,
    tile_count, window_begin, block_count, batch_count, head_count, group, query_count, key_count,
    depth, scale, softcap, left, right,
    HAS_BIAS: tl.constexpr, HAS_OFFSET_BIAS: tl.constexpr,
    HAS_ALLOWED: tl.constexpr, HAS_KEY_RANGE: tl.constexpr, HAS_ROW_RANGE: tl.constexpr,
    BANDED: tl.constexpr, CAPPED: tl.constexpr, SCALED: tl.constexpr,
    WIDE: tl.constexpr, HAS_WINDOW: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, TILE: tl.constexpr, STAGES: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """The sums and the largest of the weights on a tile of keys, (heads of all batches, keys).

    Arguments are those of `softmax_kernel`. tile_count: of a head; window_begin: the first of the
    last queries, of which received_last is the sum.
    """
    program = tl.program_id(0)
    first = program % tile_count * TILE  # the first keys first, which a causal mask lets most see
    one = (program // tile_count).to(tl.int64)
    batch, head = one // head_count, one % head_count
    column, by_depth = first + tl.arange(0, TILE), tl.arange(0, DEPTH)
    key = tl.load(
        keys + batch * key_batch + head // group * key_head
        + column[None, :].to(tl.int64) * key_row + by_depth[:, None],
        mask=(column < key_count)[None, :] & (by_depth < depth)[:, None], other=0.0,
    )  # fmt: skip
    if WIDE:  # the interpreter multiplies no bfloat16
        key = key.to(tl.float32)
    at_queries = queries + batch * query_batch + head * query_head
    at_cells = bias + batch * bias_batch + head * bias_head
    at_allowed = allowed + batch * allowed_batch + head * allowed_head
    at_offsets = offset_bias + head * (query_count + key_count - 1) + query_count - 1
    factor = 1.4426950408889634
    if SCALED:
        factor *= scale

    # Blocks of which a row may see a key of the tile; and those of which all see all of them.
    begin, end = 0, block_count
    solid_begin, solid_end = 0, block_count
    if BANDED:
        last = first + TILE - 1
        begin = tl.maximum(first - right, 0) // ROWS
        end = tl.minimum(tl.maximum(last - left + ROWS, 0) // ROWS, block_count)
        solid_begin = tl.maximum(last - right + ROWS - 1, 0) // ROWS
        solid_end = tl.maximum(first - left + 1, 0) // ROWS
    if HAS_KEY_RANGE or HAS_ROW_RANGE or HAS_ALLOWED:
        solid_end = solid_end * 0
    solid_end = tl.where(first + TILE > key_count, 0, solid_end)
    end = tl.maximum(end, begin)
    solid_begin = tl.minimum(tl.maximum(solid_begin, begin), end)
    solid_end = tl.maximum(tl.minimum(solid_end, end), solid_begin)
    solid = solid_end - solid_begin

    mass = tl.zeros((ROWS, TILE), tl.float32)
    largest = tl.zeros((ROWS, TILE), tl.float32)
    late = tl.zeros((ROWS, TILE), tl.float32)
    for block in tl.range(solid_begin, solid_end, num_stages=STAGES):
        mass, largest, late = _meet(
            block, mass, largest, late, key, column, at_queries, query_row, batch, one, levels,
            shares, query_count, key_count, batch_count, depth, factor, scale, softcap, left,
            right, window_begin, key_range, row_range, at_offsets, at_cells, bias_row, at_allowed,
            allowed_row,
            False, BANDED, HAS_KEY_RANGE, HAS_ROW_RANGE, HAS_BIAS, HAS_OFFSET_BIAS, False, CAPPED,
            SCALED, WIDE, HAS_WINDOW, PRECISION, ROWS, DEPTH,
        )  # fmt: skip
    for index in tl.range(begin, end - solid, num_stages=STAGES):
        mass, largest, late = _meet(
            index + tl.where(index < solid_begin, 0, solid),
            mass, largest, late, key, column, at_queries, query_row, batch, one, levels,
            shares, query_count, key_count, batch_count, depth, factor, scale, softcap, left,
            right, window_begin, key_range, row_range, at_offsets, at_cells, bias_row, at_allowed,
            allowed_row,
            True, BANDED, HAS_KEY_RANGE, HAS_ROW_RANGE, HAS_BIAS, HAS_OFFSET_BIAS, HAS_ALLOWED,
            CAPPED, SCALED, WIDE, HAS_WINDOW, PRECISION, ROWS, DEPTH,
        )  # fmt: skip
    at = one * key_count + column
    there = column < key_count
    tl.store(received + at, tl.sum(mass, 0), mask=there)
    tl.store(received_most + at, tl.max(largest, 0), mask=there)
    if HAS_WINDOW:
        tl.store(received_last + at, tl.sum(late, 0), mask=there)
