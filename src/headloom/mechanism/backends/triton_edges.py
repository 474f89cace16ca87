"""Second GPU kernel, in Triton: the k strongest edges of each row.

The scores of the marked tiles, which have a score above the threshold of its row
(triton_softmax.py), are computed again, and those above the threshold are collected; the k
strongest of these few candidates are sorted. A candidate is one integer of score and key; of equal
scores the lower key comes first.

On NVIDIA devices each thread collects its own list (PTX), without synchronisation. If that is not
possible, or a list is full because many strong keys are close together, candidates are numbered
along their row and cut between segments of tiles: bisection finds a higher threshold that leaves at
least k and at most LEFT candidates of a row.
"""

from __future__ import annotations

import triton
import triton.language as tl

from headloom.mechanism.backends.triton_scores import (
    APPEND,
    APPEND_REGISTERS,
    AT_ONCE,
    MET,
    NEW_LIST,
    ROW_AT,
    USED,
    of_order,
    ranges_of,
    scores_of,
)


@triton.jit
def _rank_of(candidates):  # type: ignore[no-untyped-def]
    """Map candidates to integers that are larger for stronger edges.

    candidates: the bits of the score in the upper half, the key in the lower half.
    """
    bits = (candidates >> 32).to(tl.int32)
    bits = tl.where(bits == -(2**31), 0, bits)  # -0 is equal to 0
    ordered = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64)
    return (ordered << 32) | (0x7FFFFFFF - candidates.to(tl.int32)).to(tl.int64)


@triton.jit
def _key_of(ranks):  # type: ignore[no-untyped-def]
    return 0x7FFFFFFF - (ranks & 0x7FFFFFFF).to(tl.int32)


@triton.jit  # type: ignore[untyped-decorator]
def _cut(  # type: ignore[no-untyped-def]
    room, counts, threshold, kept,
    ROWS: tl.constexpr, CUT: tl.constexpr, WIDTH: tl.constexpr, CAPACITY: tl.constexpr,
    LEFT: tl.constexpr,
):  # fmt: skip
    """Keep the strongest candidates of each row, at least k and at most LEFT.

    room: of the block, (ROWS, CAPACITY); then two numbers for each row. Rows with LEFT candidates
    or fewer are not changed.
    Returns: the number of candidates of each row, and its new threshold.
    """
    rows = tl.arange(0, ROWS)
    counted, raised = room + ROWS * CAPACITY, room + ROWS * CAPACITY + ROWS
    tl.store(counted + rows, counts.to(tl.int64))
    tl.store(raised + rows, threshold.to(tl.int32, bitcast=True).to(tl.int64))
    tl.debug_barrier()  # the writes of other threads are read next
    for first in range(0, ROWS, CUT):
        part_rows = first + tl.arange(0, CUT)
        inside = tl.load(counted + part_rows).to(tl.int32)
        if tl.max(inside) > LEFT:
            behind = tl.arange(0, WIDTH)
            valid = behind[None, :] < inside[:, None]
            ranks = _rank_of(
                tl.load(room + part_rows[:, None] * CAPACITY + behind[None, :], mask=valid, other=0)
            )
            lowest = tl.min(tl.where(valid, ranks, 2**63 - 1), 1)
            ranks = tl.where(valid, ranks, -(2**63))
            highest = tl.max(ranks, 1)
            # At least k candidates reach `lowest`, fewer than k exceed `highest`.
            left = inside
            while tl.max(left) > LEFT:
                # The mean, rounded up, without overflow.
                middle = (lowest >> 1) + (highest >> 1) + ((lowest | highest) & 1)
                reached = tl.sum((ranks >= middle[:, None]).to(tl.int32), 1)
                enough = (reached >= kept) & (left > LEFT)
                highest = tl.where(enough, highest, tl.maximum(middle - 1, lowest))
                lowest = tl.where(enough, middle, lowest)
                left = tl.where(enough, reached, left)
            cut = inside > LEFT
            stays = valid & ((ranks >= lowest[:, None]) | (cut == 0)[:, None])
            many = stays.to(tl.int32)
            to = tl.cumsum(many, 1) - 1
            score = of_order((ranks >> 32).to(tl.int32)).to(tl.int32, bitcast=True)
            packed = (score.to(tl.int64) << 32) | _key_of(ranks).to(tl.int64)
            tl.debug_barrier()  # all are read before they are overwritten
            tl.store(room + part_rows[:, None] * CAPACITY + to, packed, mask=stays)
            tl.store(counted + part_rows, tl.sum(many, 1).to(tl.int64))
            # k candidates reach it, with lower keys than later ones.
            higher = tl.load(raised + part_rows).to(tl.int32).to(tl.float32, bitcast=True)
            reached_by_k = of_order((lowest >> 32).to(tl.int32))
            higher = tl.where(cut, tl.maximum(higher, reached_by_k), higher)
            tl.store(raised + part_rows, higher.to(tl.int32, bitcast=True).to(tl.int64))
    tl.debug_barrier()
    counts = tl.load(counted + rows).to(tl.int32)
    return counts, tl.load(raised + rows).to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit  # type: ignore[untyped-decorator]
