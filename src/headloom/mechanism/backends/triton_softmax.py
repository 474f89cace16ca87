"""First GPU kernel, in Triton: the output, row totals, and thresholds for the edges.

A program takes a block of queries of one head, then the next free block. Keys are read in tiles; a
tile's scores are one product, and the softmax is updated as in FlashAttention (Dao et al. 2022),
with a running sum of weight times score for the entropy.

If edges are kept, the largest score of each row in each tile (or in each of its PARTS) is stored.
These maxima belong to disjoint groups of keys, so that the k-th largest of them is at most the
row's k-th largest score: a threshold, which about 1.4 k scores of a row exceed if they are in
random order. Tiles with a score above its threshold are marked for the second kernel
(triton_edges.py).

Tiles that every row of the block sees completely, most of them, have their own loop without a mask.
The loops over tiles have no branch and no barrier, so that Triton prefetches keys and values.
"""

from __future__ import annotations

import triton
import triton.language as tl

from headloom.mechanism.backends.triton_scores import of_order, order_of, ranges_of, scores_of


@triton.jit  # type: ignore[untyped-decorator]
def _thresholds(  # type: ignore[no-untyped-def]
    maxima, stride, groups, thresholds, kept, rows_left,
    ROWS: tl.constexpr, PART: tl.constexpr, FOLD: tl.constexpr,
):  # fmt: skip
    """Write a threshold for each row that its k strongest scores exceed.

    maxima: (ROWS, groups) with a stride, the largest scores of disjoint groups of keys: the k-th
    largest of them is at most the k-th largest score. Groups are folded into FOLD interleaved ones.
    thresholds: of the block; rows_left: number of rows that exist.
    """
    behind = tl.arange(0, FOLD)
    for first in range(0, ROWS, PART):
        rows = first + tl.arange(0, PART)
        largest = tl.full((PART, FOLD), -float("inf"), tl.float32)
        for group in range(0, groups, FOLD):
            at = group + behind
            part = tl.load(
                maxima + rows[:, None] * stride + at[None, :],
                mask=(at < groups)[None, :], other=-float("inf"),
            )  # fmt: skip
            largest = tl.maximum(largest, part)
        ordered = order_of(largest)
        lowest, highest = tl.min(ordered, 1), tl.max(ordered, 1)
        for _ in range(14):
            middle = (lowest >> 1) + (highest >> 1) + ((lowest | highest) & 1)
            enough = tl.sum((ordered >= middle[:, None]).to(tl.int32), 1) >= kept
            highest = tl.where(enough, highest, tl.maximum(middle - 1, lowest))
            lowest = tl.where(enough, middle, lowest)
        reached = of_order(lowest)
        # Slightly below, so that scores equal to it exceed the threshold, -0 like 0.
        below = reached - tl.abs(reached) * 2.4e-7 - 1e-37
        below = tl.where(reached == float("inf"), 3.4028234e38, below)
        tl.store(thresholds + rows, below, mask=rows < rows_left)


