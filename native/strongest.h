// The exact k strongest scores of a row, found while the scores stream by.
//
// Each row has a buffer of candidates and a threshold that at least k of the row's earlier scores
// exceed: a later score can be among the k strongest only if it exceeds the threshold too (an
// equal one would lose the tie to the lower keys before it). Candidates are appended in the order
// of their keys; a full buffer is cut to little more than k by finding a new threshold, never by
// sorting. Only the last few are ordered, at the end.
#pragma once

#include "ranking.h"
#include "vector.h"
#include "visible.h"

namespace weft {
namespace WEFT_INSTRUCTION_SET {

// Bit `lane` is set where scores[lane] > bound.
inline unsigned lanes_above(Floats scores, Floats bound) {
#if defined(__AVX512F__)
    return _mm512_cmp_ps_mask((__m512)scores, (__m512)bound, _CMP_GT_OQ);
#elif defined(__AVX2__)
    return (unsigned)_mm256_movemask_ps((__m256)(scores > bound));
#elif defined(__SSE2__)
    return (unsigned)_mm_movemask_ps((__m128)(scores > bound));
#else
    const Integers above = scores > bound;
    unsigned bits = 0;
    for (int lane = 0; lane < lanes; ++lane) bits |= (unsigned)(above[lane] & 1) << lane;
    return bits;
#endif
}

inline int64_t count_above(const float* scores, int64_t vectors, float bound) {
    const Floats limit = broadcast(bound);
    int64_t count = 0;
    for (int64_t v = 0; v < vectors; ++v)
        count += __builtin_popcount(lanes_above(load(scores + v * lanes), limit));
    return count;
}

// found(v, scores, lanes) for each vector v that has lanes above a bound, in order. Which vectors
// have any is noted first, without a branch: the few that do lie anywhere, and a processor that
// guesses wrong at each of them would spend more time on that than on all the rest.
template <typename Found>
inline void for_lanes_above(const float* scores, int64_t vectors, float bound, const Found& found) {
    const Floats limit = broadcast(bound);
    for (int64_t start = 0; start < vectors; start += 64) {
        const int64_t end = smaller(start + 64, vectors);
        uint64_t some = 0;
        for (int64_t v = start; v < end; ++v)
            some |= (uint64_t)(lanes_above(load(scores + v * lanes), limit) != 0) << (v - start);
        for (; some; some &= some - 1) {
            const int64_t v = start + __builtin_ctzll(some);
            const Floats x = load(scores + v * lanes);
            found(v, x, lanes_above(x, limit));
        }
    }
}

// Append the chosen lanes of scores and keys; writes up to a whole vector past the end.
inline void append(unsigned chosen, Floats scores, Integers keys, float* to_scores,
                   int32_t* to_keys, int64_t& number) {
#if defined(__AVX512F__)
    // Compaction in a register and a whole store: compressing stores are slow on some processors.
    const __mmask16 mask = (__mmask16)chosen;
    store(to_scores + number, (Floats)_mm512_maskz_compress_ps(mask, (__m512)scores));
    store(to_keys + number, (Integers)_mm512_maskz_compress_epi32(mask, (__m512i)keys));
    number += __builtin_popcount(chosen);
#else
    for (; chosen; chosen &= chosen - 1) {
        const int lane = __builtin_ctz(chosen);
        to_scores[number] = scores[lane];
        to_keys[number] = keys[lane];
        ++number;
    }
#endif
}

// Where to cut a row: keep every score above `above`, and the first `ties` that equal it.
struct Cut {
    float above;
    int64_t ties;
};

// Floats in their order as integers, and back.
inline int32_t ordered(float x) {
    int32_t bits;
    std::memcpy(&bits, &x, 4);
    return bits < 0 ? (int32_t)(0x80000000u - (uint32_t)bits) : bits;
}
inline float from_ordered(int32_t order) {
    const int32_t bits = order < 0 ? (int32_t)(0x80000000u - (uint32_t)order) : order;
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
}

// log2 of a positive number, roughly: its bits, read as an integer, grow almost like it.
inline float rough_log(float x) {
    int32_t bits;
    std::memcpy(&bits, &x, 4);
    return (float)bits * (1.0f / (1 << 23));
}

// A cut that keeps at least k and at most k + slack scores, or exactly k where ties leave no such
// bound. `guess`: where to look first; `highest`: no score exceeds it.
//
// Counting is cheap and the distribution is unknown, so: step down from the guess until enough
// scores lie above, then close in, first as if the logarithm of the count fell linearly (it
// nearly does in a tail), then by halving the floats that are left, which ends after 32 steps.
inline Cut find_cut(const float* scores, int64_t vectors, int64_t k, int64_t slack, float guess,
                    float highest) {
    float high = highest, low = -infinity;  // fewer than k lie above high; too many above low
    int64_t above_high = 0, above_low = vectors * lanes;
    float bound = guess < highest ? guess : highest - 1.0f;
    float step = highest - bound;
    for (int round = 0; round < 64; ++round) {
        if (!(bound < high && bound > low)) {
            // Too small a step for a float, or past the lower end: halve what is left.
            const int64_t middle = ((int64_t)ordered(low) + (int64_t)ordered(high)) >> 1;
            bound = from_ordered((int32_t)middle);
            if (!(bound < high && bound > low)) break;
        }
        const int64_t above = count_above(scores, vectors, bound);
        if (above >= k && above <= k + slack) return {bound, 0};
        if (above < k) {
            high = bound;
            above_high = above;
        } else {
            low = bound;
            above_low = above;
        }
        if (low == -infinity) {
            bound = high - step;
            step *= 2;
            if (round > 24) bound = low;
        } else if (round < 12) {
            const float wanted = rough_log((float)k + 0.5f * (float)slack);
            const float least = rough_log(above_high ? (float)above_high : 0.5f);
            const float most = rough_log((float)above_low);
            float share = (most - wanted) / (most - least);
            share = share < 0.05f ? 0.05f : share > 0.95f ? 0.95f : share;
            bound = low + (high - low) * share;
        } else {
            bound = low;
        }
    }
    if (low == -infinity) {
        // Nothing lies between minus infinity and `high`: hidden keys are no ties.
        const int64_t finite = count_above(scores, vectors, low);
        if (finite <= k + slack) return {low, 0};
    }
    return {high, k - count_above(scores, vectors, high)};
}

// Apply a cut to scores with their keys (keys == nullptr: consecutive from first_key).
// Returns how many were kept; to_scores may be scores itself.
inline int64_t apply_cut(Cut cut, const float* scores, const int32_t* keys, int32_t first_key,
                         int64_t vectors, float* to_scores, int32_t* to_keys) {
    int64_t number = 0, ties = cut.ties;
    const auto named = [&](int64_t v) {
        return keys ? load(keys + v * lanes)
                    : first_integers() + (first_key + (int32_t)v * lanes);
    };
    if (ties == 0) {
        for_lanes_above(scores, vectors, cut.above, [&](int64_t v, Floats x, unsigned chosen) {
            append(chosen, x, named(v), to_scores, to_keys, number);
        });
        return number;
    }
    for (int64_t v = 0; v < vectors; ++v) {
        const Floats x = load(scores + v * lanes);
        unsigned chosen = lanes_above(x, broadcast(cut.above));
        for (int lane = 0; lane < lanes && ties > 0; ++lane)
            if (x[lane] == cut.above) {
                chosen |= 1u << lane;
                --ties;
            }
        append(chosen, x, named(v), to_scores, to_keys, number);
    }
    return number;
}

// The candidates of one row. Buffers hold `capacity` scores and keys and one vector more.
struct Candidates {
    float* scores;
    int32_t* keys;
    int64_t number;
    float threshold;
};

// How many more than k a cut may leave: more makes cuts cheaper, fewer the last ordering.
inline int64_t cut_slack(int64_t k) { return 8 + k / 4; }

// Room for what a cut leaves, a tile's row, and some more so that not every tile needs a cut.
inline int64_t candidate_capacity(int64_t k, int64_t tile) {
    return (k + cut_slack(k) + tile + 64 + lanes - 1) / lanes * lanes;
}

inline void pad_last_vector(Candidates& row) {
    for (int64_t n = row.number; n % lanes; ++n) row.scores[n] = -infinity;
}

inline int64_t vectors_of(int64_t number) { return (number + lanes - 1) / lanes; }

inline float highest_of(const float* scores, int64_t vectors) {
    // Four maxima at a time: one would wait for itself.
    Floats best[4];
    for (Floats& one : best) one = broadcast(-infinity);
    int64_t v = 0;
    for (; v + 4 <= vectors; v += 4)
        for (int n = 0; n < 4; ++n) best[n] = maximum(load(scores + (v + n) * lanes), best[n]);
    for (; v < vectors; ++v) best[0] = maximum(load(scores + v * lanes), best[0]);
    return largest(maximum(maximum(best[0], best[1]), maximum(best[2], best[3])));
}

inline void cut_candidates(Candidates& row, int64_t k, int64_t slack) {
    pad_last_vector(row);
    const int64_t vectors = vectors_of(row.number);
    const Cut cut = find_cut(row.scores, vectors, k, slack, row.threshold,
                             highest_of(row.scores, vectors));
    row.number = apply_cut(cut, row.scores, row.keys, 0, vectors, row.scores, row.keys);
    row.threshold = cut.above;
}

// Show a row some new scores: `vectors` whole vectors, hidden keys at minus infinity, the first
// of key first_key. `highest`: the largest of them. `guess`: a bound that cut the row before,
// updated; it only saves time.
inline void offer(Candidates& row, int64_t k, int64_t capacity, const float* scores,
                  int64_t vectors, int32_t first_key, float highest, float& guess) {
    if (!(highest > row.threshold)) return;
    if (row.number == 0 && vectors * lanes > k + cut_slack(k)) {
        const Cut cut = find_cut(scores, vectors, k, cut_slack(k), guess, highest);
        row.number = apply_cut(cut, scores, nullptr, first_key, vectors, row.scores, row.keys);
        if (row.number >= k) guess = row.threshold = cut.above;
        return;
    }
    if (row.number + vectors * lanes > capacity) cut_candidates(row, k, cut_slack(k));
    for_lanes_above(scores, vectors, row.threshold, [&](int64_t v, Floats x, unsigned chosen) {
        append(chosen, x, first_integers() + (first_key + (int32_t)v * lanes), row.scores, row.keys,
               row.number);
    });
}

// Order the row's candidates: its strongest k, strongest first, ties by key, to `scores` and
// `keys`. Returns how many there are, at most k.
inline int64_t order_strongest(Candidates& row, int64_t k, float* scores, int32_t* keys) {
    const int64_t slack = 4;
    if (row.number > k + slack && k > 0) cut_candidates(row, k, slack);
    const int64_t number = row.number;
    const int64_t kept = smaller(number, k);
    if (number > 192) {
        sort_strongest(row.scores, row.keys, number, kept, scores, keys);
        return kept;
    }
    // Each candidate's rank is the number of candidates ahead of it: those with a higher score,
    // and those before it with an equal one.
    pad_last_vector(row);
    const Integers lane_numbers = first_integers();
    for (int64_t first = 0; first < number; first += lanes) {
        const Floats own = load(row.scores + first);
        Integers rank{};
        int64_t other = 0;
#if defined(__AVX512F__)
        const __m512i one = _mm512_set1_epi32(1);
        __m512i ranks = _mm512_setzero_si512();
        const auto count = [&](__mmask16 ahead) {
            ranks = _mm512_mask_add_epi32(ranks, ahead, ranks, one);
        };
        for (; other < first; ++other)
            count(_mm512_cmp_ps_mask(_mm512_set1_ps(row.scores[other]), (__m512)own, _CMP_GE_OQ));
        for (; other < number && other < first + lanes; ++other) {
            const __m512 x = _mm512_set1_ps(row.scores[other]);
            const __mmask16 later = (__mmask16)(0xfffeu << (other - first));
            count(_mm512_cmp_ps_mask(x, (__m512)own, _CMP_GT_OQ) |
                  (_mm512_cmp_ps_mask(x, (__m512)own, _CMP_EQ_OQ) & later));
        }
        for (; other < number; ++other)
            count(_mm512_cmp_ps_mask(_mm512_set1_ps(row.scores[other]), (__m512)own, _CMP_GT_OQ));
        rank = (Integers)ranks;
#else
        for (; other < first; ++other) rank -= (Integers)(broadcast(row.scores[other]) >= own);
        for (; other < number && other < first + lanes; ++other) {
            const Floats x = broadcast(row.scores[other]);
            const Integers later = lane_numbers > (int32_t)(other - first);
            rank -= (Integers)(x > own) | ((Integers)(x == own) & later);
        }
        for (; other < number; ++other) rank -= (Integers)(broadcast(row.scores[other]) > own);
#endif
        const int64_t end = smaller(lanes, number - first);
        int32_t places[lanes];
        store(places, rank);
        for (int64_t lane = 0; lane < end; ++lane) {
            if (places[lane] >= kept) continue;
            scores[places[lane]] = row.scores[first + lane];
            keys[places[lane]] = row.keys[first + lane];
        }
    }
    (void)lane_numbers;
    return kept;
}

}  // namespace WEFT_INSTRUCTION_SET
}  // namespace weft
