"""Shared parts of the GPU kernels: visible keys of a block of rows, scores of a tile, PTX.

This file and those of the kernels need Triton; importing them compiles nothing.
"""

from __future__ import annotations

import triton
import triton.language as tl

#: Scores that a thread tests together: if one exceeds its threshold, all are appended to its list.
TOGETHER = 8
#: Bits of the key in a list entry; the row is in the bits above.
KEY_BITS = 25
#: More than the length of any list.
LOST = 2**30


def _ptx_of_append() -> str:
    """Return PTX that appends scores to the thread's list if one of them exceeds its threshold.

    The operands are unused results, scores, thresholds, keys, and row bits to add to the keys. A
    negative difference has its highest bit set.
    """
    scores, thresholds, keys, rows = (
        [f"${TOGETHER * part + n}" for n in range(TOGETHER)] for part in range(1, 5)
    )
    lines = ["{ .reg .pred any, full; .reg .b64 at;"]
    lines += [f".reg .b32 d{n}, n{n};" for n in range(TOGETHER)]
    for n, (score, threshold) in enumerate(zip(scores, thresholds, strict=True)):
        lines.append(f"sub.f32 d{n}, {threshold}, {score};")
    lines += [f"or.b32 d{n}, d{n}, d{n + 4};" for n in range(TOGETHER - 4)]
    lines += ["or.b32 d0, d0, d1; or.b32 d2, d2, d3; or.b32 d0, d0, d2;"]
    lines += ["setp.ge.s32 any, d0, 0; @any bra done;"]
    lines += ["setp.ge.u32 full, headloom_used, headloom_room; @full bra lost;"]
    lines += [f"mad.wide.u32 at, headloom_used, {8 * TOGETHER}, headloom_list;"]
    pairs = zip(keys, rows, strict=True)
    lines += [f"add.u32 n{n}, {key}, {row};" for n, (key, row) in enumerate(pairs)]
    for n in range(0, TOGETHER, 4):
        four = ", ".join(scores[n : n + 4])
        named = ", ".join(f"n{m}" for m in range(n, n + 4))
        lines.append(f"st.global.v4.b32 [at+{4 * n}], {{{four}}};")
        lines.append(f"st.global.v4.b32 [at+{4 * (TOGETHER + n)}], {{{named}}};")
    lines += [
        f"add.u32 headloom_used, headloom_used, 1; bra done; lost: mov.u32 headloom_used, {LOST};"
    ]
    lines += ["done:", *(f"mov.b32 ${n}, 0;" for n in range(TOGETHER)), "}"]
    return "\n".join(lines)


#: PTX registers that live as long as the kernel: start of the thread's list, its length, and the
#: largest length.
NEW_LIST = tl.constexpr(
    """.reg .b64 headloom_list; .reg .b32 headloom_used, headloom_room;
    { .reg .b32 t; mov.u32 t, %tid.x; mul.lo.u32 t, t, $2; mov.u32 headloom_room, $2; """
    f"mad.wide.u32 headloom_list, t, {8 * TOGETHER}, $1; mov.u32 headloom_used, 0; mov.b32 $0, "
    f"0; }}"
)
APPEND = tl.constexpr(_ptx_of_append())
APPEND_REGISTERS = tl.constexpr(",".join(["=r"] * TOGETHER + ["r"] * 4 * TOGETHER))
#: Write the length of the thread's list (LOST if it was full), and clear it.
USED = tl.constexpr(
    """{ .reg .b32 t; .reg .b64 at; mov.u32 t, %tid.x; mad.wide.u32 at, t, 4, $1;
    st.global.b32 [at], headloom_used; mov.u32 headloom_used, 0; mov.b32 $0, 0; }"""
)
MET = tl.constexpr(TOGETHER)
#: Groups of a list that are read together.
AT_ONCE = tl.constexpr(2)
ROW_AT = tl.constexpr(KEY_BITS)

# Small functions of the kernels are inlined, since the interpreter calls functions slowly.


@triton.jit
def order_of(scores):  # type: ignore[no-untyped-def]
    """Map float32 scores to integers of the same order; -0 is below 0."""
    bits = scores.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def of_order(ordered):  # type: ignore[no-untyped-def]
    """Invert `order_of`."""
    return (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit  # type: ignore[untyped-decorator]
def ranges_of(  # type: ignore[no-untyped-def]
    block, batch, query_count, key_count, batch_count, left, right, key_range, row_range,
    BANDED: tl.constexpr, HAS_ALLOWED: tl.constexpr, HAS_KEY_RANGE: tl.constexpr,
    HAS_ROW_RANGE: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Return the key ranges of the rows of a block; a mask by cells is applied later.

    Returns: for each row its first key, the end of its keys, and whether the row exists; the first
    key of the block, rounded to tiles, and its number of tiles; start and end of the tiles that all
    rows see completely.
    """
    rows = block * ROWS + tl.arange(0, ROWS)
    real = rows < query_count
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
    """Return the scores of a tile of keys: scaled, capped, with biases, -inf where masked."""
    column = first + tl.arange(0, TILE)
    by_depth = tl.arange(0, DEPTH)
    of_key = at_keys + column[None, :].to(tl.int64) * key_row + by_depth[:, None]
    if MASKED or not WHOLE_DEPTHS:
        valid = column < key_count
        key = tl.load(of_key, mask=valid[None, :] & (by_depth[:, None] < depth), other=0.0)
    else:
        key = tl.load(of_key)
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
