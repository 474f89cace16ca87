"""The forward kernel for GPUs, in Triton: output and exact graph in one pass, memory linear.

A program has a block of queries of one head. Keys stream past in tiles; a tile's scores are one
product, then the softmax goes on as in FlashAttention (Dao et al. 2022), with a running sum of
weight times score for the entropy.

**Edges.** Each row has a threshold, below which no score can be among its k strongest any more, and
room for CAPACITY candidates in memory, which the second cache holds. A tile's scores above the
threshold are appended, their places a running count along the row. Where a row could overflow, all
rows of the block are cut: sorted, the k strongest kept, the threshold raised to the last of these.
A candidate is one whole number, the score's bits in an order of whole numbers above and the key
below, so that sorting breaks ties by the lower key.

This file alone needs Triton; importing it compiles nothing.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["attend_kernel"]


# Small functions of the kernel are written where they are used: the interpreter takes a while to
# enter one.


@triton.jit
def _score_of(packed):  # type: ignore[no-untyped-def]
    ordered = (packed >> 32).to(tl.int32)
    return (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit  # type: ignore[untyped-decorator]
def _cut(room, counts, kept, ROWS: tl.constexpr, CUT: tl.constexpr, CAPACITY: tl.constexpr):  # type: ignore[no-untyped-def]
    """Sort the candidates of a block, the strongest first; those behind the first are as they were.

    room: of the block, (ROWS, CAPACITY); then ROWS thresholds of 8 bytes. counts: (ROWS,).
    Returns: the threshold of each row: its k-th score where it has as many, else minus infinity.
    """
    rows = tl.arange(0, ROWS)
    behind = tl.arange(0, CAPACITY)
    counted = room + ROWS * CAPACITY
    tl.store(counted + rows, counts.to(tl.int64))
    tl.debug_barrier()  # what other threads wrote is read
    for first in range(0, ROWS, CUT):
        some = first + tl.arange(0, CUT)
        inside = tl.load(counted + some).to(tl.int32)
        at = room + some[:, None] * CAPACITY + behind[None, :]
        none = tl.full((CUT, CAPACITY), -(2**63), tl.int64)
        found = tl.where(behind[None, :] < inside[:, None], tl.load(at), none)
        tl.store(at, tl.sort(found, dim=1, descending=True))
    tl.debug_barrier()
    last = tl.load(room + rows * CAPACITY + tl.maximum(kept, 1) - 1)
    return tl.where(counts >= kept, _score_of(last), -float("inf"))


@triton.jit  # type: ignore[untyped-decorator]
def attend_kernel(  # type: ignore[no-untyped-def]
    queries, keys, values, output,
    kept_keys, kept_scores, kept_weights, lse, entropy, rest, counted,
    sinks, bias, offset_bias, allowed, key_range, row_range, room,
    query_batch, query_head, query_row, key_batch, key_head, key_row,
    value_batch, value_head, value_row,
    bias_batch, bias_head, bias_row, allowed_batch, allowed_head, allowed_row,
    batch_count, head_count, group, query_count, key_count, depth, value_depth,
    scale, softcap, left, right, kept,
    HAS_SINKS: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_OFFSETS: tl.constexpr,
    HAS_ALLOWED: tl.constexpr, HAS_KEY_RANGE: tl.constexpr, HAS_ROW_RANGE: tl.constexpr,
    BANDED: tl.constexpr, CAPPED: tl.constexpr, KEEPS: tl.constexpr,
    WIDE: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, TILE: tl.constexpr, CUT: tl.constexpr, CAPACITY: tl.constexpr,
    DEPTH: tl.constexpr, VALUE_DEPTH: tl.constexpr,
):  # fmt: skip
    """One block of queries of one head.

    Pointers whose HAS_ is false are not read. Strides are in numbers, the last dimension is
    contiguous; results are contiguous. group: heads of queries for a head of keys. key_range: (2,
    batch); row_range: (2, batch, queries); offset_bias: (heads, queries + keys - 1). room: see
    `_cut`, one for each program.
    """
    block, one = tl.program_id(0), tl.program_id(1).to(tl.int64)
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
        ends = ranges + batch_count.to(tl.int64) * query_count
        high = tl.minimum(high, tl.load(ends, mask=real, other=0))
    high = tl.where(real, high, 0)
    begin = tl.min(tl.where(real, low, key_count)) // TILE * TILE
    end = tl.max(high)

    at_queries = queries + batch * query_batch + head * query_head
    query = tl.load(
        at_queries + rows[:, None].to(tl.int64) * query_row + by_depth[None, :],
        mask=real[:, None] & (by_depth[None, :] < depth), other=0.0,
    )  # fmt: skip
    if WIDE:
        query = query.to(tl.float32)
    at_keys = keys + batch * key_batch + head // group * key_head
    at_values = values + batch * value_batch + head // group * value_head

    most = tl.full((ROWS,), -float("inf"), tl.float32)  # of the scores so far
    mass = tl.zeros((ROWS,), tl.float32)  # sum of e^(score - most)
    tilted = tl.zeros((ROWS,), tl.float32)  # sum of e^(score - most) (score - most)
    total = tl.zeros((ROWS, VALUE_DEPTH), tl.float32)  # sum of e^(score - most) value
    seen = tl.zeros((ROWS,), tl.int32)
    threshold = tl.full((ROWS,), -float("inf"), tl.float32)
    counts = tl.zeros((ROWS,), tl.int32)
    program = one * tl.num_programs(0) + block
    room += program * (ROWS * (CAPACITY + 1))
    candidates = room + tl.arange(0, ROWS)[:, None] * CAPACITY

    for first in range(begin, end, TILE):
        column = first + tl.arange(0, TILE)
        there = column < key_count
        key = tl.load(
            at_keys + column[None, :].to(tl.int64) * key_row + by_depth[:, None],
            mask=there[None, :] & (by_depth[:, None] < depth), other=0.0,
        )  # fmt: skip
        if WIDE:  # the interpreter multiplies no bfloat16
            key = key.to(tl.float32)
        scores = tl.dot(query, key, input_precision=PRECISION) * scale
        if CAPPED:
            # tanh(x) = 1 - 2 / (e^2x + 1)
            scores = softcap * (1 - 2 / (tl.exp(2 * scores / softcap) + 1))
        visible = (column[None, :] >= low[:, None]) & (column[None, :] < high[:, None])
        if HAS_OFFSETS:
            offsets = head * (query_count + key_count - 1) + query_count - 1
            distance = column[None, :] - rows[:, None]
            scores += tl.load(offset_bias + offsets + distance, mask=visible, other=0.0)
        if HAS_BIAS:
            cells = bias + batch * bias_batch + head * bias_head
            cell = cells + rows[:, None].to(tl.int64) * bias_row + column[None, :]
            scores += tl.load(cell, mask=visible, other=0.0)
        if HAS_ALLOWED:
            cells = allowed + batch * allowed_batch + head * allowed_head
            cell = cells + rows[:, None].to(tl.int64) * allowed_row + column[None, :]
            visible = visible & (tl.load(cell, mask=visible, other=0) != 0)
        scores = tl.where(visible, scores, -float("inf"))
        seen += tl.sum((scores != -float("inf")).to(tl.int32), 1)

        higher = tl.maximum(most, tl.max(scores, 1))
        # A row that has seen no key yet has no level: 0 serves, its exponentials are 0.
        level = tl.where(higher == -float("inf"), 0.0, higher)
        fall = tl.where(most == -float("inf"), 0.0, most - level)
        shrunk = tl.where(most == -float("inf"), 0.0, tl.exp2(fall * 1.4426950408889634))
        # Where a key is hidden, 0 instead of minus infinity: 0 times that is no number.
        below = tl.where(scores == -float("inf"), 0.0, scores - level[:, None])
        weights = tl.where(scores == -float("inf"), 0.0, tl.exp2(below * 1.4426950408889634))
        sum_of_tile = tl.sum(weights, 1)
        tilt_of_tile = tl.sum(weights * below, 1)
        tilted = shrunk * (tilted + mass * fall) + tilt_of_tile
        mass = shrunk * mass + sum_of_tile
        value = tl.load(
            at_values + column[:, None].to(tl.int64) * value_row + by_value[None, :],
            mask=there[:, None] & (by_value[None, :] < value_depth), other=0.0,
        )  # fmt: skip
        rounded = weights.to(value.dtype)
        if WIDE:
            rounded, value = rounded.to(tl.float32), value.to(tl.float32)
        product = tl.dot(rounded, value, input_precision=PRECISION)
        total = total * shrunk[:, None] + product
        most = higher

        if KEEPS:
            above = scores > threshold[:, None]
            many = tl.sum(above.to(tl.int32), 1)
            if tl.max(counts + many) > CAPACITY:
                threshold = _cut(room, counts, kept, ROWS, CUT, CAPACITY)
                counts = tl.minimum(counts, kept)
                above = scores > threshold[:, None]
                many = tl.sum(above.to(tl.int32), 1)
            if tl.max(many) > 0:
                behind = counts[:, None] + tl.cumsum(above.to(tl.int32), 1) - 1
                # The stronger edge is the larger number, of equals that with the lower key.
                bits = (scores + 0.0).to(tl.int32, bitcast=True)  # -0 becomes 0, its equal
                ordered = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64)
                packed = (ordered << 32) | (0x7FFFFFFF - column).to(tl.int64)[None, :]
                tl.store(candidates + behind, packed, mask=above)
                counts += many

    highest, whole = most, mass
    if HAS_SINKS:
        sink = tl.load(sinks + head)
        highest = tl.maximum(most, sink)
    blind = highest == -float("inf")
    level = tl.where(blind, 0.0, highest)
    if HAS_SINKS:
        fall = tl.where(most == -float("inf"), 0.0, most - level)
        shrunk = tl.where(most == -float("inf"), 0.0, tl.exp2(fall * 1.4426950408889634))
        tilted = shrunk * (tilted + mass * fall)
        mass = shrunk * mass
        total = total * shrunk[:, None]
        whole = mass + tl.exp2((sink - level) * 1.4426950408889634)
    share = tl.where(blind, 1.0, whole)
    of_row = tl.log2(share) * 0.6931471805599453
    tl.store(lse + place, tl.where(blind, -float("inf"), level + of_row), mask=real)
    tl.store(entropy + place, (mass * of_row - tilted) / share, mask=real)
    tl.store(counted + place, seen, mask=real)
    tl.store(
        output + place[:, None] * value_depth + by_value[None, :],
        (total / share[:, None]).to(output.dtype.element_ty),
        mask=real[:, None] & (by_value[None, :] < value_depth),
    )
    remaining = tl.where(blind, 0.0, 1.0)
    if KEEPS:
        _cut(room, counts, kept, ROWS, CUT, CAPACITY)
        counts = tl.minimum(counts, kept)
        behind = tl.arange(0, CAPACITY)
        edge = behind[None, :] < counts[:, None]
        found = tl.load(candidates + behind[None, :], mask=edge, other=0)
        score = tl.where(edge, _score_of(found), -float("inf"))
        # Not of lse: where scores are huge, it has lost the digits that weights are made of.
        weight = tl.where(edge, tl.exp2((score - level[:, None]) * 1.4426950408889634), 0.0)
        weight = weight / share[:, None]
        remaining = tl.maximum(remaining - tl.sum(weight, 1), 0.0)
        cell = place[:, None] * kept + behind[None, :]
        write = real[:, None] & (behind[None, :] < kept)
        tl.store(
            kept_keys + cell,
            tl.where(edge, 0x7FFFFFFF - (found & 0x7FFFFFFF).to(tl.int32), -1),
            mask=write,
        )
        tl.store(kept_scores + cell, score, mask=write)
        tl.store(kept_weights + cell, weight, mask=write)
    tl.store(rest + place, remaining, mask=real)
