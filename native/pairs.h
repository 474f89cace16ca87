// Numbers packed as pairs of bfloat16, for processors that multiply such: matrix tiles (AMX), or
// dot products of pairs in a vector (avx512_bf16). multiply_pairs.h has the products.
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

#if defined(HEADLOOM_HAS_PAIRS)

namespace headloom {
namespace HEADLOOM_INSTRUCTION_SET {

constexpr int tile_cells = 256;  // pairs in a tile
constexpr int chunk_terms = 32;  // terms of the sum that one tile holds
constexpr int stripe_rows = 32;  // rows that are multiplied together: two tiles

// Into how many bfloat16 an input number is cut.
inline int splits_of(const Call& call) { return call.bfloat16 ? 1 : 3; }

// Whether x is a power of two: scaling bfloat16 by it is exact.
inline bool is_power_of_two(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    return (bits & 0x007fffffu) == 0 && x > 0;
}

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
    if (!bfloat16) return (Floats)_mm512_maskz_loadu_ps(mask, tensor.at<float>(b, h, row) + first);
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
            store_pairs<splits>(
                low, high, tiles + ((row / 16 * chunks + c) * splits) * tile_cells + row % 16 * 16);
        }
    return !any(bad);
}

// 16 rows of 32 numbers, a low and a high half of each, as the columns of a tile.
template <int splits>
inline void store_turned(Floats (&low)[lanes], Floats (&high)[lanes], int32_t* to) {
    if (splits == 1) {  // half as much to turn once the halves are pairs
        int32_t cells[tile_cells];
        for (int row = 0; row < lanes; ++row) {
            store_pairs<1>(low[row], high[row], cells + row * 16);
            low[row] = (Floats)load(cells + row * 16);
        }
        transpose(low);
        for (int row = 0; row < lanes; ++row) store(to + row * 16, (Integers)low[row]);
        return;
    }
    transpose(low);
    transpose(high);
    for (int row = 0; row < lanes; ++row) store_pairs<splits>(low[row], high[row], to + row * 16);
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
            Floats low[lanes], high[lanes];
            for (int64_t row = 0; row < 16; ++row) {
                low[row] = high[row] = Floats{};
                if (start + row >= end) continue;
                const int64_t key = start + row, column = c * chunk_terms;
                low[row] = load_columns(tensor, bfloat16, b, h, key, column, columns - column);
                high[row] =
                    load_columns(tensor, bfloat16, b, h, key, column + 16, columns - column - 16);
                bad |= not_finite(low[row]) | not_finite(high[row]);
            }
            store_turned<splits>(low, high,
                                 tiles + ((start - first) / 16 * chunks + c) * splits * tile_cells);
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

}  // namespace HEADLOOM_INSTRUCTION_SET
}  // namespace headloom

#endif
