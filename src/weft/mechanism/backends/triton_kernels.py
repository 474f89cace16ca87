"""The forward kernel for GPUs, in Triton: output and exact graph in one pass, memory linear.

A program has a block of queries of one head. Keys stream past in tiles; a tile's scores are one
product, then the softmax goes on as in FlashAttention (Dao et al. 2022), with a running sum of
weight times score for the entropy.

**Tiles** that every row of the block sees whole, most of them, take a path without a mask. Tiles
come in segments: the loop over a segment has no branch and no barrier, so that Triton asks for the
next keys and values while it computes.

**Edges.** Each row has a threshold, below which no score can be among its k strongest any more, and
room for CAPACITY candidates in memory, which the second cache holds: those that a cut leaves, and
all scores of a segment. A tile's scores above the threshold are appended without order. Between
segments, where a row has more than enough, the block is cut: by halving an interval a threshold is
found that leaves at least k of a row's candidates and LEFT at most, without sorting; so are, at the
end, the LEFT that are sorted. A candidate is one whole number, score and key: of equal scores that
of the lower key is ahead.

This file alone needs Triton; importing it compiles nothing.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["attend_kernel"]


# Small functions of the kernel are written where they are used: the interpreter takes a while to
# enter one.


@triton.jit
def _rank_of(candidates):  # type: ignore[no-untyped-def]
    """Whole numbers in the order of candidates: the stronger edge is the larger number.

    candidates: the bits of a score above, its key below.
    """
    bits = (candidates >> 32).to(tl.int32)
    bits = tl.where(bits == -(2**31), 0, bits)  # -0 is 0, its equal
    ordered = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64)
    return (ordered << 32) | (0x7FFFFFFF - candidates.to(tl.int32)).to(tl.int64)


@triton.jit
def _score_of(ranks):  # type: ignore[no-untyped-def]
    ordered = (ranks >> 32).to(tl.int32)
    return (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit  # type: ignore[untyped-decorator]
def _cut(  # type: ignore[no-untyped-def]
    room, counts, threshold, kept,
    ROWS: tl.constexpr, CUT: tl.constexpr, PIECE: tl.constexpr, CAPACITY: tl.constexpr,
    LEFT: tl.constexpr,
):  # fmt: skip
    """Leave of the candidates of each row the strongest, k at least and LEFT at most.

    room: of the block, (ROWS, CAPACITY); then two numbers of each row. Rows that have no more than
    LEFT stay as they are.
    Returns: how many candidates each row has, and the score that another must exceed.
    """
    rows = tl.arange(0, ROWS)
    behind = tl.arange(0, PIECE)
    counted, raised = room + ROWS * CAPACITY, room + ROWS * CAPACITY + ROWS
    tl.store(counted + rows, counts.to(tl.int64))
    tl.store(raised + rows, threshold.to(tl.int32, bitcast=True).to(tl.int64))
    tl.debug_barrier()  # what other threads wrote is read
    for first in range(0, ROWS, CUT):
        some = first + tl.arange(0, CUT)
        inside = tl.load(counted + some).to(tl.int32)
        most = tl.max(inside)
        if most > LEFT:
            at = room + some[:, None] * CAPACITY + behind[None, :]
            lowest = tl.full((CUT,), 2**63 - 1, tl.int64)
            highest = tl.full((CUT,), -(2**63), tl.int64)
            for piece in range(0, most, PIECE):
                there = piece + behind[None, :] < inside[:, None]
                ranks = _rank_of(tl.load(at + piece, mask=there, other=0))
                lowest = tl.minimum(lowest, tl.min(tl.where(there, ranks, 2**63 - 1), 1))
                highest = tl.maximum(highest, tl.max(tl.where(there, ranks, -(2**63)), 1))
            # At least k candidates reach `lowest`, fewer than k exceed `highest`.
            left = inside
            while tl.max(left) > LEFT:
                # Their mean, up; without a sum that would not fit.
                middle = (lowest >> 1) + (highest >> 1) + ((lowest | highest) & 1)
                reached = tl.zeros((CUT,), tl.int32)
                for piece in range(0, most, PIECE):
                    there = piece + behind[None, :] < inside[:, None]
                    ranks = _rank_of(tl.load(at + piece, mask=there, other=0))
                    reached += tl.sum((there & (ranks >= middle[:, None])).to(tl.int32), 1)
                enough = (reached >= kept) & (left > LEFT)
                highest = tl.where(enough, highest, tl.maximum(middle - 1, lowest))
                lowest = tl.where(enough, middle, lowest)
                left = tl.where(enough, reached, left)
            cut = inside > LEFT
            written = tl.zeros((CUT,), tl.int32)
            for piece in range(0, most, PIECE):
                there = piece + behind[None, :] < inside[:, None]
                found = tl.load(at + piece, mask=there, other=0)
                stays = there & ((_rank_of(found) >= lowest[:, None]) | (cut == 0)[:, None])
                many = stays.to(tl.int32)
                to = written[:, None] + tl.cumsum(many, 1) - 1
                tl.debug_barrier()  # all of a piece is read before places in it are written
                tl.store(room + some[:, None] * CAPACITY + to, found, mask=stays)
                written += tl.sum(many, 1)
            tl.store(counted + some, written.to(tl.int64))
            # k candidates reach it, with lower keys than those to come.
            score = tl.load(raised + some).to(tl.int32).to(tl.float32, bitcast=True)
            score = tl.where(cut, tl.maximum(score, _score_of(lowest)), score)
            tl.store(raised + some, score.to(tl.int32, bitcast=True).to(tl.int64))
    tl.debug_barrier()
    counts = tl.load(counted + rows).to(tl.int32)
    return counts, tl.load(raised + rows).to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit  # type: ignore[untyped-decorator]
def _tile(  # type: ignore[no-untyped-def]
    first, most, mass, tilted, total, seen, counts,
    threshold, triangle, query, low, high, rows, real, at_keys, at_values, candidates,
    key_row, value_row, key_count, depth, value_depth, factor, scale, softcap,
    offset_bias, cells, bias_row, allowed, allowed_row,
    MASKED: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_OFFSETS: tl.constexpr,
    HAS_ALLOWED: tl.constexpr, CAPPED: tl.constexpr, SCALED: tl.constexpr, KEEPS: tl.constexpr,
    WIDE: tl.constexpr, PTX: tl.constexpr, PRECISION: tl.constexpr, TILE: tl.constexpr,
    DEPTH: tl.constexpr, VALUE_DEPTH: tl.constexpr, WHOLE_DEPTHS: tl.constexpr,
):  # fmt: skip
    """Meet one tile of keys. Scores are in units in which `factor` times them is a power of 2.

    Returns: what is carried from tile to tile, as it is given.
    """
    column = first + tl.arange(0, TILE)
    by_depth, by_value = tl.arange(0, DEPTH), tl.arange(0, VALUE_DEPTH)
    of_key = at_keys + column[None, :].to(tl.int64) * key_row + by_depth[:, None]
    of_value = at_values + column[:, None].to(tl.int64) * value_row + by_value[None, :]
    if MASKED or not WHOLE_DEPTHS:
        there = column < key_count
        key = tl.load(of_key, mask=there[None, :] & (by_depth[:, None] < depth), other=0.0)
        value = tl.load(
            of_value, mask=there[:, None] & (by_value[None, :] < value_depth), other=0.0
        )
    else:
        key, value = tl.load(of_key), tl.load(of_value)
    if WIDE:  # the interpreter multiplies no bfloat16
        key = key.to(tl.float32)
    scores = tl.dot(query, key, input_precision=PRECISION)
    if not SCALED:
        scores *= scale
    if CAPPED:
        # tanh(x) = 1 - 2 / (e^2x + 1)
        scores = softcap * (1 - 2 / (tl.exp(2 * scores / softcap) + 1))
    visible = real[:, None] & (column[None, :] >= 0)
    if MASKED:
        visible = (column[None, :] >= low[:, None]) & (column[None, :] < high[:, None])
    if HAS_OFFSETS:
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
    if HAS_OFFSETS or HAS_BIAS or HAS_ALLOWED:
        seen += tl.sum((scores != -float("inf")).to(tl.int32), 1)

    higher = tl.maximum(most, tl.max(scores, 1))
    # A row that has seen no key yet has no level: 0 serves, its exponentials are 0.
    level = tl.where(higher == -float("inf"), 0.0, higher)
    fall = tl.where(most == -float("inf"), 0.0, (most - level) * factor)
    shrunk = tl.where(most == -float("inf"), 0.0, tl.exp2(fall))
    below = (scores - level[:, None]) * factor
    if MASKED or HAS_OFFSETS or HAS_BIAS:
        # Its power of 2 is 0; but 0 times minus infinity is no number.
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

    if KEEPS:
        above = scores > threshold[:, None]
        # How many are so up to each column: a product, since the scores lie as products do.
        up_to = tl.dot(tl.where(above, 1.0, 0.0).to(triangle.dtype), triangle)
        # Of a float from 2^23 on the low bits are the whole number itself.
        place = up_to + (counts + (2**23 - 1)).to(tl.float32)[:, None]
        if PTX:
            # tl.store would first carry addresses and scores to other threads.
            tl.inline_asm_elementwise(
                """{ .reg .pred p; .reg .b64 a;
                setp.gt.f32 p, $4, $5;
                mad.wide.u32 a, $2, 8, $1;
                @p st.global.v2.b32 [a], {$3, $4};
                mov.b32 $0, 0; }""",
                "=r,l,r,r,r,r",
                [
                    candidates.to(tl.int64) - 8 * 0x4B000000, place.to(tl.int32, bitcast=True),
                    tl.broadcast_to(column[None, :], scores.shape),
                    scores, tl.broadcast_to(threshold[:, None], scores.shape),
                ],
                dtype=tl.int32, is_pure=False, pack=1,
            )  # fmt: skip
        else:
            bits = scores.to(tl.int32, bitcast=True)
            packed = (bits.to(tl.int64) << 32) | column.to(tl.int64)[None, :]
            places = place.to(tl.int32, bitcast=True) & 0x7FFFFF
            tl.store(candidates + places, packed, mask=above)
        counts += tl.max(up_to, 1).to(tl.int32)
    return higher, mass, tilted, total, seen, counts


@triton.jit  # type: ignore[untyped-decorator]
def attend_kernel(  # type: ignore[no-untyped-def]
    queries, keys, values, output,
    kept_keys, kept_scores, kept_weights, lse, entropy, rest, counted,
    sinks, bias, offset_bias, allowed, key_range, row_range, room,
    query_batch, query_head, query_row, key_batch, key_head, key_row,
    value_batch, value_head, value_row,
    bias_batch, bias_head, bias_row, allowed_batch, allowed_head, allowed_row,
    first_program, block_count, batch_count, head_count, group, query_count, key_count,
    depth, value_depth, scale, softcap, left, right, kept,
    HAS_SINKS: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_OFFSETS: tl.constexpr,
    HAS_ALLOWED: tl.constexpr, HAS_KEY_RANGE: tl.constexpr, HAS_ROW_RANGE: tl.constexpr,
    BANDED: tl.constexpr, CAPPED: tl.constexpr, SCALED: tl.constexpr, KEEPS: tl.constexpr,
    WIDE: tl.constexpr, PTX: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, TILE: tl.constexpr, SEGMENT: tl.constexpr, CUT: tl.constexpr,
    PIECE: tl.constexpr, LEFT: tl.constexpr, FULL: tl.constexpr, CAPACITY: tl.constexpr,
    SORTED_ROWS: tl.constexpr,
    DEPTH: tl.constexpr, VALUE_DEPTH: tl.constexpr, WHOLE_DEPTHS: tl.constexpr,
):  # fmt: skip
    """One block of queries of one head.

    Pointers whose HAS_ is false are not read. Strides are in numbers, the last dimension is
    contiguous; results are contiguous. first_program: of this launch; block_count: of a head.
    group: heads of queries for a head of keys. key_range: (2, batch); row_range: (2, batch,
    queries); offset_bias: (heads, queries + keys - 1). room: see `_cut`, one for each program of a
    launch. SCALED: whether scores are their products until the end, times a scale above 0.
    """
    program = first_program + tl.program_id(0)
    block = block_count - 1 - program % block_count  # the longest first where the mask is causal
    one = (program // block_count).to(tl.int64)
    batch, head = one // head_count, one % head_count
    rows = block * ROWS + tl.arange(0, ROWS)
    real = rows < query_count
    place = one * query_count + rows  # among the rows of all heads
    by_depth, by_value = tl.arange(0, DEPTH), tl.arange(0, VALUE_DEPTH)

    # Which keys each row may see by its ranges; hidden cells come later.
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
    high = tl.where(real, high, 0)
    begin = tl.min(tl.where(real, low, key_count)) // TILE * TILE
    end = tl.max(high)
    # The tiles between these are seen whole by every row.
    solid_begin = (tl.max(tl.where(real, low, 0)) + TILE - 1) // TILE * TILE
    solid_end = tl.min(tl.where(real, high, key_count)) // TILE * TILE
    if HAS_ALLOWED:
        solid_end = tl.minimum(solid_end, 0)

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
    unit = 1.0
    if SCALED:
        unit *= scale
    factor = unit * 1.4426950408889634

    most = tl.full((ROWS,), -float("inf"), tl.float32)  # of the scores so far
    mass = tl.zeros((ROWS,), tl.float32)  # sum of e^(score - most)
    tilted = tl.zeros((ROWS,), tl.float32)  # sum of e^(score - most) (score - most) / log(2)
    total = tl.zeros((ROWS, VALUE_DEPTH), tl.float32)  # sum of e^(score - most) value
    seen = tl.zeros((ROWS,), tl.int32)
    threshold = tl.full((ROWS,), -float("inf"), tl.float32)
    counts = tl.zeros((ROWS,), tl.int32)
    room += tl.program_id(0).to(tl.int64) * (ROWS * (CAPACITY + 2))
    candidates = room + tl.arange(0, ROWS)[:, None] * CAPACITY

    columns = tl.arange(0, TILE)
    triangle = (columns[:, None] <= columns[None, :]).to(tl.float32 if WIDE else tl.bfloat16)

    first, segment, limit = begin, 2, LEFT
    while first < end:
        if KEEPS:  # noqa: SIM102 - known when it is compiled
            if tl.max(counts) > limit:
                counts, threshold = _cut(
                    room, counts, threshold, kept, ROWS, CUT, PIECE, CAPACITY, LEFT
                )
                limit = FULL
        solid = (first >= solid_begin) & (first < solid_end)
        last = end
        if (first < solid_begin) & (solid_begin < solid_end):
            last = tl.minimum(solid_begin, end)
        if solid:
            last = solid_end
        if KEEPS:
            last = tl.minimum(last, first + segment * TILE)
            if segment < SEGMENT:
                segment *= 2
        if solid:
            for at in range(first, last, TILE):
                most, mass, tilted, total, seen, counts = _tile(
                    at, most, mass, tilted, total, seen, counts,
                    threshold, triangle, query, low, high, rows, real, at_keys, at_values,
                    candidates, key_row, value_row, key_count, depth, value_depth, factor, scale,
                    softcap, at_offsets, at_cells, bias_row, at_allowed, allowed_row,
                    False, HAS_BIAS, HAS_OFFSETS, False, CAPPED, SCALED, KEEPS, WIDE, PTX,
                    PRECISION, TILE, DEPTH, VALUE_DEPTH, WHOLE_DEPTHS,
                )  # fmt: skip
        else:
            for at in range(first, last, TILE):
                most, mass, tilted, total, seen, counts = _tile(
                    at, most, mass, tilted, total, seen, counts,
                    threshold, triangle, query, low, high, rows, real, at_keys, at_values,
                    candidates, key_row, value_row, key_count, depth, value_depth, factor, scale,
                    softcap, at_offsets, at_cells, bias_row, at_allowed, allowed_row,
                    True, HAS_BIAS, HAS_OFFSETS, HAS_ALLOWED, CAPPED, SCALED, KEEPS, WIDE, PTX,
                    PRECISION, TILE, DEPTH, VALUE_DEPTH, WHOLE_DEPTHS,
                )  # fmt: skip
        first = last
    if not (HAS_BIAS or HAS_OFFSETS or HAS_ALLOWED):
        seen = tl.maximum(high - low, 0)

    level = tl.where(most == -float("inf"), 0.0, most)
    # From here on, but for the kept edges, scores are in their own units, and powers those of e.
    most, tilted = most * unit, tilted * 0.6931471805599453
    highest, whole = most, mass
    if HAS_SINKS:
        sink = tl.load(sinks + head)
        highest = tl.maximum(most, sink)
    blind = highest == -float("inf")
    top = tl.where(blind, 0.0, highest)
    if HAS_SINKS:
        fall = tl.where(most == -float("inf"), 0.0, most - top)
        shrunk = tl.where(most == -float("inf"), 0.0, tl.exp2(fall * 1.4426950408889634))
        tilted = shrunk * (tilted + mass * fall)
        mass = shrunk * mass
        total = total * shrunk[:, None]
        whole = mass + tl.exp2((sink - top) * 1.4426950408889634)
    share = tl.where(blind, 1.0, whole)
    own_share = share
    if HAS_SINKS:
        own_share = share / shrunk
    of_row = tl.log2(share) * 0.6931471805599453
    tl.store(lse + place, tl.where(blind, -float("inf"), top + of_row), mask=real)
    tl.store(entropy + place, (mass * of_row - tilted) / share, mask=real)
    tl.store(counted + place, seen, mask=real)
    tl.store(
        output + place[:, None] * value_depth + by_value[None, :],
        (total / share[:, None]).to(output.dtype.element_ty),
        mask=real[:, None] & (by_value[None, :] < value_depth),
    )
    if not KEEPS:
        tl.store(rest + place, tl.where(blind, 0.0, 1.0), mask=real)
    else:
        counts, threshold = _cut(room, counts, threshold, kept, ROWS, CUT, PIECE, CAPACITY, LEFT)
        numbers = room + ROWS * CAPACITY + tl.arange(0, ROWS)
        tl.debug_barrier()
        # What some rows at a time need: how many candidates, level and share.
        tl.store(numbers, counts.to(tl.int64))
        both = (level.to(tl.int32, bitcast=True).to(tl.int64) << 32) | (
            own_share.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF
        )
        tl.store(numbers + ROWS, tl.where(blind, -1, both))
        tl.debug_barrier()
        for group_of_rows in range(0, ROWS, SORTED_ROWS):
            some = group_of_rows + tl.arange(0, SORTED_ROWS)
            behind = tl.arange(0, LEFT)
            inside = tl.load(room + ROWS * CAPACITY + some).to(tl.int32)
            of_rows = tl.load(room + ROWS * CAPACITY + ROWS + some)
            its_level = (of_rows >> 32).to(tl.int32).to(tl.float32, bitcast=True)
            its_share = of_rows.to(tl.int32).to(tl.float32, bitcast=True)
            found = tl.load(
                room + some[:, None] * CAPACITY + behind[None, :],
                mask=behind[None, :] < inside[:, None], other=0,
            )  # fmt: skip
            none = tl.full((SORTED_ROWS, LEFT), -(2**63), tl.int64)
            ranks = tl.where(behind[None, :] < inside[:, None], _rank_of(found), none)
            ranks = tl.sort(ranks, dim=1, descending=True)
            edge = behind[None, :] < tl.minimum(inside, kept)[:, None]
            score = tl.where(edge, _score_of(ranks), -float("inf"))
            # Not of lse: where scores are huge, it has lost the digits that weights are made of.
            fall = (score - its_level[:, None]) * factor
            weight = tl.where(edge, tl.exp2(fall) / its_share[:, None], 0.0)
            remaining = tl.maximum(1.0 - tl.sum(weight, 1), 0.0)
            row = block * ROWS + some
            cell = (one * query_count + row)[:, None] * kept + behind[None, :]
            write = (row < query_count)[:, None] & (behind[None, :] < kept)
            key = 0x7FFFFFFF - (ranks & 0x7FFFFFFF).to(tl.int32)
            tl.store(kept_keys + cell, tl.where(edge, key, -1), mask=write)
            tl.store(kept_scores + cell, score * unit, mask=write)
            tl.store(kept_weights + cell, weight, mask=write)
            tl.store(
                rest + one * query_count + row,
                tl.where(of_rows == -1, 0.0, remaining), mask=row < query_count,
            )  # fmt: skip
