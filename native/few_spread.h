// Scores of some rows with keys where they lie, by vectors that hold two numbers of each of eight
// queries: two numbers of a key go to all lanes as they are loaded, so that no key is turned and
// only pairs of lanes are left to add. A number is a float, or a pair of bfloat16.
#pragma once

#include "few_ahead.h"
#include "vector.h"

#if defined(__AVX512F__)

namespace headloom {
namespace HEADLOOM_INSTRUCTION_SET {

// Queries of a vector, and how many of their numbers it holds.
constexpr int spread_queries = 8;
constexpr int spread_numbers = lanes / spread_queries;
// Keys that meet a vector together.
constexpr int spread_keys = 16;

// So many rows are worth it; of more pairs than these, turning the keys is.
constexpr int least_spread_rows = 5, most_spread_pairs = 16;

// Numbers of a key are read a line of cache at a time.
inline bool can_spread(int64_t numbers) { return numbers > 0 && numbers % lanes == 0; }

struct FloatNumbers {
    static Floats add(Floats sum, Floats a, Floats b) { return sum + a * b; }
};
#if defined(HEADLOOM_HAS_PAIRS)
struct PairNumbers {
    static Floats add(Floats sum, Floats a, Floats b) {
        return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
    }
};
#endif

// Vector p of each eight rows: lane 2 q + n has element 2 p + n of query q; 0 past the last row.
inline void spread(const float* queries, int64_t query_row, int rows, int64_t depth, float* to) {
    for (int first = 0; first < rows; first += spread_queries)
        for (int64_t p = 0; p < depth / spread_numbers; ++p)
            for (int q = 0; q < spread_queries; ++q)
                for (int n = 0; n < spread_numbers; ++n)
                    *to++ = first + q < rows
                                ? queries[(first + q) * query_row + p * spread_numbers + n]
                                : 0.0f;
}

// The sums of 16 keys, lane 2 q + n of each a part of the score of query q, as 16 scores of each of
// the first `rows` queries.
inline void store_spread(Floats (&sums)[spread_keys], int rows, float* scores, int64_t score_row) {
    const __m512i firsts =
        _mm512_setr_epi32(0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30);
    const __m512i seconds =
        _mm512_setr_epi32(1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31);
    // Two keys in a vector: lane 2 q + n has key n. Then eight by eight pairs of lanes are turned.
    __m512d pairs[8], by_two[8];
#pragma GCC unroll 8
    for (int n = 0; n < 8; ++n) {
        const __m512 a = (__m512)sums[2 * n], b = (__m512)sums[2 * n + 1];
        pairs[n] = _mm512_castps_pd(_mm512_add_ps(_mm512_permutex2var_ps(a, firsts, b),
                                                  _mm512_permutex2var_ps(a, seconds, b)));
    }
#pragma GCC unroll 4
    for (int n = 0; n < 8; n += 2) {
        by_two[n] = _mm512_unpacklo_pd(pairs[n], pairs[n + 1]);
        by_two[n + 1] = _mm512_unpackhi_pd(pairs[n], pairs[n + 1]);
    }
    // Vector n + i has keys 2 n to 2 n + 3 of queries i, 2 + i, 4 + i and 6 + i.
    const auto write = [&](int query, __m512d front, __m512d back, bool odd) {
        if (query < rows)
            store(scores + query * score_row,
                  (Floats)_mm512_castpd_ps(odd ? _mm512_shuffle_f64x2(front, back, 0xdd)
                                               : _mm512_shuffle_f64x2(front, back, 0x88)));
    };
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
        const __m512d a = _mm512_shuffle_f64x2(by_two[i], by_two[2 + i], 0x88);
        const __m512d b = _mm512_shuffle_f64x2(by_two[4 + i], by_two[6 + i], 0x88);
        const __m512d c = _mm512_shuffle_f64x2(by_two[i], by_two[2 + i], 0xdd);
        const __m512d d = _mm512_shuffle_f64x2(by_two[4 + i], by_two[6 + i], 0xdd);
        write(i, a, b, false);
        write(2 + i, c, d, false);
        write(4 + i, a, b, true);
        write(6 + i, c, d, true);
    }
}

// Scores of up to eight rows with 16 keys, `key_bytes` from one to the next. stride: the same,
// where the compiler knows it, else 0; lines: to ask for with each vector of queries.
template <typename Numbers, int stride>
inline void meet_sixteen(const float* queries, int rows, const char* keys, int64_t key_bytes,
                         int64_t depth, float* scores, int64_t score_row, Ahead& ahead, int lines) {
    const int64_t step = stride ? stride : key_bytes;
    Floats sums[spread_keys] = {};
    for (int64_t d = 0; d < depth; d += lanes) {
#pragma GCC unroll 8
        for (int p = 0; p < lanes / spread_numbers; ++p) {
            const Floats some = load(queries + (d / spread_numbers + p) * lanes);
            ahead.fetch(lines);
#pragma GCC unroll 16
            for (int n = 0; n < spread_keys; ++n) {
                double two;
                std::memcpy(&two, keys + n * step + (d + p * spread_numbers) * 4, sizeof(two));
                sums[n] =
                    Numbers::add(sums[n], some, (Floats)_mm512_castpd_ps(_mm512_set1_pd(two)));
            }
        }
    }
    store_spread(sums, rows, scores, score_row);
}

// Rows against `count` keys of `depth` numbers. `spare`: room for 16 keys.
template <typename Numbers>
inline void meet_spread(const float* queries, int rows, const void* keys, int64_t key_bytes,
                        int64_t count, int64_t depth, float* scores, int64_t score_row,
                        float* spare, Ahead& ahead) {
    const int lines = ahead.lines(spread_keys, depth / spread_numbers);
    const auto meet = key_bytes == 128   ? meet_sixteen<Numbers, 128>
                      : key_bytes == 256 ? meet_sixteen<Numbers, 256>
                      : key_bytes == 512 ? meet_sixteen<Numbers, 512>
                                         : meet_sixteen<Numbers, 0>;
    for (int64_t first = 0; first < count; first += spread_keys) {
        const char* some = (const char*)keys + first * key_bytes;
        int64_t row = key_bytes;
        auto these = meet;
        if (count - first < spread_keys) {
            for (int64_t n = 0; n < count - first; ++n)
                std::memcpy(spare + n * depth, some + n * key_bytes, depth * sizeof(float));
            some = (const char*)spare;
            row = depth * (int64_t)sizeof(float);
            these = meet_sixteen<Numbers, 0>;
        }
        for (int r = 0; r < rows; r += spread_queries)
            these(queries + r * depth, rows - r, some, row, depth, scores + r * score_row + first,
                  score_row, ahead, r == 0 ? lines : 0);
    }
}

}  // namespace HEADLOOM_INSTRUCTION_SET
}  // namespace headloom

#endif
