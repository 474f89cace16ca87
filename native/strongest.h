// The exact k strongest scores of a row, found while the scores stream by.
//
// Each row has a buffer of candidates and a threshold that at least k of the row's earlier scores
// exceed: a later score can be among the k strongest only if it exceeds the threshold too (an
// equal one would lose the tie to the lower keys before it). Candidates are appended in the order
// of their keys; a full buffer is cut to little more than k by finding a new threshold, never by
// sorting. Only the last few are ordered, at the end.
#pragma once

#include "choose.h"

namespace weft {
namespace WEFT_INSTRUCTION_SET {

// Rounds of a search for a cut: the first guess at a fall of the count, later ones halve; stepping
// down that has found no lower end by then gives up; 64 are more than any search takes.
constexpr int guessing_rounds = 12;
constexpr int stepping_rounds = 24;
constexpr int most_rounds = 64;
// A guess moves the bound by this share of what is left at least, and by the rest at most.
constexpr float least_share = 0.05f;
constexpr float most_share = 0.95f;

// Room for candidates beyond what a cut leaves and a tile's row, so that not every tile needs one.
constexpr int64_t spare_room = 64;

// How many more than k a cut may leave: more makes cuts cheaper, fewer the last ordering.
inline int64_t cut_slack(int64_t k) { return 8 + k / 4; }

// The first scores of a row are held against a guess. How many should lie above it, and how many
// may for it to be a threshold; a row's first cut keeps at least, and so many more.
inline int64_t wanted_by_guess(int64_t k) { return k + k / 2 + 8; }
inline int64_t most_by_guess(int64_t k) { return 2 * k + 32; }
inline int64_t least_of_first_cut(int64_t k) { return k + k / 4; }
inline int64_t slack_of_first_cut(int64_t k) { return k / 2 + 16; }

// What `rough_log` adds to a logarithm: the bias of a float's exponent.
constexpr float exponent_bias = 127.0f;

inline int64_t count_above(const float* scores, int64_t vectors, float bound) {
    const Floats limit = broadcast(bound);
    int64_t count = 0;
    for (int64_t v = 0; v < vectors; ++v)
        count += __builtin_popcount(lanes_above(load(scores + v * lanes), limit));
    return count;
}

// visit(v, scores, lanes) for each vector v that has lanes above a bound, in order. Which vectors
// have any is noted first, without a branch: the few that do lie anywhere, and a processor that
// guesses wrong at each of them would spend more time on that than on all the rest.
template <typename Visit>
inline void for_lanes_above(const float* scores, int64_t vectors, float bound, const Visit& visit) {
    const Floats limit = broadcast(bound);
    for (int64_t start = 0; start < vectors; start += 64) {
        const int64_t end = smaller(start + 64, vectors);
        uint64_t some = 0;
        for (int64_t v = start; v < end; ++v)
            some |= (uint64_t)(lanes_above(load(scores + v * lanes), limit) != 0) << (v - start);
        for (; some; some &= some - 1) {
            const int64_t v = start + __builtin_ctzll(some);
            const Floats x = load(scores + v * lanes);
            visit(v, x, lanes_above(x, limit));
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

// log2 of a positive number and `exponent_bias`, roughly: its bits, read as an integer, grow almost
// like it.
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
    for (int round = 0; round < most_rounds; ++round) {
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
            if (round > stepping_rounds) bound = low;
        } else if (round < guessing_rounds) {
            const float wanted = rough_log((float)k + 0.5f * (float)slack);
            const float least = rough_log(above_high ? (float)above_high : 0.5f);
            const float most = rough_log((float)above_low);
            float share = (most - wanted) / (most - least);
            share = share < least_share ? least_share : share > most_share ? most_share : share;
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
    const auto keys_of = [&](int64_t v) {
        return keys ? load(keys + v * lanes) : first_integers() + (first_key + (int32_t)v * lanes);
    };
    if (ties == 0) {
        for_lanes_above(scores, vectors, cut.above, [&](int64_t v, Floats x, unsigned chosen) {
            append(chosen, x, keys_of(v), to_scores, to_keys, number);
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
        append(chosen, x, keys_of(v), to_scores, to_keys, number);
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

inline int64_t candidate_capacity(int64_t k, int64_t tile) {
    return round_up(k + cut_slack(k) + tile + spare_room, lanes);
}

inline void pad_last_vector(Candidates& row) {
    for (int64_t n = row.number; n % lanes; ++n) row.scores[n] = -infinity;
}

// The highest scores, lane by lane.
inline Floats highest_lanes(const float* scores, int64_t vectors) {
    // Four maxima at a time: one would wait for itself.
    Floats best[4];
    for (Floats& one : best) one = broadcast(-infinity);
    int64_t v = 0;
    for (; v + 4 <= vectors; v += 4)
        for (int n = 0; n < 4; ++n) best[n] = maximum(load(scores + (v + n) * lanes), best[n]);
    for (; v < vectors; ++v) best[0] = maximum(load(scores + v * lanes), best[0]);
    return maximum(maximum(best[0], best[1]), maximum(best[2], best[3]));
}

inline float highest_of(const float* scores, int64_t vectors) {
    if (vectors >= 4) return largest(highest_lanes(scores, vectors));
    Floats best = maximum(load(scores), broadcast(-infinity));
    for (int64_t v = 1; v < vectors; ++v) best = maximum(load(scores + v * lanes), best);
    return largest(best);
}

inline void cut_candidates(Candidates& row, int64_t k, int64_t slack) {
    pad_last_vector(row);
    const int64_t vectors = vectors_of(row.number);
    const Cut cut =
        find_cut(row.scores, vectors, k, slack, row.threshold, highest_of(row.scores, vectors));
    row.number = apply_cut(cut, row.scores, row.keys, 0, vectors, row.scores, row.keys);
    row.threshold = cut.above;
}

// Vectors of a tile's row at most, and room to read their lanes eight bytes at a time.
constexpr int most_vectors = longest_tile / lanes;

// What one scan of a row's new scores finds: the highest, and which lanes lie above a bound.
struct Scan {
    float highest;
    int64_t count;
    alignas(64) uint16_t lanes_above_bound[most_vectors];
};

inline void scan(const float* scores, int64_t vectors, float bound, Scan& seen) {
#if defined(__AVX512F__)
    const Floats limit = broadcast(bound);
    Floats best[4];
    for (Floats& one : best) one = broadcast(-infinity);
    const auto look = [&](int64_t v, int n) {
        const Floats x = load(scores + v * lanes);
        best[n] = maximum(x, best[n]);
        seen.lanes_above_bound[v] = (uint16_t)lanes_above(x, limit);
    };
    int64_t v = 0;
    for (; v + 4 <= vectors; v += 4)
        for (int n = 0; n < 4; ++n) look(v + n, n);
    for (; v < vectors; ++v) look(v, 0);
    for (; v % 4; ++v) seen.lanes_above_bound[v] = 0;
    seen.highest = largest(maximum(maximum(best[0], best[1]), maximum(best[2], best[3])));
    seen.count = 0;
    for (int64_t n = 0; n < vectors; n += 4) {
        uint64_t four;
        std::memcpy(&four, seen.lanes_above_bound + n, 8);
        seen.count += __builtin_popcountll(four);
    }
#else
    seen.highest = highest_of(scores, vectors);
    seen.count = 0;
    if (!(seen.highest > bound)) return;
    for (int64_t v = 0; v < vectors; ++v) {
        const unsigned above = lanes_above(load(scores + v * lanes), broadcast(bound));
        seen.lanes_above_bound[v] = (uint16_t)above;
        seen.count += __builtin_popcount(above);
    }
#endif
}

// visit(v, lanes) for each vector that has lanes above the bound, in order. Which do is noted
// first, without a branch, as above.
template <typename Visit>
inline void for_lanes_above(const Scan& seen, int64_t vectors, const Visit& visit) {
    if (seen.count == 0) return;
    for (int64_t start = 0; start < vectors; start += 64) {
        const int64_t end = smaller(start + 64, vectors);
        uint64_t some = 0;
#if defined(__AVX512BW__)
        for (int64_t v = start; v < end; v += 32) {
            const __m512i masks = _mm512_load_si512(seen.lanes_above_bound + v);
            some |= (uint64_t)_mm512_test_epi16_mask(masks, masks) << (v - start);
        }
        if (end - start < 64) some &= (1ull << (end - start)) - 1;
#else
        for (int64_t v = start; v < end; ++v)
            some |= (uint64_t)(seen.lanes_above_bound[v] != 0) << (v - start);
#endif
        for (; some; some &= some - 1) {
            const int64_t v = start + __builtin_ctzll(some);
            visit(v, seen.lanes_above_bound[v]);
        }
    }
}

// Show a row some new scores: `vectors` whole vectors, hidden keys at minus infinity, the first
// of key first_key. `guess`: a bound that little more than k scores of the row before exceeded;
// updated; it only saves time. Returns the highest score.
//
// The first scores of a row are held against the guess: where at least k exceed it, and not many
// more, it is as good a threshold as one that is looked for.
inline float add_candidates(Candidates& row, int64_t k, int64_t capacity, const float* scores,
                            int64_t vectors, int32_t first_key, float& guess) {
    Scan seen;
    if (row.number > k + cut_slack(k) + spare_room || row.number + vectors * lanes > capacity)
        cut_candidates(row, k, cut_slack(k));
    const bool first = row.number == 0 && vectors * lanes > most_by_guess(k);
    scan(scores, vectors, first ? guess : row.threshold, seen);
    if (first) {
        const float wanted = rough_log((float)wanted_by_guess(k));
        if (seen.count >= k && seen.count <= most_by_guess(k)) {
            row.threshold = guess;
            const float counted = rough_log((float)seen.count);
            const float fall = (seen.highest - guess) / larger_of(counted - exponent_bias, 1.0f);
            guess += 0.5f * fall * (counted - wanted);
        } else {
            const Cut cut = find_cut(scores, vectors, least_of_first_cut(k), slack_of_first_cut(k),
                                     guess, seen.highest);
            row.number = apply_cut(cut, scores, nullptr, first_key, vectors, row.scores, row.keys);
            if (row.number >= k) guess = row.threshold = cut.above;
            return seen.highest;
        }
    }
    for_lanes_above(seen, vectors, [&](int64_t v, unsigned chosen) {
        append(chosen, load(scores + v * lanes),
               first_integers() + (first_key + (int32_t)v * lanes), row.scores, row.keys,
               row.number);
    });
    return seen.highest;
}

}  // namespace WEFT_INSTRUCTION_SET
}  // namespace weft
