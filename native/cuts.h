// Where to cut a row so that little more than its k strongest scores are left, found by counting.
#pragma once

#include "choose.h"

namespace headloom {
namespace HEADLOOM_INSTRUCTION_SET {

// Rounds of a search for a cut: the first guess at a fall of the count, later ones halve; stepping
// down that has found no lower end by then gives up; 64 are more than any search takes.
constexpr int guessing_rounds = 12;
constexpr int stepping_rounds = 24;
constexpr int most_rounds = 64;
// A guess moves the bound by this share of what is left at least, and by the rest at most.
constexpr float least_share = 0.05f;
constexpr float most_share = 0.95f;

// What `rough_log` adds to a logarithm: the bias of a float's exponent.
constexpr float exponent_bias = 127.0f;

inline int64_t count_above(const float* scores, int64_t vectors, float bound) {
    const Floats limit = broadcast(bound);
    int64_t count = 0;
#if defined(__AVX512F__)
    for (int64_t v = 0; v < vectors; ++v)
        count += __builtin_popcount(lanes_above(load(scores + v * lanes), limit));
#else
    // Lane by lane: a comparison gives -1.
    Integers counts{}, more{};
    int64_t v = 0;
    for (; v + 2 <= vectors; v += 2) {
        counts -= (Integers)(load(scores + v * lanes) > limit);
        more -= (Integers)(load(scores + (v + 1) * lanes) > limit);
    }
    if (v < vectors) counts -= (Integers)(load(scores + v * lanes) > limit);
    counts += more;
    for (int lane = 0; lane < lanes; ++lane) count += counts[lane];
#endif
    return count;
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

// Between two bounds, one that `wanted` scores exceed, if the logarithm of their number falls
// linearly.
inline float bound_between(float low, float high, float above_low, float above_high, float wanted) {
    const float least = rough_log(above_high > 0 ? above_high : 0.5f), most = rough_log(above_low);
    const float share = (most - rough_log(wanted)) / (most - least);
    return low + (high - low) * (share < least_share  ? least_share
                                 : share > most_share ? most_share
                                                      : share);
}

// A cut that keeps at least k and at most k + slack scores, or exactly k where ties leave no such
// bound. `guess`: where to look first; `highest`: no score exceeds it; `low`: a bound that more
// than k + slack are known to exceed, `above_low` of them, or minus infinity.
//
// Counting is cheap and the distribution is unknown, so: step down from the guess until enough
// scores lie above, then close in, first as if the logarithm of the count fell linearly (it
// nearly does in a tail), then by halving the floats that are left, which ends after 32 steps.
inline Cut find_cut(const float* scores, int64_t vectors, int64_t k, int64_t slack, float guess,
                    float highest, float low, int64_t above_low) {
    float high = highest;  // fewer than k lie above high; too many above low
    int64_t above_high = 0;
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
            bound = bound_between(low, high, (float)above_low, (float)above_high,
                                  (float)k + 0.5f * (float)slack);
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

}  // namespace HEADLOOM_INSTRUCTION_SET
}  // namespace headloom
