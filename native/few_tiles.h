// The two products of few queries on the matrix unit, of bfloat16 where it lies in the cache: rows
// of keys are a left factor as they are (scores are then turned, not keys), pairs of rows of values
// a right one once they are interleaved.
#pragma once

#include "few_products.h"
#include "multiply_pairs.h"

#if defined(HEADLOOM_HAS_PAIRS) && defined(__AMX_BF16__)

namespace headloom {
namespace HEADLOOM_INSTRUCTION_SET {

// So many rows are worth it; so many there are at most, in two tiles.
constexpr int least_tile_rows = 2;
constexpr int most_tile_rows = 32;
// Keys that meet the queries together: two tiles.
constexpr int tile_keys = 32;

// Queries as right factors: tiles (rows / 16, depth / 32), of each row p the pairs of elements
// 2 p and 2 p + 1 of 16 queries; 0 past the last row. query_row counts pairs.
inline void pack_few_queries(const int32_t* queries, int64_t query_row, int rows, int64_t depth,
                             int32_t* tiles) {
    for (int first = 0; first < rows; first += 16)
        for (int64_t p = 0; p < depth / 2; ++p)
            for (int q = 0; q < 16; ++q)
                *tiles++ = first + q < rows ? queries[(first + q) * query_row + p] : 0;
}

// Scores of 16 keys with 16 queries, (keys, queries), as rows of up to 16 queries.
inline void store_turned_scores(const float* from, int rows, float* scores, int64_t score_row) {
    if (rows <= 8) {
        // Key j and key 8 + j in a vector; then both halves of it are turned, eight by eight.
        __m512 v[8], w[8];
#pragma GCC unroll 8
        for (int j = 0; j < 8; ++j)
            v[j] = _mm512_insertf32x8(_mm512_castps256_ps512(_mm256_loadu_ps(from + j * 16)),
                                      _mm256_loadu_ps(from + (8 + j) * 16), 1);
#pragma GCC unroll 4
        for (int j = 0; j < 8; j += 2) {
            w[j] = _mm512_unpacklo_ps(v[j], v[j + 1]);
            w[j + 1] = _mm512_unpackhi_ps(v[j], v[j + 1]);
        }
        // w[j + i]: of queries 2 i and 2 i + 1 (and those four further) keys j, j + 1.
        const auto pairs = [](__m512 a, __m512 b, bool upper) {
            const __m512d x = _mm512_castps_pd(a), y = _mm512_castps_pd(b);
            return upper ? _mm512_unpackhi_pd(x, y) : _mm512_unpacklo_pd(x, y);
        };
        const __m512i lower = _mm512_setr_epi64(0, 1, 8, 9, 4, 5, 12, 13);
        const __m512i upper = _mm512_setr_epi64(2, 3, 10, 11, 6, 7, 14, 15);
#pragma GCC unroll 4
        for (int q = 0; q < 4; ++q) {
            const int i = q / 2;
            const __m512d front = pairs(w[i], w[2 + i], q % 2);
            const __m512d back = pairs(w[4 + i], w[6 + i], q % 2);
            if (q < rows)
                store(scores + q * score_row, (Floats)_mm512_permutex2var_pd(front, lower, back));
            if (4 + q < rows)
                store(scores + (4 + q) * score_row,
                      (Floats)_mm512_permutex2var_pd(front, upper, back));
        }
        return;
    }
    Floats square[lanes];
#pragma GCC unroll 16
    for (int n = 0; n < lanes; ++n) square[n] = load(from + n * 16);
    transpose(square);
#pragma GCC unroll 16
    for (int n = 0; n < lanes; ++n)
        if (n < rows) store(scores + n * score_row, square[n]);
}

// Scores of 16 or 32 queries with 32 keys; key_row in elements.
template <bool two>
inline void meet_tile(const int32_t* queries, int rows, const uint16_t* keys, int64_t key_row,
                      int64_t depth, float* scores, int64_t score_row, Ahead& ahead) {
    const int64_t chunks = depth / chunk_terms, stride = key_row * 2;
    const uint16_t* second = keys + 16 * key_row;
    const int32_t* others = queries + chunks * tile_cells;
    const int lines = ahead.lines(tile_keys, chunks);
    alignas(64) float turned[(two ? 4 : 2) * tile_cells];
    HEADLOOM_TILE_ZERO(0);
    HEADLOOM_TILE_ZERO(1);
    if (two) {
        HEADLOOM_TILE_ZERO(2);
        HEADLOOM_TILE_ZERO(3);
    }
    for (int64_t c = 0; c < chunks; ++c) {
        HEADLOOM_TILE_LOAD(6, queries + c * tile_cells, 64);
        HEADLOOM_TILE_LOAD(4, keys + c * chunk_terms, stride);
        HEADLOOM_TILE_MULTIPLY(0, 4, 6);
        HEADLOOM_TILE_LOAD(5, second + c * chunk_terms, stride);
        HEADLOOM_TILE_MULTIPLY(1, 5, 6);
        if (two) {
            HEADLOOM_TILE_LOAD(7, others + c * tile_cells, 64);
            HEADLOOM_TILE_MULTIPLY(2, 4, 7);
            HEADLOOM_TILE_MULTIPLY(3, 5, 7);
        }
        ahead.fetch(lines);
    }
    HEADLOOM_TILE_STORE(0, turned, 64);
    HEADLOOM_TILE_STORE(1, turned + tile_cells, 64);
    if (two) {
        HEADLOOM_TILE_STORE(2, turned + 2 * tile_cells, 64);
        HEADLOOM_TILE_STORE(3, turned + 3 * tile_cells, 64);
    }
    store_turned_scores(turned, rows, scores, score_row);
    store_turned_scores(turned + tile_cells, rows, scores + 16, score_row);
    if (two) {
        float* more = scores + 16 * score_row;
        store_turned_scores(turned + 2 * tile_cells, rows - 16, more, score_row);
        store_turned_scores(turned + 3 * tile_cells, rows - 16, more + 16, score_row);
    }
}

// The scores of up to 32 rows with `count` keys, in whole tiles of 32. `spare`: room for 32 keys.
inline void meet_tiles(const int32_t* queries, int rows, const uint16_t* keys, int64_t key_row,
                       int64_t count, int64_t depth, float* scores, int64_t score_row,
                       uint16_t* spare, Ahead& ahead) {
    for (int64_t first = 0; first < count; first += tile_keys) {
        const uint16_t* some = keys + first * key_row;
        int64_t row = key_row;
        if (count - first < tile_keys) {
            for (int64_t n = 0; n < tile_keys; ++n)
                std::memcpy(spare + n * depth, some + smaller(n, count - first - 1) * key_row,
                            depth * sizeof(uint16_t));
            some = spare;
            row = depth;
        }
        (rows > 16 ? meet_tile<true> : meet_tile<false>)(queries, rows, some, row, depth,
                                                         scores + first, score_row, ahead);
    }
}

// The sums of some rows and 32 columns, as interleaved values leave them, to where they belong.
inline void add_weighed(const float* from, int rows, float* sums, int64_t sums_row) {
    for (int r = 0; r < rows; ++r)
        add_interleaved(load(from + r * 32), load(from + r * 32 + 16), sums + r * sums_row);
}

// sums[r, 0 .. 32) += weights[r, :] values, for up to 16 or 32 rows. Weights are pairs of terms t
// and 16 + t of each 32, 0 past `count`, whose values are not read.
template <bool two>
inline void weigh_tile(const int32_t* weights, int64_t weight_row, int rows, const uint16_t* values,
                       int64_t value_row, int64_t count, float* sums, int64_t sums_row,
                       Ahead& ahead, int lines) {
    constexpr int ring = 4;  // so that the next pairs are made while these are multiplied
    alignas(64) int32_t pairs[ring * 2 * tile_cells];
    const int64_t stride = weight_row * 4;
    HEADLOOM_TILE_ZERO(2);
    HEADLOOM_TILE_ZERO(3);
    if (two) {
        HEADLOOM_TILE_ZERO(0);
        HEADLOOM_TILE_ZERO(1);
    }
    int next = 0;
    for (int64_t first = 0; first < count; first += chunk_terms) {
        const uint16_t* value = values + first * value_row;
        int32_t* to = pairs + next * 2 * tile_cells;
        next = (next + 1) % ring;
        const int64_t left = count - first;
        const auto interleave = [&](int t, __m512i one, __m512i other) {
            store(to + t * 16, (Integers)_mm512_unpacklo_epi16(one, other));
            store(to + tile_cells + t * 16, (Integers)_mm512_unpackhi_epi16(one, other));
            ahead.fetch(lines);
        };
        if (left >= chunk_terms) {
#pragma GCC unroll 4
            for (int t = 0; t < 16; ++t)
                interleave(t, _mm512_loadu_si512(value + t * value_row),
                           _mm512_loadu_si512(value + (t + 16) * value_row));
        } else {
            const auto part_of = [&](int t) {
                return t < left ? _mm512_loadu_si512(value + t * value_row)
                                : _mm512_setzero_si512();
            };
            for (int t = 0; t < 16; ++t) interleave(t, part_of(t), part_of(t + 16));
        }
        const int32_t* left_factor = weights + first / 2;
        HEADLOOM_TILE_LOAD(7, left_factor, stride);
        HEADLOOM_TILE_LOAD(4, to, 64);
        HEADLOOM_TILE_MULTIPLY(2, 7, 4);
        HEADLOOM_TILE_LOAD(5, to + tile_cells, 64);
        HEADLOOM_TILE_MULTIPLY(3, 7, 5);
        if (two) {
            HEADLOOM_TILE_LOAD(6, left_factor + 16 * weight_row, stride);
            HEADLOOM_TILE_MULTIPLY(0, 6, 4);
            HEADLOOM_TILE_MULTIPLY(1, 6, 5);
        }
    }
    alignas(64) float found[16 * 32];
    HEADLOOM_TILE_STORE(2, found, 128);
    HEADLOOM_TILE_STORE(3, found + 16, 128);
    add_weighed(found, (int)smaller(rows, 16), sums, sums_row);
    if (two) {
        HEADLOOM_TILE_STORE(0, found, 128);
        HEADLOOM_TILE_STORE(1, found + 16, 128);
        add_weighed(found, rows - 16, sums + 16 * sums_row, sums_row);
    }
}

// The same for whole blocks of 32 columns.
inline void weigh_tiles(const int32_t* weights, int64_t weight_row, int rows,
                        const uint16_t* values, int64_t value_row, int64_t count, int64_t columns,
                        float* sums, int64_t sums_row, Ahead& ahead) {
    const int lines = ahead.lines(2, columns / 32);  // for two rows of values
    for (int64_t column = 0; column < columns; column += 32)
        (rows > 16 ? weigh_tile<true> : weigh_tile<false>)(weights, weight_row, rows,
                                                           values + column, value_row, count,
                                                           sums + column, sums_row, ahead, lines);
}

}  // namespace HEADLOOM_INSTRUCTION_SET
}  // namespace headloom

#endif