def _list_tiles(again, tiles, listed, SPAN: tl.constexpr):  # type: ignore[no-untyped-def]
    """List the marked tiles in order. Returns: their number."""
    needed = 0
    for first in range(0, tiles, SPAN):
        tile = first + tl.arange(0, SPAN)
        word = tl.load(again + (tile >> 5), mask=tile < tiles, other=0)
        marked = (word >> (tile & 31)) & 1
        tl.store(listed + needed + tl.cumsum(marked, 0) - 1, tile, mask=marked != 0)
        needed += tl.sum(marked)
    tl.debug_barrier()  # the writes of other threads are read next
    return needed


@triton.jit  # type: ignore[untyped-decorator]
def _append(scores, threshold, first, TILE: tl.constexpr, ROWS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Append scores above their row's threshold to the lists of their threads."""
    row = first + (tl.arange(0, ROWS) << ROW_AT)
    tl.inline_asm_elementwise(
        APPEND, APPEND_REGISTERS,
        [
            scores, tl.broadcast_to(threshold[:, None], scores.shape),
            tl.broadcast_to(tl.arange(0, TILE)[None, :], scores.shape),
            tl.broadcast_to(row[:, None], scores.shape),
        ],
        dtype=tl.int32, is_pure=False, pack=MET,
    )  # fmt: skip


@triton.jit  # type: ignore[untyped-decorator]
def _rows_of_lists(  # type: ignore[no-untyped-def]
    room, numbers, lists, used, threshold,
    ROWS: tl.constexpr, CAPACITY: tl.constexpr, LISTS: tl.constexpr, LIST: tl.constexpr,
):  # fmt: skip
    """Move candidates from the lists of threads to those of rows; clear the lists of threads.

    Returns: the number of candidates of each row (at most CAPACITY of them are stored), and the
    length of the longest list of a thread.
    """
    tl.inline_asm_elementwise(
        USED, "=r,l", [tl.zeros((LISTS,), tl.int64) + used.to(tl.int64)],
        dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip
    rows = tl.arange(0, ROWS)
    tl.store(numbers + rows, tl.zeros((ROWS,), tl.int64))
    tl.store(numbers + ROWS + rows, threshold.to(tl.int32, bitcast=True).to(tl.int64))
    tl.debug_barrier()  # the writes of other threads are read next
    lengths = tl.load(used + tl.arange(0, LISTS))
    longest = tl.max(lengths)
    # Several groups of a list at a time, since memory latency dominates.
    column = tl.arange(0, AT_ONCE * MET)[None, :]
    group = column // MET
    at = lists.to(tl.pointer_type(tl.int32)) + group * (2 * MET) + column % MET
    at += 2 * MET * LIST * tl.arange(0, LISTS)[:, None]
    ones = tl.full((LISTS, AT_ONCE * MET), 1, tl.int64)
    for piece in range(0, tl.minimum(longest, LIST), AT_ONCE):
        valid = piece + group < tl.minimum(lengths, LIST)[:, None]
        score = tl.load(at + 2 * MET * piece, mask=valid, other=0)
        named = tl.load(at + 2 * MET * piece + MET, mask=valid, other=0)
        row = (named.to(tl.uint32, bitcast=True) >> ROW_AT).to(tl.int32)
        key = (named & ((1 << ROW_AT) - 1)).to(tl.int64)
        bar = tl.load(numbers + ROWS + row).to(tl.int32).to(tl.float32, bitcast=True)
        valid = valid & (score.to(tl.float32, bitcast=True) > bar)
        to = tl.atomic_add(numbers + row, ones, mask=valid, sem="relaxed")
        candidate = (score.to(tl.int64) << 32) | key
        tl.store(room + row * CAPACITY + to, candidate, mask=valid & (to < CAPACITY))
    tl.debug_barrier()
    return tl.load(numbers + rows, cache_modifier=".cg").to(tl.int32), longest


@triton.jit  # type: ignore[untyped-decorator]
def _sort(  # type: ignore[no-untyped-def]
    room, counts, kept_keys, kept_scores, kept_weights, rest, levels, shares,
    first_row, block, query_count, kept, factor, unit,
    ROWS: tl.constexpr, CAPACITY: tl.constexpr, LEFT: tl.constexpr, SORTED_ROWS: tl.constexpr,
):  # fmt: skip
    """Write the k strongest candidates of each row; a row has at most LEFT."""
    numbers = room + ROWS * CAPACITY
    tl.store(numbers + tl.arange(0, ROWS), counts.to(tl.int64))
    tl.debug_barrier()
    for group_of_rows in range(0, ROWS, SORTED_ROWS):
        part_rows = group_of_rows + tl.arange(0, SORTED_ROWS)
        behind = tl.arange(0, LEFT)
        inside = tl.load(numbers + part_rows).to(tl.int32)
        row = block * ROWS + part_rows
        place = first_row + row
        level = tl.load(levels + place, mask=row < query_count, other=0.0)
        share = tl.load(shares + place, mask=row < query_count, other=1.0)
        candidates = tl.load(
            room + part_rows[:, None] * CAPACITY + behind[None, :],
            mask=behind[None, :] < inside[:, None], other=0,
        )  # fmt: skip
        lowest = tl.full((SORTED_ROWS, LEFT), -(2**63), tl.int64)
        ranks = tl.where(behind[None, :] < inside[:, None], _rank_of(candidates), lowest)
        ranks = tl.sort(ranks, dim=1, descending=True)
        edge = behind[None, :] < tl.minimum(inside, kept)[:, None]
        score = tl.where(edge, of_order((ranks >> 32).to(tl.int32)), -float("inf"))
        # Not from lse, which has too few digits for weights if scores are huge.
        fall = (score - level[:, None]) * factor
        weight = tl.where(edge, tl.exp2(fall) / share[:, None], 0.0)
        remaining = tl.maximum(1.0 - tl.sum(weight, 1), 0.0)
        cell = place[:, None] * kept + behind[None, :]
        write = (row < query_count)[:, None] & (behind[None, :] < kept)
        tl.store(kept_keys + cell, tl.where(edge, _key_of(ranks), -1), mask=write)
        tl.store(kept_scores + cell, score * unit, mask=write)
        tl.store(kept_weights + cell, weight, mask=write)
        remaining = tl.where(share < 0, 0.0, remaining)
        tl.store(rest + place, remaining, mask=row < query_count)


@triton.jit  # type: ignore[untyped-decorator]
def edges_kernel(  # type: ignore[no-untyped-def]
    queries, keys, kept_keys, kept_scores, kept_weights, rest,
    bias, offset_bias, allowed, key_range, row_range,
    thresholds, levels, shares, again, taken, room,
    query_batch, query_head, query_row, key_batch, key_head, key_row,
    bias_batch, bias_head, bias_row, allowed_batch, allowed_head, allowed_row,
    room_of_program, words, block_count, batch_count, head_count, group, query_count, key_count,
    depth, scale, softcap, left, right, kept,
    HAS_BIAS: tl.constexpr, HAS_OFFSET_BIAS: tl.constexpr,
    HAS_ALLOWED: tl.constexpr, HAS_KEY_RANGE: tl.constexpr, HAS_ROW_RANGE: tl.constexpr,
    BANDED: tl.constexpr, CAPPED: tl.constexpr, SCALED: tl.constexpr,
    WIDE: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, TILE: tl.constexpr, STAGES: tl.constexpr,
    LISTS: tl.constexpr, LIST: tl.constexpr, SEGMENT: tl.constexpr, CUT: tl.constexpr,
    WIDTH: tl.constexpr, LEFT: tl.constexpr, FULL: tl.constexpr, CAPACITY: tl.constexpr,
    SORTED_ROWS: tl.constexpr, DEPTH: tl.constexpr, WHOLE_DEPTHS: tl.constexpr,
):  # fmt: skip
    """Write the k strongest edges of each row, and the mass outside them.

    Arguments are those of `softmax_kernel`. room: of each program, room_of_program numbers:
    candidates (ROWS, CAPACITY) with two numbers for each row; LISTS lists of threads (or none) of
    LIST groups of scores, each with key and row; the length of each list; the marked tiles.
    """
    by_depth, own_rows = tl.arange(0, DEPTH), tl.arange(0, ROWS)
    unit = 1.0
    if SCALED:
        unit *= scale
    factor = unit * 1.4426950408889634
    room += tl.program_id(0).to(tl.int64) * room_of_program
    numbers = room + ROWS * CAPACITY
    lists = numbers + 2 * ROWS
    used = (lists + LISTS * LIST * MET).to(tl.pointer_type(tl.int32))
    listed = used + LISTS
    if LISTS > 0:
        tl.inline_asm_elementwise(
            NEW_LIST, "=r,l,r",
            [
                tl.zeros((LISTS,), tl.int64) + lists.to(tl.int64),
                tl.full((LISTS,), LIST, tl.int32),
            ],
            dtype=tl.int32, is_pure=False, pack=1,
        )  # fmt: skip

    programs = block_count * batch_count * head_count
    program = tl.atomic_add(taken, 1)
    while program < programs:
        block = block_count - 1 - program % block_count  # the longest first where it is causal
        head_index = (program // block_count).to(tl.int64)
        batch, head = head_index // head_count, head_index % head_count
        rows = block * ROWS + own_rows
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
        at_cells = bias + batch * bias_batch + head * bias_head
        at_allowed = allowed + batch * allowed_batch + head * allowed_head
        at_offsets = offset_bias + head * (query_count + key_count - 1) + query_count - 1
        threshold = tl.load(
            thresholds + head_index * query_count + rows, mask=real, other=float("inf")
        )
        needed = _list_tiles(again + (head_index * block_count + block) * words, tiles, listed, 128)
        counts = tl.zeros((ROWS,), tl.int32)
        careful = True
        # Without a threshold every score is appended; with many tiles the lists would overflow.
        reaching = tl.max(tl.where(real, threshold, -float("inf")))
        if LISTS > 0:
            careful = (reaching == -float("inf")) & (tiles * (ROWS * TILE) > 8 * LISTS * LIST)
            if careful == 0:
                if 2 * needed > tiles:
                    # Most tiles are marked: read all in order, without the latency of their list.
                    for number in tl.range(solid_begin, solid_end, num_stages=STAGES):
                        first = begin + number * TILE
                        scores = scores_of(
                            first, query, low, high, rows, real, at_keys, key_row, key_count, depth,
                            scale, softcap, at_offsets, at_cells, bias_row, at_allowed, allowed_row,
                            False, HAS_BIAS, HAS_OFFSET_BIAS, False, CAPPED, SCALED, WIDE,
                            PRECISION, TILE, DEPTH, WHOLE_DEPTHS,
                        )  # fmt: skip
                        _append(scores, threshold, first, TILE, ROWS)
                    for index in tl.range(0, tiles - (solid_end - solid_begin), num_stages=STAGES):
                        number = index + tl.where(index < solid_begin, 0, solid_end - solid_begin)
                        first = begin + number * TILE
                        scores = scores_of(
                            first, query, low, high, rows, real, at_keys, key_row, key_count, depth,
                            scale, softcap, at_offsets, at_cells, bias_row, at_allowed, allowed_row,
                            True, HAS_BIAS, HAS_OFFSET_BIAS, HAS_ALLOWED, CAPPED, SCALED, WIDE,
                            PRECISION, TILE, DEPTH, WHOLE_DEPTHS,
                        )  # fmt: skip
                        _append(scores, threshold, first, TILE, ROWS)
                else:
                    following = begin + tl.load(listed) * TILE
                    for index in tl.range(0, needed, num_stages=STAGES):
                        first = following
                        more = tl.load(listed + index + 1, mask=index + 1 < needed, other=0)
                        following = begin + more * TILE
                        scores = scores_of(
                            first, query, low, high, rows, real, at_keys, key_row, key_count, depth,
                            scale, softcap, at_offsets, at_cells, bias_row, at_allowed, allowed_row,
                            True, HAS_BIAS, HAS_OFFSET_BIAS, HAS_ALLOWED, CAPPED, SCALED, WIDE,
                            PRECISION, TILE, DEPTH, WHOLE_DEPTHS,
                        )  # fmt: skip
                        _append(scores, threshold, first, TILE, ROWS)
                counts, longest = _rows_of_lists(
                    room, numbers, lists, used, threshold, ROWS, CAPACITY, LISTS, LIST
                )
                careful = (longest > LIST) | (tl.max(counts) > CAPACITY)
        if careful:
            columns = tl.arange(0, TILE)
            triangle = (columns[:, None] <= columns[None, :]).to(
                tl.float32 if WIDE else tl.bfloat16
            )
            candidates = room + own_rows[:, None] * CAPACITY
            counts = tl.zeros((ROWS,), tl.int32)
            for segment in range(0, needed, SEGMENT):
                last = tl.minimum(segment + SEGMENT, needed)
                for index in tl.range(segment, last, num_stages=STAGES):
                    first = begin + tl.load(listed + index) * TILE
                    scores = scores_of(
                        first, query, low, high, rows, real, at_keys, key_row, key_count,
                        depth, scale, softcap, at_offsets, at_cells, bias_row, at_allowed,
                        allowed_row,
                        True, HAS_BIAS, HAS_OFFSET_BIAS, HAS_ALLOWED, CAPPED, SCALED, WIDE,
                        PRECISION, TILE, DEPTH, WHOLE_DEPTHS,
                    )  # fmt: skip
                    above = scores > threshold[:, None]
                    # Count them up to each column by a product, whose layout is that of scores.
                    up_to = tl.dot(tl.where(above, 1.0, 0.0).to(triangle.dtype), triangle)
                    places = up_to.to(tl.int32) + (counts - 1)[:, None]
                    packed = (scores.to(tl.int32, bitcast=True).to(tl.int64) << 32) | (
                        first + columns
                    ).to(tl.int64)[None, :]
                    tl.store(candidates + places, packed, mask=above)
                    counts += tl.max(up_to, 1).to(tl.int32)
                if tl.max(counts) > FULL:
                    counts, threshold = _cut(
                        room, counts, threshold, kept, ROWS, CUT, WIDTH, CAPACITY, LEFT
                    )
        counts, threshold = _cut(room, counts, threshold, kept, ROWS, CUT, WIDTH, CAPACITY, LEFT)
        _sort(
            room, counts, kept_keys, kept_scores, kept_weights, rest, levels, shares,
            head_index * query_count, block, query_count, kept, factor, unit,
            ROWS, CAPACITY, LEFT, SORTED_ROWS,
        )  # fmt: skip
        tl.debug_barrier()  # the room is overwritten next
        program = tl.atomic_add(taken, 1)
