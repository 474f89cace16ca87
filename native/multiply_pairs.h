// Products of factors packed as pairs (pairs.h): on the matrix unit, or by dot products of vectors.
#pragma once

#include "pairs.h"

#if defined(HEADLOOM_HAS_PAIRS)

namespace headloom {
namespace HEADLOOM_INSTRUCTION_SET {

// Where the tiles of a factor lie: a block is 16 rows of a left factor, or 16 columns of a right.
struct Tiles {
    const int32_t* cells;
    int64_t chunk, block;  // cells from one chunk, one block, to the next
    int64_t row;           // cells from one row of a tile to the next
};

// Times that a product's chunk of terms calls what is done beside it.
template <int splits>
constexpr int64_t calls_beside = splits == 3 ? 6 : 1;

// What a product does beside: here nothing.
struct Nothing {
    void operator()() const {}
};
constexpr Nothing nothing{};

#if defined(__AMX_BF16__)

// The instructions by number of register; "memory" keeps the compiler from moving the stores that
// fill a tile past its load.
#define HEADLOOM_TILE_LOAD(tile, from, stride) \
    asm volatile("tileloadd (%0,%1,1), %%tmm" #tile::"r"(from), "r"((int64_t)(stride)) : "memory")
#define HEADLOOM_TILE_STORE(tile, to, stride)                                             \
    asm volatile("tilestored %%tmm" #tile ", (%0,%1,1)" ::"r"(to), "r"((int64_t)(stride)) \
                 : "memory")
#define HEADLOOM_TILE_ZERO(tile) asm volatile("tilezero %%tmm" #tile::)
#define HEADLOOM_TILE_MULTIPLY(sum, left, right) \
    asm volatile("tdpbf16ps %%tmm" #right ", %%tmm" #left ", %%tmm" #sum::)

// A matrix unit that has had nothing to do for half a microsecond goes to sleep, and takes a
// quarter of one to wake (on a Xeon with AMX). A product of nothing now
// and then, while vectors are computed, keeps it awake.
inline void keep_awake() {
    HEADLOOM_TILE_ZERO(0);
    HEADLOOM_TILE_ZERO(4);
    HEADLOOM_TILE_ZERO(6);
    HEADLOOM_TILE_MULTIPLY(0, 4, 6);
}

// The scores of 32 queries and `blocks` times 16 keys, of depths up to 64: the queries stay in four
// registers. `row`: from one row of scores to the next.
template <int chunks>
inline void multiply_queries(const int32_t* queries, const int32_t* keys, float* scores,
                             int64_t row, int64_t blocks) {
    static_assert(chunks == 1 || chunks == 2, "as many as there are registers");
    const int64_t stride = row * 4;
    HEADLOOM_TILE_LOAD(4, queries, 64);
    HEADLOOM_TILE_LOAD(5, queries + chunks * tile_cells, 64);
    if (chunks == 2) {
        HEADLOOM_TILE_LOAD(6, queries + tile_cells, 64);
        HEADLOOM_TILE_LOAD(7, queries + 3 * tile_cells, 64);
    }
    for (int64_t n = 0; n < blocks; ++n, keys += chunks * tile_cells, scores += 16) {
        HEADLOOM_TILE_ZERO(0);
        HEADLOOM_TILE_ZERO(1);
        HEADLOOM_TILE_LOAD(2, keys, 64);
        HEADLOOM_TILE_MULTIPLY(0, 4, 2);
        HEADLOOM_TILE_MULTIPLY(1, 5, 2);
        if (chunks == 2) {
            HEADLOOM_TILE_LOAD(3, keys + tile_cells, 64);
            HEADLOOM_TILE_MULTIPLY(0, 6, 3);
            HEADLOOM_TILE_MULTIPLY(1, 7, 3);
        }
        HEADLOOM_TILE_STORE(0, scores, stride);
        HEADLOOM_TILE_STORE(1, scores + 16 * row, stride);
    }
}

// Tile registers of 16 rows of 64 bytes for this thread, if wanted, until it is destroyed. few:
// rows of registers 2, 3 and 7, where a product has fewer: the unit takes a cycle for each.
struct MatrixUnit {
    explicit MatrixUnit(bool wanted, int few = 16) : wanted(wanted) {
        if (!wanted) return;
        struct {
            uint8_t palette = 1, start_row = 0, reserved[14] = {};
            uint16_t row_bytes[16] = {};
            uint8_t rows[16] = {};
        } layout;
        for (int tile = 0; tile < 8; ++tile) {
            layout.row_bytes[tile] = 64;
            layout.rows[tile] = 16;
        }
        layout.rows[2] = layout.rows[3] = layout.rows[7] = (uint8_t)smaller(few, 16);
        asm volatile("ldtilecfg %0" ::"m"(layout));
    }
    ~MatrixUnit() {
        if (wanted) asm volatile("tilerelease" ::);
    }
    const bool wanted;
};

// c[r, 0 .. 16) += more[r, 0 .. 16), for 16 rows.
inline void add_tile(float* c, int64_t c_row, const float* more, int64_t more_row) {
    for (int r = 0; r < 16; ++r)
        store(c + r * c_row, load(c + r * c_row) + load(more + r * more_row));
}

// c (+)= left right, 16 or 32 rows by 16 or 32 columns, over `chunks` chunks of 32 terms. Of
// float32, what is there already is added last (see multiply_block); bfloat16 needs no such care.
// beside: called after the instructions of up to four products, which the unit takes longer to
// carry out than the processor to read: a little other work is done meanwhile.
template <int splits, bool two_rows, bool two_columns, typename Beside>
inline void multiply_tiles(const Tiles& left, const Tiles& right, float* c, int64_t c_row,
                           int64_t chunks, bool accumulate, Beside& beside) {
    const int64_t stride = c_row * 4, left_stride = left.row * 4;
    const bool apart = splits > 1 && accumulate;
    if (accumulate && !apart) {
        HEADLOOM_TILE_LOAD(0, c, stride);
        if (two_columns) HEADLOOM_TILE_LOAD(1, c + 16, stride);
        if (two_rows) HEADLOOM_TILE_LOAD(2, c + 16 * c_row, stride);
        if (two_rows && two_columns) HEADLOOM_TILE_LOAD(3, c + 16 * c_row + 16, stride);
    } else {
        HEADLOOM_TILE_ZERO(0);
        HEADLOOM_TILE_ZERO(1);
        HEADLOOM_TILE_ZERO(2);
        HEADLOOM_TILE_ZERO(3);
    }
    const int32_t* a = left.cells;
    const int32_t* b = right.cells;
    // Each step multiplies what is loaded, and loads the factor of the next step as soon as its
    // register is free, half a step ahead of its use.
    const auto then_load_left = [&](const int32_t* next) {
        HEADLOOM_TILE_MULTIPLY(0, 4, 6);
        if (two_columns) HEADLOOM_TILE_MULTIPLY(1, 4, 7);
        HEADLOOM_TILE_LOAD(4, next, left_stride);
        if (two_rows) {
            HEADLOOM_TILE_MULTIPLY(2, 5, 6);
            if (two_columns) HEADLOOM_TILE_MULTIPLY(3, 5, 7);
            HEADLOOM_TILE_LOAD(5, next + left.block, left_stride);
        }
    };
    const auto then_load_right = [&](const int32_t* next) {
        HEADLOOM_TILE_MULTIPLY(0, 4, 6);
        if (two_rows) HEADLOOM_TILE_MULTIPLY(2, 5, 6);
        HEADLOOM_TILE_LOAD(6, next, 64);
        if (two_columns) {
            HEADLOOM_TILE_MULTIPLY(1, 4, 7);
            if (two_rows) HEADLOOM_TILE_MULTIPLY(3, 5, 7);
            HEADLOOM_TILE_LOAD(7, next + right.block, 64);
        }
    };
    for (int64_t chunk = 0; chunk < chunks; ++chunk, a += left.chunk, b += right.chunk) {
        const int32_t* first = b + (splits - 1) * tile_cells;
        HEADLOOM_TILE_LOAD(4, a, left_stride);
        HEADLOOM_TILE_LOAD(6, first, 64);
        if (two_columns) HEADLOOM_TILE_LOAD(7, first + right.block, 64);
        if (two_rows) HEADLOOM_TILE_LOAD(5, a + left.block, left_stride);
        if (splits == 3) {
            // Small products first, in an order that changes one factor at a time.
            then_load_right(b + tile_cells);
            beside();
            then_load_left(a + tile_cells);
            beside();
            then_load_right(b);
            beside();
            then_load_left(a + 2 * tile_cells);
            beside();
            then_load_left(a);
            beside();
        }
        HEADLOOM_TILE_MULTIPLY(0, 4, 6);
        if (two_columns) HEADLOOM_TILE_MULTIPLY(1, 4, 7);
        if (two_rows) HEADLOOM_TILE_MULTIPLY(2, 5, 6);
        if (two_rows && two_columns) HEADLOOM_TILE_MULTIPLY(3, 5, 7);
        beside();
    }
    if (apart) {
        alignas(64) float more[32 * 32];
        HEADLOOM_TILE_STORE(0, more, 128);
        if (two_columns) HEADLOOM_TILE_STORE(1, more + 16, 128);
        if (two_rows) HEADLOOM_TILE_STORE(2, more + 16 * 32, 128);
        if (two_rows && two_columns) HEADLOOM_TILE_STORE(3, more + 16 * 32 + 16, 128);
        add_tile(c, c_row, more, 32);
        if (two_columns) add_tile(c + 16, c_row, more + 16, 32);
        if (two_rows) add_tile(c + 16 * c_row, c_row, more + 16 * 32, 32);
        if (two_rows && two_columns) add_tile(c + 16 * c_row + 16, c_row, more + 16 * 32 + 16, 32);
        return;
    }
    HEADLOOM_TILE_STORE(0, c, stride);
    if (two_columns) HEADLOOM_TILE_STORE(1, c + 16, stride);
    if (two_rows) HEADLOOM_TILE_STORE(2, c + 16 * c_row, stride);
    if (two_rows && two_columns) HEADLOOM_TILE_STORE(3, c + 16 * c_row + 16, stride);
}

#else

struct MatrixUnit {
    explicit MatrixUnit(bool) {}
};
inline void keep_awake() {}

template <int splits, bool two_rows, bool two_columns, typename Beside>
inline void multiply_tiles(const Tiles& left, const Tiles& right, float* c, int64_t c_row,
                           int64_t chunks, bool accumulate, Beside& beside) {
    static_assert(splits >= 1, "");
    constexpr int rows_at_once = 8, vectors = two_columns ? 2 : 1;
    for (int row = 0; row < (two_rows ? 32 : 16); row += rows_at_once) {
        __m512 sums[rows_at_once][vectors];
        for (int r = 0; r < rows_at_once; ++r)
            for (int v = 0; v < vectors; ++v)
                sums[r][v] =
                    accumulate ? (__m512)load(c + (row + r) * c_row + v * 16) : _mm512_setzero_ps();
        for (int64_t chunk = 0; chunk < chunks; ++chunk) {
            const int32_t* a =
                left.cells + chunk * left.chunk + row / 16 * left.block + row % 16 * left.row;
            const int32_t* b = right.cells + chunk * right.chunk;
            for (int t = 0; t < 16; ++t) {
                __m512bh columns[vectors];
#pragma GCC unroll 2
                for (int v = 0; v < vectors; ++v)
                    columns[v] = (__m512bh)_mm512_loadu_si512(b + v * right.block + t * 16);
#pragma GCC unroll 8
                for (int r = 0; r < rows_at_once; ++r) {
                    const __m512bh terms = (__m512bh)_mm512_set1_epi32(a[r * left.row + t]);
#pragma GCC unroll 2
                    for (int v = 0; v < vectors; ++v)
                        sums[r][v] = _mm512_dpbf16_ps(sums[r][v], terms, columns[v]);
                }
            }
        }
        for (int r = 0; r < rows_at_once; ++r)
            for (int v = 0; v < vectors; ++v)
                store(c + (row + r) * c_row + v * 16, (Floats)sums[r][v]);
    }
    for (int64_t call = 0; call < chunks * calls_beside<splits>; ++call) beside();
}

#endif

template <int splits, typename Beside = const Nothing>
inline void multiply_tiles(bool two_rows, bool two_columns, const Tiles& left, const Tiles& right,
                           float* c, int64_t c_row, int64_t chunks, bool accumulate,
                           Beside& beside = nothing) {
    if (two_rows && two_columns)
        multiply_tiles<splits, true, true>(left, right, c, c_row, chunks, accumulate, beside);
    else if (two_rows)
        multiply_tiles<splits, true, false>(left, right, c, c_row, chunks, accumulate, beside);
    else if (two_columns)
        multiply_tiles<splits, false, true>(left, right, c, c_row, chunks, accumulate, beside);
    else
        multiply_tiles<splits, false, false>(left, right, c, c_row, chunks, accumulate, beside);
}

}  // namespace HEADLOOM_INSTRUCTION_SET
}  // namespace headloom

#endif
