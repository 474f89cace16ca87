// The running softmax of a row: its reference, its sum, and what its entropy needs, kept while the
// row's scores stream by in tiles.
#pragma once

#include "vector.h"

namespace headloom {
namespace HEADLOOM_INSTRUCTION_SET {

// From here on a score is far from 0: its product with log2 e, which float32 rounds by 2^-4 or
// more, would change the powers; above 2e38 it is no number at all.
constexpr float far_scores = 1048576.0f;

// A row's weights are summed as powers of 2 relative to a level: 2^(s log2 e - level), where the
// level is about the highest score so far. It need not be the highest: only a score well above it
// raises it, so that sums are rarely scaled. The sums are kept lane by lane and added up once, at
// the end of the row.
struct Running {
    Floats total{};             // of the powers
    Floats moment{};            // of the powers times their exponents
    float maximum = -infinity;  // the score that set the level
    float level = -infinity;

    // Exponents that a score may have without raising the level: powers up to 16.
    static constexpr float margin = 4.0f;

    // The level of a row whose highest score is far from 0 is that score itself, without a margin,
    // and its exponents are made of differences of scores.
    static bool is_far(float score) { return !(__builtin_fabsf(score) < far_scores); }
    bool far() const { return level != -infinity && is_far(maximum); }

    // Show the row a score that may be its highest. Returns the factor by which sums made under the
    // old level shrink.
    float raise(float higher) {
        if (!(higher > limit())) return 1.0f;
        Running target;
        target.maximum = higher;
        // The product of a score that is far may be infinite.
        target.level = is_far(higher) ? 0.0f : rounded(higher * log2_of_e);
        return follow(target);
    }

    // Take the level of another row, which is not below. Returns the same factor.
    float follow(const Running& target) {
        const bool first = level == -infinity;
        // A level is the highest score less what rounding took from it.
        const float step =
            fused_multiply_add && !far() && !target.far()
                ? level - target.level
                : difference(maximum, target.maximum) * log2_of_e + (target.lost() - lost());
        maximum = target.maximum;
        level = target.level;
        if (first) return 1.0f;  // nothing was seen: every sum is 0
        const float factor = __builtin_exp2f(step);
        moment = factor == 0 ? Floats{} : factor * (moment + total * step);
        total *= factor;
        return factor;
    }

    // A score above this raises the level.
    float limit() const { return far() ? maximum : (level + margin) * log_of_2; }

    // log2 of the power of a score. Without fused multiply-adds a large product would round off
    // the digits that the difference is made of.
    Floats exponents(Floats scores) const {
        return far() ? (scores - maximum) * log2_of_e : exponents_near(scores);
    }
    Floats exponents_near(Floats scores) const {
        if (fused_multiply_add) return multiply_subtract(scores, log2_of_e, base());
        return (scores - base()) * log2_of_e;
    }

    float exponent(float score) const {
        if (far()) return difference(score, maximum) * log2_of_e;
        return fused_multiply_add ? __builtin_fmaf(score, log2_of_e, -base())
                                  : (score - base()) * log2_of_e;
    }

    // The same row for scores that were all moved near 0: see `brought_near`.
    Running near() const {
        Running row = *this;
        row.maximum = row.level = 0;
        return row;
    }

    // The log-sum-exp of scores whose powers sum to e^logarithm.
    float log_sum(float logarithm) const { return maximum + (logarithm - lost() * log_of_2); }

    // What exponents_near subtracts. A row that has seen nothing but minus infinity has no level.
    float base() const { return level == -infinity ? 0.0f : fused_multiply_add ? level : maximum; }

private:
    // What rounding took from the level: known exactly.
    float lost() const {
        const bool exact = !fused_multiply_add || level == -infinity || far();
        return exact ? 0.0f : __builtin_fmaf(maximum, log2_of_e, -level);
    }

    // a - b, where two infinities differ by nothing.
    static float difference(float a, float b) { return a == b ? 0.0f : a - b; }

    // x as a float: kept from being fused into what is done with it.
    static float rounded(float x) {
        volatile float kept = x;
        return kept;
    }
};

// Exponents for the moment: hidden keys weigh 0, but 0 times minus infinity is NaN.
inline Floats bounded_exponents(Floats x) { return maximum(broadcast(-200.0f), x); }

// What the exponentials of a row's scores are made with: the row itself, unless its scores are far
// from 0; those are moved by its highest first.
inline Running brought_near(const Running& row, float* scores, int64_t vectors) {
    if (__builtin_expect(!row.far(), true)) return row;
    for (int64_t v = 0; v < vectors; ++v)
        store(scores + v * lanes, load(scores + v * lanes) - row.maximum);
    return row.near();
}

// The same, but only what is then subtracted from the exponents of these scores.
inline float base_near(const Running& row, float* scores, int64_t vectors) {
    if (__builtin_expect(!row.far(), true)) return row.base();
    brought_near(row, scores, vectors);
    return 0.0f;
}

// Replace whole vectors of scores by their powers, and add them to the row: first among themselves,
// so that the error of the sum does not grow with the row.
template <bool with_moment>
inline void exponentiate(Running& row, float* scores, int64_t vectors) {
    const Running fixed = brought_near(row, scores, vectors);
    Floats total{}, moment{};
    for (int64_t v = 0; v < vectors; ++v) {
        const Floats x = fixed.exponents_near(load(scores + v * lanes));
        const Floats p = power_of_2<5>(x);
        total += p;
        if (with_moment) moment += p * bounded_exponents(x);
        store(scores + v * lanes, p);
    }
    row.total += total;
    if (with_moment) row.moment += moment;
}

}  // namespace HEADLOOM_INSTRUCTION_SET
}  // namespace headloom
