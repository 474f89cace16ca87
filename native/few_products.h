// The two products of few queries: scores from keys where they are, and in bfloat16 pairs the
// weighted values from values where they are.
#pragma once

#include "few_ahead.h"
#include "multiply.h"
#include "packing.h"
#include "pairs.h"

namespace headloom {
namespace HEADLOOM_INSTRUCTION_SET {

// Half of the lanes of one vector, and of another the other half; or what these leave.
template <int half, bool folded>
struct HalvesToFold {
    static constexpr int of(int lane) {
        const bool second = lane & half;
        return folded ? (second ? lanes + lane - half : lane + half)
                      : (second ? lanes + lane : lane);
    }
};

// The sums of `lanes` vectors, each in the lane of its number. Each round folds two vectors into
// one: half of the lanes go on with one, half with the other.
template <int half = lanes / 2>
inline Floats sums_of(Floats (&vectors)[lanes]) {
#pragma GCC unroll 8
    for (int n = 0; n < half; ++n) {
        const Floats a = vectors[n], b = vectors[n + half];
        vectors[n] = chosen_lanes<HalvesToFold<half, false>>(a, b) +
                     chosen_lanes<HalvesToFold<half, true>>(a, b);
    }
    if constexpr (half > 1) return sums_of<half / 2>(vectors);
    return vectors[0];
}

// How a vector of a query meets one of a key, by the type of the inputs. `Key`: an element of a
// key; `width`: how many a vector has. Queries lie in scratch memory, padded with zeros.
struct FloatProducts {
    using Key = float;
    using Query = float;
    static constexpr int width = lanes;
    static Floats add(Floats sum, const Query* query, const Key* key) {
        return sum + load(query) * load(key);
    }
    static Floats add_part(Floats sum, const Query* query, const Key* key, int64_t count) {
        return sum + load(query) * load_part(key, count);
    }
};

// bfloat16, multiplied as floats.
struct WideProducts {
    using Key = uint16_t;
    using Query = float;
    static constexpr int width = lanes;
    static Floats add(Floats sum, const Query* query, const Key* key) {
        Integers wide;
        for (int lane = 0; lane < lanes; ++lane) wide[lane] = (int32_t)((uint32_t)key[lane] << 16);
        return sum + load(query) * (Floats)wide;
    }
    static Floats add_part(Floats sum, const Query* query, const Key* key, int64_t count) {
        Floats part{};
        for (int64_t lane = 0; lane < count; ++lane) part[lane] = from_bfloat16(key[lane]);
        return sum + load(query) * part;
    }
};

#if defined(HEADLOOM_HAS_PAIRS)
struct PairProducts {
    using Key = uint16_t;
    using Query = uint16_t;
    static constexpr int width = 2 * lanes;
    static Floats add(Floats sum, const Query* query, const Key* key) {
        return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_loadu_si512(query),
                                        (__m512bh)_mm512_loadu_si512(key));
    }
    static Floats add_part(Floats sum, const Query* query, const Key* key, int64_t count) {
        const __m512i part = _mm512_maskz_loadu_epi16((__mmask32)((1u << count) - 1), key);
        return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_loadu_si512(query),
                                        (__m512bh)part);
    }
};
#endif

// Rows of queries against rows of keys. The scores of a query are written in whole vectors: what
// lies past the last key has no meaning. `vectors`: of a key, all of them whole; 0 for any depth.
template <typename Products, int vectors>
inline void meet_keys(const typename Products::Query* queries, int64_t query_row, int rows,
                      const typename Products::Key* keys, int64_t key_row, int64_t count,
                      int64_t depth, float* scores, int64_t score_row, Ahead& ahead) {
    constexpr int width = Products::width;
    const int lines = ahead.lines(lanes);
    for (int64_t first = 0; first < count; first += lanes) {
        const typename Products::Key* own[lanes];
        for (int n = 0; n < lanes; ++n) own[n] = keys + smaller(first + n, count - 1) * key_row;
        ahead.fetch(lines);
        for (int r = 0; r < rows; ++r) {
            const typename Products::Query* query = queries + r * query_row;
            Floats products[lanes];
#pragma GCC unroll 16
            for (int n = 0; n < lanes; ++n) {
                const typename Products::Key* key = own[n];
                Floats sum{};
                if (vectors > 0) {
#pragma GCC unroll 8
                    for (int v = 0; v < vectors; ++v)
                        sum = Products::add(sum, query + v * width, key + v * width);
                } else {
                    int64_t d = 0;
                    for (; d + width <= depth; d += width)
                        sum = Products::add(sum, query + d, key + d);
                    if (d < depth) sum = Products::add_part(sum, query + d, key + d, depth - d);
                }
                products[n] = sum;
            }
            store(scores + r * score_row + first, sums_of(products));
        }
    }
}

