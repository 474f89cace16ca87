// Products of bfloat16 pairs, for processors that have them: matrix tiles (AMX), or dot products
// of pairs in a vector (avx512_bf16).
//
// Both read the same layout. A tile is 16 rows of 16 pairs, 1 KiB: of the left factor, row r holds
// 32 consecutive terms of the sum; of the right factor, row t holds the pair of terms t of 16
// columns. Which two terms make a pair is free as long as both factors agree: terms t and 16 + t
// of the 32, which is how two vectors of floats combine without moving across lanes.
//
// float32 is served by cutting each number into three bfloat16 of 8 bits, which is exact, and
// adding the six products that reach into the 24 bits of the result. On a matrix unit that is
// still more than twice as fast as multiplying float32.
#pragma once

#include "packing.h"
#include "vector.h"

#if defined(__AMX_BF16__) || defined(__AVX512BF16__)
#define WEFT_HAS_PAIRS 1

namespace weft {
namespace WEFT_INSTRUCTION_SET {

constexpr int tile_cells = 256;    // pairs in a tile
constexpr int chunk_terms = 32;    // terms of the sum that one tile holds
constexpr int stripe_rows = 32;    // rows that are multiplied together: two tiles

#if defined(__AMX_BF16__)
constexpr bool pairs_serve_float32 = true;
#else
constexpr bool pairs_serve_float32 = false;
#endif

// Cutting float32 pays where each cut number is used often enough: not for short sequences.
inline bool uses_pairs(const Call& call) {
    // Nor is a step of decoding: its few queries use each key once.
    return (call.bfloat16 && call.queries_count > 4) ||
           (pairs_serve_float32 && call.keys_count >= 128 && call.queries_count >= 32);
}

// Into how many bfloat16 an input number is cut.
inline int splits_of(const Call& call) { return call.bfloat16 ? 1 : 3; }

inline Integers upper_halves(Integers low_terms, Integers high_terms) {
    const Integers mask = broadcast((int32_t)0xffff0000u);
    return (Integers)((__v16su)low_terms >> 16) | (high_terms & mask);
}

inline Floats cut_to_bfloat16(Floats x) {
    return (Floats)((Integers)x & broadcast((int32_t)0xffff0000u));
}

// 32 numbers, as pairs, in one tile row (splits = 1, to the nearest) or in the same row of three
// tiles (exactly).
template <int splits>
inline void store_pairs(Floats low, Floats high, int32_t* to) {
    if (splits == 1) {
        const Integers half = broadcast((int32_t)0x8000);
        store(to, upper_halves((Integers)low + half, (Integers)high + half));
        return;
    }
    store(to, upper_halves((Integers)low, (Integers)high));
    const Floats low_rest = low - cut_to_bfloat16(low), high_rest = high - cut_to_bfloat16(high);
    store(to + tile_cells, upper_halves((Integers)low_rest, (Integers)high_rest));
    store(to + 2 * tile_cells, upper_halves((Integers)(low_rest - cut_to_bfloat16(low_rest)),
                                            (Integers)(high_rest - cut_to_bfloat16(high_rest))));
}

// `count` (up to 16) numbers of a row of a tensor from column `first`, the others 0.
inline Floats load_columns(const Tensor& tensor, bool bfloat16, int64_t b, int64_t h, int64_t row,
                           int64_t first, int64_t count) {
    if (count <= 0) return Floats{};
    const __mmask16 mask = (__mmask16)(count >= lanes ? 0xffff : (1u << count) - 1);
    if (!bfloat16)
        return (Floats)_mm512_maskz_loadu_ps(mask, tensor.at<float>(b, h, row) + first);
    const __m256i half = _mm256_maskz_loadu_epi16(mask, tensor.at<uint16_t>(b, h, row) + first);
    return (Floats)_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16);
}

// Whether a number is infinite or NaN, as lanes of ones.
inline Integers not_finite(Floats x) {
    const Integers exponent = broadcast((int32_t)0x7f800000);
    return ((Integers)x & exponent) == exponent;
}

inline bool any(Integers x) { return _mm512_test_epi32_mask((__m512i)x, (__m512i)x) != 0; }

// Rows as a left factor: tiles (rows / 16, chunks, splits). Returns whether all are finite.
template <int splits>
inline bool pack_left(const Tensor& tensor, bool bfloat16, int64_t b, int64_t h, int64_t first,
                      int64_t rows, int64_t padded_rows, int64_t columns, float factor,
                      int32_t* tiles) {
    const int64_t chunks = (columns + chunk_terms - 1) / chunk_terms;
    Integers bad{};
    for (int64_t row = 0; row < padded_rows; ++row)
        for (int64_t c = 0; c < chunks; ++c) {
            Floats low{}, high{};
            if (row < rows) {
                const int64_t column = c * chunk_terms;
                low = load_columns(tensor, bfloat16, b, h, first + row, column, columns - column);
                high = load_columns(tensor, bfloat16, b, h, first + row, column + 16,
                                    columns - column - 16);
                low *= factor;
                high *= factor;
                bad |= not_finite(low) | not_finite(high);
            }
            store_pairs<splits>(low, high,
                                tiles + ((row / 16 * chunks + c) * splits) * tile_cells +
                                    row % 16 * 16);
        }
    return !any(bad);
}

// Rows first .. padded_end as columns of a right factor whose terms are the tensor's columns: tiles
// (rows / 16, chunks, splits); rows from `end` on are 0. Returns whether all are finite.
template <int splits>
inline bool pack_right_turned(const Tensor& tensor, bool bfloat16, int64_t b, int64_t h,
                              int64_t first, int64_t padded_end, int64_t end, int64_t columns,
                              int32_t* tiles) {
    const int64_t chunks = (columns + chunk_terms - 1) / chunk_terms;
    Integers bad{};
    for (int64_t start = first; start < padded_end; start += 16)
        for (int64_t c = 0; c < chunks; ++c) {
            int32_t cells[splits * tile_cells];
            for (int64_t row = 0; row < 16; ++row) {
                Floats low{}, high{};
                if (start + row < end) {
                    const int64_t column = c * chunk_terms;
                    low = load_columns(tensor, bfloat16, b, h, start + row, column,
                                       columns - column);
                    high = load_columns(tensor, bfloat16, b, h, start + row, column + 16,
                                        columns - column - 16);
                    bad |= not_finite(low) | not_finite(high);
                }
                store_pairs<splits>(low, high, cells + row * 16);
            }
            int32_t* to = tiles + ((start - first) / 16 * chunks + c) * splits * tile_cells;
            for (int split = 0; split < splits; ++split) {
                Floats square[lanes];
#pragma GCC unroll 16
                for (int row = 0; row < lanes; ++row)
                    square[row] = (Floats)load(cells + split * tile_cells + row * 16);
                transpose(square);
#pragma GCC unroll 16
                for (int row = 0; row < lanes; ++row)
                    store(to + split * tile_cells + row * 16, (Integers)square[row]);
            }
        }
    return !any(bad);
}

// Rows first .. end as terms of a right factor whose columns are the tensor's: tiles
// (rows / 32, columns / 16, splits). Returns whether all are finite.
template <int splits>
inline bool pack_right(const Tensor& tensor, bool bfloat16, int64_t b, int64_t h, int64_t first,
                       int64_t end, int64_t columns, int32_t* tiles) {
    const int64_t blocks = (columns + 15) / 16;
    Integers bad{};
    for (int64_t start = first; start < end; start += chunk_terms)
        for (int64_t n = 0; n < blocks; ++n)
            for (int64_t t = 0; t < 16; ++t) {
                Floats low{}, high{};
                if (start + t < end)
                    low = load_columns(tensor, bfloat16, b, h, start + t, n * 16, columns - n * 16);
                if (start + t + 16 < end)
                    high = load_columns(tensor, bfloat16, b, h, start + t + 16, n * 16,
                                        columns - n * 16);
                bad |= not_finite(low) | not_finite(high);
                store_pairs<splits>(
                    low, high,
                    tiles + ((start - first) / chunk_terms * blocks + n) * splits * tile_cells +
                        t * 16);
            }
    return !any(bad);
}

// Where the tiles of a factor lie: a block is 16 rows of a left factor, or 16 columns of a right.
struct Tiles {
    const int32_t* cells;
    int64_t chunk, block;  // cells from one chunk, one block, to the next
    int64_t row;           // cells from one row of a tile to the next
};

#if defined(__AMX_BF16__)

// The instructions by number of register; "memory" keeps the compiler from moving the stores that
// fill a tile past its load.
#define WEFT_TILE_LOAD(tile, from, stride)                                                    \
    asm volatile("tileloadd (%0,%1,1), %%tmm" #tile ::"r"(from), "r"((int64_t)(stride))      \
                 : "memory")
#define WEFT_TILE_STORE(tile, to, stride)                                                     \
    asm volatile("tilestored %%tmm" #tile ", (%0,%1,1)" ::"r"(to), "r"((int64_t)(stride))    \
                 : "memory")
#define WEFT_TILE_ZERO(tile) asm volatile("tilezero %%tmm" #tile ::)
#define WEFT_TILE_MULTIPLY(sum, left, right) \
    asm volatile("tdpbf16ps %%tmm" #right ", %%tmm" #left ", %%tmm" #sum ::)

// A matrix unit that has had nothing to do for half a microsecond goes to sleep, and takes a quarter of
// one to wake. A product of nothing now and then, while vectors are computed, keeps it awake; it costs
// a tenth of that.
inline void keep_awake() {
    WEFT_TILE_ZERO(0);
    WEFT_TILE_ZERO(4);
    WEFT_TILE_ZERO(6);
    WEFT_TILE_MULTIPLY(0, 4, 6);
}

// The scores of 32 queries and `blocks` times 16 keys, of depths up to 64: the queries stay in four
// registers. `row`: from one row of scores to the next.
template <int chunks>
inline void multiply_queries(const int32_t* queries, const int32_t* keys, float* scores,
                             int64_t row, int64_t blocks) {
    static_assert(chunks == 1 || chunks == 2, "as many as there are registers");
    const int64_t stride = row * 4;
    WEFT_TILE_LOAD(4, queries, 64);
    WEFT_TILE_LOAD(5, queries + chunks * tile_cells, 64);
    if (chunks == 2) {
        WEFT_TILE_LOAD(6, queries + tile_cells, 64);
        WEFT_TILE_LOAD(7, queries + 3 * tile_cells, 64);
    }
    for (int64_t n = 0; n < blocks; ++n, keys += chunks * tile_cells, scores += 16) {
        WEFT_TILE_ZERO(0);
        WEFT_TILE_ZERO(1);
        WEFT_TILE_LOAD(2, keys, 64);
        WEFT_TILE_MULTIPLY(0, 4, 2);
        WEFT_TILE_MULTIPLY(1, 5, 2);
        if (chunks == 2) {
            WEFT_TILE_LOAD(3, keys + tile_cells, 64);
            WEFT_TILE_MULTIPLY(0, 6, 3);
            WEFT_TILE_MULTIPLY(1, 7, 3);
        }
        WEFT_TILE_STORE(0, scores, stride);
        WEFT_TILE_STORE(1, scores + 16 * row, stride);
    }
}

// Tile registers of 16 rows of 64 bytes for this thread, if wanted, until it is destroyed.
struct MatrixUnit {
    explicit MatrixUnit(bool wanted) : wanted(wanted) {
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
template <int splits, bool two_rows, bool two_columns>
inline void multiply_tiles(const Tiles& left, const Tiles& right, float* c, int64_t c_row, int64_t chunks,
                           bool accumulate) {
    const int64_t stride = c_row * 4, left_stride = left.row * 4;
    const bool apart = splits > 1 && accumulate;
    if (accumulate && !apart) {
        WEFT_TILE_LOAD(0, c, stride);
        if (two_columns) WEFT_TILE_LOAD(1, c + 16, stride);
        if (two_rows) WEFT_TILE_LOAD(2, c + 16 * c_row, stride);
        if (two_rows && two_columns) WEFT_TILE_LOAD(3, c + 16 * c_row + 16, stride);
    } else {
        WEFT_TILE_ZERO(0);
        WEFT_TILE_ZERO(1);
        WEFT_TILE_ZERO(2);
        WEFT_TILE_ZERO(3);
    }
    const int32_t* a = left.cells;
    const int32_t* b = right.cells;
    // Each step multiplies what is loaded, and loads the factor of the next step as soon as its
    // register is free, half a step ahead of its use.
    const auto then_load_left = [&](const int32_t* next) {
        WEFT_TILE_MULTIPLY(0, 4, 6);
        if (two_columns) WEFT_TILE_MULTIPLY(1, 4, 7);
        WEFT_TILE_LOAD(4, next, left_stride);
        if (two_rows) {
            WEFT_TILE_MULTIPLY(2, 5, 6);
            if (two_columns) WEFT_TILE_MULTIPLY(3, 5, 7);
            WEFT_TILE_LOAD(5, next + left.block, left_stride);
        }
    };
    const auto then_load_right = [&](const int32_t* next) {
        WEFT_TILE_MULTIPLY(0, 4, 6);
        if (two_rows) WEFT_TILE_MULTIPLY(2, 5, 6);
        WEFT_TILE_LOAD(6, next, 64);
        if (two_columns) {
            WEFT_TILE_MULTIPLY(1, 4, 7);
            if (two_rows) WEFT_TILE_MULTIPLY(3, 5, 7);
            WEFT_TILE_LOAD(7, next + right.block, 64);
        }
    };
    for (int64_t chunk = 0; chunk < chunks; ++chunk, a += left.chunk, b += right.chunk) {
        const int32_t* first = b + (splits - 1) * tile_cells;
        WEFT_TILE_LOAD(4, a, left_stride);
        WEFT_TILE_LOAD(6, first, 64);
        if (two_columns) WEFT_TILE_LOAD(7, first + right.block, 64);
        if (two_rows) WEFT_TILE_LOAD(5, a + left.block, left_stride);
        if (splits == 3) {
            // Small products first, in an order that changes one factor at a time.
            then_load_right(b + tile_cells);
            then_load_left(a + tile_cells);
            then_load_right(b);
            then_load_left(a + 2 * tile_cells);
            then_load_left(a);
        }
        WEFT_TILE_MULTIPLY(0, 4, 6);
        if (two_columns) WEFT_TILE_MULTIPLY(1, 4, 7);
        if (two_rows) WEFT_TILE_MULTIPLY(2, 5, 6);
        if (two_rows && two_columns) WEFT_TILE_MULTIPLY(3, 5, 7);
    }
    if (apart) {
        alignas(64) float more[32 * 32];
        WEFT_TILE_STORE(0, more, 128);
        if (two_columns) WEFT_TILE_STORE(1, more + 16, 128);
        if (two_rows) WEFT_TILE_STORE(2, more + 16 * 32, 128);
        if (two_rows && two_columns) WEFT_TILE_STORE(3, more + 16 * 32 + 16, 128);
        add_tile(c, c_row, more, 32);
        if (two_columns) add_tile(c + 16, c_row, more + 16, 32);
        if (two_rows) add_tile(c + 16 * c_row, c_row, more + 16 * 32, 32);
        if (two_rows && two_columns) add_tile(c + 16 * c_row + 16, c_row, more + 16 * 32 + 16, 32);
        return;
    }
    WEFT_TILE_STORE(0, c, stride);
    if (two_columns) WEFT_TILE_STORE(1, c + 16, stride);
    if (two_rows) WEFT_TILE_STORE(2, c + 16 * c_row, stride);
    if (two_rows && two_columns) WEFT_TILE_STORE(3, c + 16 * c_row + 16, stride);
}

#else

struct MatrixUnit {
    explicit MatrixUnit(bool) {}
};
inline void keep_awake() {}

template <int splits, bool two_rows, bool two_columns>
inline void multiply_tiles(const Tiles& left, const Tiles& right, float* c, int64_t c_row, int64_t chunks,
                           bool accumulate) {
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
}

#endif

template <int splits>
inline void multiply_tiles(bool two_rows, bool two_columns, const Tiles& left, const Tiles& right, float* c,
                           int64_t c_row, int64_t chunks, bool accumulate) {
    if (two_rows && two_columns)
        multiply_tiles<splits, true, true>(left, right, c, c_row, chunks, accumulate);
    else if (two_rows)
        multiply_tiles<splits, true, false>(left, right, c, c_row, chunks, accumulate);
    else if (two_columns)
        multiply_tiles<splits, false, true>(left, right, c, c_row, chunks, accumulate);
    else
        multiply_tiles<splits, false, false>(left, right, c, c_row, chunks, accumulate);
}

}  // namespace WEFT_INSTRUCTION_SET
}  // namespace weft

#endif
