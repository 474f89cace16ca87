// The exact k strongest scores of a row, found while the scores stream by.
//
// Each row has a buffer of candidates and a threshold that at least k of the row's earlier scores
// exceed: a later score can be among the k strongest only if it exceeds the threshold too (an
// equal one would lose the tie to the lower keys before it). Candidates are appended in the order
// of their keys; a full buffer is cut to little more than k by finding a new threshold, never by
// sorting. Only the last few are ordered, at the end.
#pragma once

#include "cuts.h"

namespace headloom {
namespace HEADLOOM_INSTRUCTION_SET {

// Room for candidates beyond what a cut leaves and a tile's row, so that not every tile needs one.
constexpr int64_t spare_room = 64;

// network.h orders so many candidates at once, and gives so many, on processors that it is for.
constexpr int64_t most_sorted = 64, most_taken = 32;
#if defined(__AVX512F__) || defined(__AVX2__)
inline bool has_network(int64_t k) { return k <= most_taken; }
#else
inline bool has_network(int64_t) { return false; }
#endif

// How many more than k a cut may leave: more makes cuts cheaper, fewer the last ordering.
inline int64_t cut_slack(int64_t k) { return 8 + k / 4; }

// The first scores of a row are held against a guess. How many should lie above it, and how many
// may for it to be a threshold: where that is the row, they can be ordered as they are. A row's
// first cut keeps at least so many, and so many more.
inline int64_t most_by_guess(int64_t k) { return has_network(k) ? most_sorted : 2 * k + 32; }
inline int64_t wanted_by_guess(int64_t k) {
    return smaller(k + k / 2 + 8, (k + most_by_guess(k)) / 2);
}
inline int64_t least_of_first_cut(int64_t k) { return k + k / 4; }
inline int64_t slack_of_first_cut(int64_t k) {
    return smaller(k / 2 + 16, most_by_guess(k) - least_of_first_cut(k));
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

#if defined(__AVX2__) && !defined(__AVX512F__)
// The chosen lanes of a vector, one bit each, in front of the others.
struct Compaction {
    uint8_t lanes_in_front[256][8];
    constexpr Compaction() : lanes_in_front() {
        for (int chosen = 0; chosen < 256; ++chosen)
            for (int lane = 0, place = 0; lane < 8; ++lane)
                if (chosen >> lane & 1) lanes_in_front[chosen][place++] = (uint8_t)lane;
    }
};
constexpr Compaction compaction;
#endif

// Append the chosen lanes of scores and keys; writes up to a whole vector past the end.
inline void append(unsigned chosen, Floats scores, Integers keys, float* to_scores,
                   int32_t* to_keys, int64_t& number) {
#if defined(__AVX512F__)
    // Compaction in a register and a whole store: compressing stores are slow on some processors.
    const __mmask16 mask = (__mmask16)chosen;
    store(to_scores + number, (Floats)_mm512_maskz_compress_ps(mask, (__m512)scores));
    store(to_keys + number, (Integers)_mm512_maskz_compress_epi32(mask, (__m512i)keys));
    number += __builtin_popcount(chosen);
#elif defined(__AVX2__)
    const __m256i from =
        _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)compaction.lanes_in_front[chosen]));
    store(to_scores + number, (Floats)_mm256_permutevar8x32_ps((__m256)scores, from));
    store(to_keys + number, (Integers)_mm256_permutevar8x32_epi32((__m256i)keys, from));
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
    bool all_above;  // whether each exceeds the threshold, and none equals it

    void clear() {
        number = 0;
        threshold = -infinity;
        all_above = true;
    }
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
    const float highest = highest_of(row.scores, vectors);
    const float low = row.all_above ? row.threshold : -infinity;
    const int64_t above_low = row.all_above ? row.number : vectors * lanes;
    const float guess = row.all_above ? bound_between(low, highest, (float)above_low, 0,
                                                      (float)k + 0.5f * (float)slack)
                                      : row.threshold;
    const Cut cut = find_cut(row.scores, vectors, k, slack, guess, highest, low, above_low);
    row.number = apply_cut(cut, row.scores, row.keys, 0, vectors, row.scores, row.keys);
    row.threshold = cut.above;
    row.all_above = cut.ties == 0;
}

// What one scan of a row's new scores finds: the highest, lane by lane, and which lie above a
// bound, one bit each.
struct Scan {
    Floats highest;
    float bound;
    bool first;  // whether these are the row's first scores, and the bound a guess
    int64_t count;
    alignas(64) uint8_t above[longest_tile / 8];
};