template <typename Products>
inline void meet_keys(const typename Products::Query* queries, int64_t query_row, int rows,
                      const typename Products::Key* keys, int64_t key_row, int64_t count,
                      int64_t depth, float* scores, int64_t score_row, Ahead& ahead) {
    constexpr int width = Products::width;
    const auto meet = depth == 2 * width   ? meet_keys<Products, 2>
                      : depth == 4 * width ? meet_keys<Products, 4>
                      : depth == 8 * width ? meet_keys<Products, 8>
                                           : meet_keys<Products, 0>;
    meet(queries, query_row, rows, keys, key_row, count, depth, scores, score_row, ahead);
}

// Where so many rows meet the keys, turning these pays: no sums across lanes are left. (At 6 rows
// of floats both take the same time, in vectors of 16.)
constexpr int rows_of_turned_pairs = 4;
constexpr int rows_of_turned_floats = lanes == 16 ? 7 : 12;

// The same by floats, 32 (16, 8) keys at a time turned in `panel`.
inline void meet_turned_keys(const float* queries, int64_t query_row, int rows, const Tensor& keys,
                             bool bfloat16, int64_t batch, int64_t head, Range range, int64_t depth,
                             float* scores, int64_t score_row, float* panel, Ahead& ahead) {
    for (int64_t key = range.first; key < range.end; key += panel_columns) {
        ahead.fetch(ahead.lines(panel_columns));
        pack_panel(keys, bfloat16, batch, head, key, range.end, depth, panel);
        for (int row = 0; row < rows; row += group_rows)
            multiply_rows<2, false>((int)smaller(group_rows, rows - row), queries + row * query_row,
                                    query_row, 1, panel, panel_columns,
                                    scores + row * score_row + (key - range.first), score_row,
                                    depth);
    }
}

#if defined(HEADLOOM_HAS_PAIRS)

// The scores of up to 8 rows with 16 turned keys.
template <int rows>
inline void meet_turned_pairs(const int32_t* queries, int64_t query_row, const int32_t* panel,
                              int64_t pairs, float* scores, int64_t score_row) {
    __m512 sums[rows];
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) sums[r] = _mm512_setzero_ps();
    for (int64_t p = 0; p < pairs; ++p) {
        const __m512bh keys = (__m512bh)_mm512_loadu_si512(panel + p * lanes);
#pragma GCC unroll 8
        for (int r = 0; r < rows; ++r)
            sums[r] = _mm512_dpbf16_ps(sums[r], keys,
                                       (__m512bh)_mm512_set1_epi32(queries[r * query_row + p]));
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) store(scores + r * score_row, (Floats)sums[r]);
}

// The same by pairs of bfloat16, 16 keys at a time turned in `panel`; query_row counts pairs.
inline void meet_turned_pairs(const int32_t* queries, int64_t query_row, int rows,
                              const uint16_t* keys, int64_t key_row, int64_t count, int64_t depth,
                              float* scores, int64_t score_row, int32_t* panel, Ahead& ahead) {
    const int64_t vectors = (depth + 31) / 32;
    const __mmask32 last = (__mmask32)(depth % 32 ? (1u << depth % 32) - 1 : 0xffffffffu);
    for (int64_t first = 0; first < count; first += lanes) {
        ahead.fetch(ahead.lines(lanes));
        for (int64_t v = 0; v < vectors; ++v) {
            const __mmask32 part = v + 1 < vectors ? 0xffffffffu : last;
            Floats square[lanes];
#pragma GCC unroll 16
            for (int n = 0; n < lanes; ++n)
                square[n] = (Floats)_mm512_maskz_loadu_epi16(
                    part, keys + smaller(first + n, count - 1) * key_row + v * 32);
            transpose(square);
#pragma GCC unroll 16
            for (int n = 0; n < lanes; ++n)
                store(panel + (v * lanes + n) * lanes, (Integers)square[n]);
        }
        for (int row = 0; row < rows; row += group_rows) {
            const int32_t* some = queries + row * query_row;
            float* to = scores + row * score_row + first;
#define HEADLOOM_ROWS(n)                                                              \
    case n:                                                                           \
        meet_turned_pairs<n>(some, query_row, panel, vectors * lanes, to, score_row); \
        break
            switch (smaller(group_rows, rows - row)) { HEADLOOM_ROW_COUNTS; }
#undef HEADLOOM_ROWS
        }
    }
}