@triton.jit  # type: ignore[untyped-decorator]
def _mark(  # type: ignore[no-untyped-def]
    maxima, stride, groups, thresholds, rows_left, again,
    ROWS: tl.constexpr, PARTS: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """Mark the tiles in which a row of the block exceeds its threshold, one bit for each tile."""
    rows = tl.arange(0, ROWS)
    threshold = tl.load(thresholds + rows, mask=rows < rows_left, other=float("inf"))
    bit = tl.arange(0, 32)
    WORDS: tl.constexpr = AT_ONCE // PARTS // 32
    for group in range(0, groups, AT_ONCE):
        at = group + tl.arange(0, AT_ONCE)
        part = tl.load(
            maxima + rows[:, None] * stride + at[None, :],
            mask=(at < groups)[None, :], other=-float("inf"),
        )  # fmt: skip
        exceeds = tl.max((part > threshold[:, None]).to(tl.int32), 0)
        marked = tl.max(tl.reshape(exceeds, (AT_ONCE // PARTS, PARTS)), 1)
        bits = tl.sum(tl.reshape(marked, (WORDS, 32)) << bit[None, :], 1)
        tl.store(again + group // PARTS // 32 + tl.arange(0, WORDS), bits)


@triton.jit  # type: ignore[untyped-decorator]
def _tile(  # type: ignore[no-untyped-def]
    first, number, most, mass, tilted, total, count,
    query, low, high, rows, real, at_keys, at_values, maxima, groups_room,
    key_row, value_row, key_count, depth, value_depth, factor, scale, softcap,
    offset_bias, cells, bias_row, allowed, allowed_row,
    MASKED: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_OFFSET_BIAS: tl.constexpr,
    HAS_ALLOWED: tl.constexpr, CAPPED: tl.constexpr, SCALED: tl.constexpr, KEEPS: tl.constexpr,
    WIDE: tl.constexpr, PRECISION: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,
    PARTS: tl.constexpr,
    DEPTH: tl.constexpr, VALUE_DEPTH: tl.constexpr, WHOLE_DEPTHS: tl.constexpr,
):  # fmt: skip
    """Update the softmax by one tile of keys. Scores times `factor` are exponents of 2.

    Returns: the running values: most, mass, tilted, total, count.
    """
    column, by_value = first + tl.arange(0, TILE), tl.arange(0, VALUE_DEPTH)
    of_value = at_values + column[:, None].to(tl.int64) * value_row + by_value[None, :]
    scores = scores_of(
        first, query, low, high, rows, real, at_keys, key_row, key_count, depth, scale, softcap,
        offset_bias, cells, bias_row, allowed, allowed_row,
        MASKED, HAS_BIAS, HAS_OFFSET_BIAS, HAS_ALLOWED, CAPPED, SCALED, WIDE, PRECISION, TILE,
        DEPTH, WHOLE_DEPTHS,
    )  # fmt: skip
    if MASKED or not WHOLE_DEPTHS:
        value = tl.load(
            of_value,
            mask=(column < key_count)[:, None] & (by_value[None, :] < value_depth), other=0.0,
        )  # fmt: skip
    else:
        value = tl.load(of_value)
    if HAS_OFFSET_BIAS or HAS_BIAS or HAS_ALLOWED:
        count += tl.sum((scores != -float("inf")).to(tl.int32), 1)

    if KEEPS and PARTS == 4:
        # A part has the columns of one of four threads, by the layout of a product.
        by_part = tl.max(tl.max(tl.reshape(scores, (ROWS, TILE // 8, 4, 2)), 3), 1)
        highest = tl.max(by_part, 1)
        part = number * 4 + tl.arange(0, 4)
        place = tl.arange(0, ROWS)[:, None] * groups_room + part[None, :]
        tl.store(maxima + place, by_part)
    else:
        highest = tl.max(scores, 1)
        if KEEPS:
            tl.store(maxima + tl.arange(0, ROWS) * groups_room + number, highest)
    higher = tl.maximum(most, highest)
    # A row without a visible key so far gets level 0; its exponentials are 0.
    level = tl.where(higher == -float("inf"), 0.0, higher)
    fall = tl.where(most == -float("inf"), 0.0, (most - level) * factor)
    shrunk = tl.where(most == -float("inf"), 0.0, tl.exp2(fall))
    below = (scores - level[:, None]) * factor
    if MASKED or HAS_OFFSET_BIAS or HAS_BIAS:
        # 2^-1000 is 0; 0 times minus infinity would be NaN.
        below = tl.where(scores == -float("inf"), -1000.0, below)
    weights = tl.exp2(below)
    sum_of_tile = tl.sum(weights, 1)
    tilt_of_tile = tl.sum(weights * below, 1)
    tilted = shrunk * (tilted + mass * fall) + tilt_of_tile
    mass = shrunk * mass + sum_of_tile
    rounded = weights.to(value.dtype)
    if WIDE:
        rounded, value = rounded.to(tl.float32), value.to(tl.float32)
    total = tl.dot(rounded, value, total * shrunk[:, None], input_precision=PRECISION)
    return higher, mass, tilted, total, count


@triton.jit  # type: ignore[untyped-decorator]
def softmax_kernel(  # type: ignore[no-untyped-def]
    queries, keys, values, output, lse, entropy, rest, counted,
    sinks, bias, offset_bias, allowed, key_range, row_range,
    thresholds, levels, shares, again, taken, maxima,
    query_batch, query_head, query_row, key_batch, key_head, key_row,
    value_batch, value_head, value_row,
    bias_batch, bias_head, bias_row, allowed_batch, allowed_head, allowed_row,
    groups_room, words, block_count, batch_count, head_count, group, query_count, key_count,
    depth, value_depth, scale, softcap, left, right, kept,
    HAS_SINKS: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_OFFSET_BIAS: tl.constexpr,
    HAS_ALLOWED: tl.constexpr, HAS_KEY_RANGE: tl.constexpr, HAS_ROW_RANGE: tl.constexpr,
    BANDED: tl.constexpr, CAPPED: tl.constexpr, SCALED: tl.constexpr, KEEPS: tl.constexpr,
    WIDE: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, TILE: tl.constexpr, PARTS: tl.constexpr, FOLD: tl.constexpr,
    FOLDED_ROWS: tl.constexpr, STAGES: tl.constexpr,
    DEPTH: tl.constexpr, VALUE_DEPTH: tl.constexpr, WHOLE_DEPTHS: tl.constexpr,
):  # fmt: skip
    """Compute the output and totals of each row; if edges are kept, thresholds and marked tiles.

    Pointers whose HAS_ is false are not read. Strides are in elements, the last dimension is
    contiguous; results are contiguous. block_count: blocks of a head; taken: number of blocks taken
    by programs, 0 at first. group: query heads for each key head. key_range: (2, batch);
    row_range: (2, batch, queries); offset_bias: (heads, queries + keys - 1). SCALED: whether scores
    stay unscaled products until the end, with a scale above 0.

    thresholds: of each row, exceeded by its edges. levels, shares, if KEEPS: the score that is
    subtracted, and the sum of the powers of 2 of the differences (-1 for a row without keys).
    again: (blocks of all heads, words), a bit for each tile with a score above a threshold.
    maxima: of each program (ROWS, groups_room).
    """
    by_depth, by_value = tl.arange(0, DEPTH), tl.arange(0, VALUE_DEPTH)
    own_rows = tl.arange(0, ROWS)
    unit = 1.0
    if SCALED:
        unit *= scale
    factor = unit * 1.4426950408889634
    maxima += tl.program_id(0).to(tl.int64) * ROWS * groups_room

    programs = block_count * batch_count * head_count
    program = tl.atomic_add(taken, 1)
    while program < programs:
        block = block_count - 1 - program % block_count  # the longest first where it is causal
        head_index = (program // block_count).to(tl.int64)
        batch, head = head_index // head_count, head_index % head_count
        rows = block * ROWS + own_rows
        place = head_index * query_count + rows  # among the rows of all heads
        low, high, real, begin, tiles, solid_begin, solid_end = ranges_of(
            block, batch, query_count, key_count, batch_count, left, right, key_range, row_range,
            BANDED, HAS_ALLOWED, HAS_KEY_RANGE, HAS_ROW_RANGE, ROWS, TILE,
        )  # fmt: skip
        query = tl.load(
            queries + batch * query_batch + head * query_head
            + rows[:, None].to(tl.int64) * query_row + by_depth[None, :],
            mask=real[:, None] & (by_depth[None, :] < depth), other=0.0,
        )  # fmt: skip
        if WIDE:
            query = query.to(tl.float32)
        at_keys = keys + batch * key_batch + head // group * key_head
        at_values = values + batch * value_batch + head // group * value_head
        at_cells = bias + batch * bias_batch + head * bias_head
        at_allowed = allowed + batch * allowed_batch + head * allowed_head
        at_offsets = offset_bias + head * (query_count + key_count - 1) + query_count - 1

        most = tl.full((ROWS,), -float("inf"), tl.float32)  # of the scores so far
        mass = tl.zeros((ROWS,), tl.float32)  # sum of e^(score - most)
        tilted = tl.zeros((ROWS,), tl.float32)  # sum of e^(score - most) (score - most) / log(2)
        total = tl.zeros((ROWS, VALUE_DEPTH), tl.float32)  # sum of e^(score - most) value
        count = tl.zeros((ROWS,), tl.int32)
        for number in tl.range(solid_begin, solid_end, num_stages=STAGES):
            most, mass, tilted, total, count = _tile(
                begin + number * TILE, number, most, mass, tilted, total, count,
                query, low, high, rows, real, at_keys, at_values, maxima, groups_room,
                key_row, value_row, key_count, depth, value_depth, factor, scale, softcap,
                at_offsets, at_cells, bias_row, at_allowed, allowed_row,
                False, HAS_BIAS, HAS_OFFSET_BIAS, False, CAPPED, SCALED, KEEPS, WIDE,
                PRECISION, ROWS, TILE, PARTS, DEPTH, VALUE_DEPTH, WHOLE_DEPTHS,
            )  # fmt: skip
        for index in tl.range(0, tiles - (solid_end - solid_begin), num_stages=STAGES):
            number = index + tl.where(index < solid_begin, 0, solid_end - solid_begin)
            most, mass, tilted, total, count = _tile(
                begin + number * TILE, number, most, mass, tilted, total, count,
                query, low, high, rows, real, at_keys, at_values, maxima, groups_room,
                key_row, value_row, key_count, depth, value_depth, factor, scale, softcap,
                at_offsets, at_cells, bias_row, at_allowed, allowed_row,
                True, HAS_BIAS, HAS_OFFSET_BIAS, HAS_ALLOWED, CAPPED, SCALED, KEEPS, WIDE,
                PRECISION, ROWS, TILE, PARTS, DEPTH, VALUE_DEPTH, WHOLE_DEPTHS,
            )  # fmt: skip
        if not (HAS_BIAS or HAS_OFFSET_BIAS or HAS_ALLOWED):
            count = tl.maximum(high - low, 0)

        level = tl.where(most == -float("inf"), 0.0, most)
        # From here on, except for the kept edges, scores are scaled and exponents of e.
        most, tilted = most * unit, tilted * 0.6931471805599453
        highest, with_sink = most, mass
        if HAS_SINKS:
            sink = tl.load(sinks + head)
            highest = tl.maximum(most, sink)
        empty = highest == -float("inf")
        top = tl.where(empty, 0.0, highest)
        if HAS_SINKS:
            to_sink = tl.where(most == -float("inf"), 0.0, most - top)
            less = tl.where(most == -float("inf"), 0.0, tl.exp2(to_sink * 1.4426950408889634))
            tilted = less * (tilted + mass * to_sink)
            mass = less * mass
            total = total * less[:, None]
            with_sink = mass + tl.exp2((sink - top) * 1.4426950408889634)
        share = tl.where(empty, 1.0, with_sink)
        own_share = share
        if HAS_SINKS:
            own_share = share / less
        of_row = tl.log2(share) * 0.6931471805599453
        tl.store(lse + place, tl.where(empty, -float("inf"), top + of_row), mask=real)
        tl.store(entropy + place, (mass * of_row - tilted) / share, mask=real)
        tl.store(counted + place, count, mask=real)
        tl.store(
            output + place[:, None] * value_depth + by_value[None, :],
            (total / share[:, None]).to(output.dtype.element_ty),
            mask=real[:, None] & (by_value[None, :] < value_depth),
        )
        if not KEEPS:
            tl.store(rest + place, tl.where(empty, 0.0, 1.0), mask=real)
        else:
            tl.store(levels + place, level, mask=real)
            tl.store(shares + place, tl.where(empty, -1.0, own_share), mask=real)
            tl.debug_barrier()  # the writes of other threads are read next
            of_block = thresholds + head_index * query_count + block * ROWS
            left_of_it = query_count - block * ROWS
            _thresholds(
                maxima, groups_room, tiles * PARTS, of_block, kept, left_of_it, ROWS, FOLDED_ROWS,
                FOLD,
            )  # fmt: skip
            tl.debug_barrier()
            _mark(
                maxima, groups_room, tiles * PARTS, of_block, left_of_it,
                again + (head_index * block_count + block) * words, ROWS, PARTS, 128,
            )  # fmt: skip
            tl.debug_barrier()  # the maxima are overwritten next
        program = tl.atomic_add(taken, 1)