// Look at a row's new scores.
inline void scan(const float* scores, int64_t vectors, Scan& seen) {
    const Floats limit = broadcast(seen.bound);
    // Four maxima at a time: one would wait for itself.
    Floats best[4];
    for (Floats& one : best) one = broadcast(-infinity);
    const auto look = [&](int64_t v, int n) {
        const Floats x = load(scores + v * lanes);
        best[n] = maximum(x, best[n]);
        const unsigned bits = lanes_above(x, limit);
        if (lanes == 16) {
            const uint16_t both = (uint16_t)bits;
            std::memcpy(seen.above + 2 * v, &both, 2);
        } else if (lanes == 8)
            seen.above[v] = (uint8_t)bits;
        else if (n % 2 == 0)
            seen.above[v / 2] = (uint8_t)bits;
        else
            seen.above[v / 2] |= (uint8_t)(bits << 4);
    };
    int64_t v = 0;
    for (; v + 4 <= vectors; v += 4)
        for (int n = 0; n < 4; ++n) look(v + n, n);
    for (int n = 0; v < vectors; ++v, ++n) look(v, n);
    seen.highest = maximum(maximum(best[0], best[1]), maximum(best[2], best[3]));
    const int64_t bytes = (vectors * lanes + 7) / 8;
    for (int64_t n = bytes; n % 8; ++n) seen.above[n] = 0;
    seen.count = 0;
    for (int64_t n = 0; n < bytes; n += 8) {
        uint64_t some;
        std::memcpy(&some, seen.above + n, 8);
        seen.count += __builtin_popcountll(some);
    }
}

// Append the scores that a scan saw above its bound to a row's candidates.
inline void append_seen(const Scan& seen, const float* scores, int64_t vectors, int32_t first_key,
                        Candidates& row) {
    if (seen.count == 0) return;
#if defined(__AVX512BW__) || defined(__AVX2__)
    // Which vectors have any is noted first, without a branch, as above.
    for (int64_t start = 0; start < vectors; start += 64) {
        const int64_t end = smaller(start + 64, vectors);
        uint64_t some = 0;
#if defined(__AVX512BW__)
        for (int64_t v = start; v < end; v += 32) {
            const __m512i bits = _mm512_load_si512(seen.above + 2 * v);
            some |= (uint64_t)_mm512_test_epi16_mask(bits, bits) << (v - start);
        }
#else
        for (int64_t v = start; v < end; v += 32) {
            const __m256i none = _mm256_cmpeq_epi8(
                _mm256_load_si256((const __m256i*)(seen.above + v)), _mm256_setzero_si256());
            some |= (uint64_t)~(uint32_t)_mm256_movemask_epi8(none) << (v - start);
        }
#endif
        if (end - start < 64) some &= (1ull << (end - start)) - 1;
        for (; some; some &= some - 1) {
            const int64_t v = start + __builtin_ctzll(some);
            unsigned chosen = 0;
            std::memcpy(&chosen, seen.above + v * lanes / 8, lanes / 8);
            append(chosen, load(scores + v * lanes),
                   first_integers() + (first_key + (int32_t)v * lanes), row.scores, row.keys,
                   row.number);
        }
    }
#else
    for (int64_t n = 0; n < vectors * lanes; n += 8)
        for (unsigned some = seen.above[n / 8]; some; some &= some - 1) {
            const int64_t j = n + __builtin_ctz(some);
            row.scores[row.number] = scores[j];
            row.keys[row.number++] = first_key + (int32_t)j;
        }
#endif
}

// Before a row's new scores are scanned: `vectors` whole vectors, hidden keys at minus infinity.
// `guess`: a bound that little more than k scores of the row before exceeded; it only saves time.
inline void begin_scan(Candidates& row, int64_t k, int64_t capacity, int64_t vectors, float guess,
                       Scan& seen) {
    if (row.number > k + cut_slack(k) + spare_room || row.number + vectors * lanes > capacity)
        cut_candidates(row, k, cut_slack(k));
    seen.first = row.number == 0 && vectors * lanes > most_by_guess(k);
    seen.bound = seen.first ? guess : row.threshold;
}

// Take the candidates that a scan saw; the first score is of key first_key. Updates the guess.
//
// The first scores of a row are held against the guess: where at least k exceed it, and not many
// more, it is as good a threshold as one that is looked for.
inline void take_candidates(Candidates& row, int64_t k, const Scan& seen, const float* scores,
                            int64_t vectors, int32_t first_key, float& guess) {
    if (seen.first) {
        const float wanted = rough_log((float)wanted_by_guess(k)), highest = largest(seen.highest);
        if (seen.count >= k && seen.count <= most_by_guess(k)) {
            row.threshold = seen.bound;
            const float counted = rough_log((float)seen.count);
            const float fall = (highest - seen.bound) / larger_of(counted - exponent_bias, 1.0f);
            guess = seen.bound + 0.5f * fall * (counted - wanted);
        } else {
            const Cut cut = find_cut(scores, vectors, least_of_first_cut(k), slack_of_first_cut(k),
                                     seen.bound, highest, -infinity, vectors * lanes);
            row.number = apply_cut(cut, scores, nullptr, first_key, vectors, row.scores, row.keys);
            if (row.number >= k) {
                guess = row.threshold = cut.above;
                row.all_above = cut.ties == 0;
            }
            return;
        }
    }
    append_seen(seen, scores, vectors, first_key, row);
}

// All of it. Returns the highest score.
inline float add_candidates(Candidates& row, int64_t k, int64_t capacity, const float* scores,
                            int64_t vectors, int32_t first_key, float& guess) {
    Scan seen;
    begin_scan(row, k, capacity, vectors, guess, seen);
    scan(scores, vectors, seen);
    take_candidates(row, k, seen, scores, vectors, first_key, guess);
    return largest(seen.highest);
}

}  // namespace HEADLOOM_INSTRUCTION_SET
}  // namespace headloom