#endif

// sums[r, 0 .. vectors) += weights[r, :] values.
template <int rows, int vectors>
inline void weigh_block(const float* weights, int64_t weight_row, const float* values,
                        int64_t value_row, int64_t count, float* sums, int64_t sums_row,
                        Ahead& ahead, int lines) {
    Floats own[rows][vectors] = {};
    for (int64_t t = 0; t < count; ++t) {
        Floats value[vectors];
#pragma GCC unroll 4
        for (int v = 0; v < vectors; ++v) value[v] = load(values + t * value_row + v * lanes);
        ahead.fetch(lines);
#pragma GCC unroll 8
        for (int r = 0; r < rows; ++r) {
            const Floats weight = broadcast(weights[r * weight_row + t]);
#pragma GCC unroll 4
            for (int v = 0; v < vectors; ++v) own[r][v] += weight * value[v];
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r)
        for (int v = 0; v < vectors; ++v) {
            float* to = sums + r * sums_row + v * lanes;
            store(to, load(to) + own[r][v]);
        }
}

template <int vectors>
inline void weigh_rows(int rows, const float* weights, int64_t weight_row, const float* values,
                       int64_t value_row, int64_t count, float* sums, int64_t sums_row,
                       Ahead& ahead, int lines) {
#define HEADLOOM_ROWS(n)                                                                    \
    case n:                                                                                 \
        return weigh_block<n, vectors>(weights, weight_row, values, value_row, count, sums, \
                                       sums_row, ahead, lines)
    switch (rows) { HEADLOOM_ROW_COUNTS; }
#undef HEADLOOM_ROWS
}

// sums[r, :] += weights[r, :] values for floats. Few rows take four vectors of columns at a time:
// values are then read once, in order.
inline void weigh_floats(int rows, const float* weights, int64_t weight_row, const float* values,
                         int64_t value_row, int64_t count, int64_t columns, float* sums,
                         int64_t sums_row, Ahead& ahead) {
    const auto weigh = [&](auto kernel, int64_t column, int vectors) {
        kernel(rows, weights, weight_row, values + column, value_row, count, sums + column,
               sums_row, ahead, ahead.lines(vectors * lanes, columns));
    };
    int64_t column = 0;
    for (; rows <= 4 && column + 4 * lanes <= columns; column += 4 * lanes)
        weigh(weigh_rows<4>, column, 4);
    for (; column + lanes < columns; column += 2 * lanes) weigh(weigh_rows<2>, column, 2);
    if (column < columns) weigh(weigh_rows<1>, column, 1);
}

#if defined(HEADLOOM_HAS_PAIRS)

// What interleaving two rows of values, and multiplying, leaves of 32 columns: columns 8 n to 8 n +
// 3 in one vector, 8 n + 4 to 8 n + 7 in another.
inline void add_interleaved(Floats low, Floats high, float* to) {
    const __m512i front = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i back =
        _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
    const __m512 a = (__m512)low, b = (__m512)high;
    store(to, load(to) + (Floats)_mm512_permutex2var_ps(a, front, b));
    store(to + 16, load(to + 16) + (Floats)_mm512_permutex2var_ps(a, back, b));
}

// sums[r, :] += weights[r, :] values for some rows and blocks of 32 columns. Weights are pairs of
// terms t and 16 + t of each 32 (see store_pairs); those past `count` are 0, and their values are
// not read. chains: sums of their own for every so many terms, so that none waits for the last.
template <int rows, int blocks, int chains>
inline void weigh_pairs(const int32_t* weights, int64_t weight_row, const uint16_t* values,
                        int64_t value_row, int64_t count, float* sums, int64_t sums_row,
                        Ahead& ahead, int lines) {
    __m512 low[chains][rows][blocks], high[chains][rows][blocks];
    for (int c = 0; c < chains; ++c)
        for (int r = 0; r < rows; ++r)
            for (int n = 0; n < blocks; ++n) low[c][r][n] = high[c][r][n] = _mm512_setzero_ps();
    for (int64_t first = 0; first < count; first += chunk_terms) {
        const uint16_t* value = values + first * value_row;
        const int32_t* pairs = weights + first / 2;
        const int64_t left = smaller(count - first, chunk_terms);
        const auto add = [&](int64_t t, auto& low, auto& high, bool both) {
            ahead.fetch(lines);
#pragma GCC unroll 2
            for (int n = 0; n < blocks; ++n) {
                const uint16_t* own = value + t * value_row + n * 32;
                const __m512i one = _mm512_loadu_si512(own);
                const __m512i other =
                    both ? _mm512_loadu_si512(own + 16 * value_row) : _mm512_setzero_si512();
                const __m512bh a = (__m512bh)_mm512_unpacklo_epi16(one, other);
                const __m512bh b = (__m512bh)_mm512_unpackhi_epi16(one, other);
#pragma GCC unroll 8
                for (int r = 0; r < rows; ++r) {
                    const __m512bh weight = (__m512bh)_mm512_set1_epi32(pairs[r * weight_row + t]);
                    low[r][n] = _mm512_dpbf16_ps(low[r][n], a, weight);
                    high[r][n] = _mm512_dpbf16_ps(high[r][n], b, weight);
                }
            }
        };
        if (left == chunk_terms) {
            for (int64_t t = 0; t < 16; t += chains)
#pragma GCC unroll 2
                for (int c = 0; c < chains; ++c) add(t + c, low[c], high[c], true);
        } else
            for (int64_t t = 0; t < smaller(left, 16); ++t) add(t, low[0], high[0], t + 16 < left);
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r)
        for (int n = 0; n < blocks; ++n) {
            Floats a = (Floats)low[0][r][n], b = (Floats)high[0][r][n];
            for (int c = 1; c < chains; ++c) {
                a += (Floats)low[c][r][n];
                b += (Floats)high[c][r][n];
            }
            add_interleaved(a, b, sums + r * sums_row + n * 32);
        }
}

// The same of any number of blocks.
template <int rows>
inline void weigh_pairs(const int32_t* weights, int64_t weight_row, const uint16_t* values,
                        int64_t value_row, int64_t count, int64_t columns, float* sums,
                        int64_t sums_row, Ahead& ahead) {
    constexpr int wide = rows <= 2 ? 2 : 1, chains = rows == 1 ? 2 : 1;
    const auto weigh = [&](auto kernel, int64_t column, int blocks) {
        kernel(weights, weight_row, values + column, value_row, count, sums + column, sums_row,
               ahead, ahead.lines(2 * blocks, columns / 32));
    };
    int64_t column = 0;
    for (; column + wide * 32 <= columns; column += wide * 32)
        weigh(weigh_pairs<rows, wide, chains>, column, wide);
    if (column < columns) weigh(weigh_pairs<rows, 1, chains>, column, 1);
}

inline void weigh_pairs(int rows, const int32_t* weights, int64_t weight_row,
                        const uint16_t* values, int64_t value_row, int64_t count, int64_t columns,
                        float* sums, int64_t sums_row, Ahead& ahead) {
#define HEADLOOM_ROWS(n)                                                                    \
    case n:                                                                                 \
        return weigh_pairs<n>(weights, weight_row, values, value_row, count, columns, sums, \
                              sums_row, ahead)
    switch (rows) { HEADLOOM_ROW_COUNTS; }
#undef HEADLOOM_ROWS
}

#endif

}  // namespace HEADLOOM_INSTRUCTION_SET
}  // namespace headloom
