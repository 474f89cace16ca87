// The running softmax of a row: its reference, its sum, and what its entropy needs, kept while the
// row's scores stream by in tiles.
#pragma once

#include "vector.h"

namespace weft {
namespace WEFT_INSTRUCTION_SET {

// A row's weights are summed as powers of 2 relative to a level: 2^(s log2 e - level), where the
// level is about the highest score so far. It need not be the highest: only a score well above it
// raises it, so that sums are rarely scaled. The sums are kept lane by lane and added up once, at
// the end of the row.
struct Running {
    Floats total{};   // of the powers
    Floats moment{};  // of the powers times their exponents
    float maximum = -infinity;  // the score that set the level
    float level = -infinity;

    // Exponents that a score may have without raising the level: powers up to 16.
    static constexpr float margin = 4.0f;

    // Show the row a score that may be its highest. Returns the factor by which sums made under the
    // old level shrink.
    float raise(float higher) {
        if (!(higher * log2_of_e > level + margin)) return 1.0f;
        const float wanted = rounded(higher * log2_of_e);
        const bool first = level == -infinity;
        const float step =
            fused_multiply_add ? level - wanted : (maximum - higher) * log2_of_e;
        maximum = higher;
        level = wanted;
        if (first) return 1.0f;  // nothing was seen: every sum is 0
        const float factor = __builtin_exp2f(step);
        moment = factor * (moment + total * step);
        total *= factor;
        return factor;
    }

    // A score above this raises the level.
    float limit() const { return (level + margin) * log_of_2; }

    // log2 of the power of a score. Without fused multiply-adds a large product would round off
    // the digits that the difference is made of.
    Floats exponents(Floats scores) const {
        if (fused_multiply_add) return multiply_subtract(scores, log2_of_e, base());
        return (scores - base()) * log2_of_e;
    }

    float exponent(float score) const {
        return fused_multiply_add ? __builtin_fmaf(score, log2_of_e, -base())
                                  : (score - base()) * log2_of_e;
    }

    // The log-sum-exp of scores whose powers sum to e^logarithm.
    float log_sum(float logarithm) const {
        // What rounding took from the level is known exactly.
        const float lost =
            fused_multiply_add ? __builtin_fmaf(maximum, log2_of_e, -level) : 0.0f;
        return maximum + (logarithm - lost * log_of_2);
    }

private:
    // x as a float: kept from being fused into what is done with it.
    static float rounded(float x) {
        volatile float kept = x;
        return kept;
    }

    // A row that has seen nothing but minus infinity has no level to subtract.
    float base() const {
        return level == -infinity ? 0.0f : fused_multiply_add ? level : maximum;
    }
};

// Exponents for the moment: hidden keys weigh 0, but 0 times minus infinity is NaN.
inline Floats bounded_exponents(Floats x) { return maximum(broadcast(-200.0f), x); }

// Replace whole vectors of scores by their powers, and add them to the row: first among themselves,
// so that the error of the sum does not grow with the row.
template <bool with_moment>
inline void exponentiate(Running& row, float* scores, int64_t vectors) {
    const Running fixed = row;
    Floats total{}, moment{};
    for (int64_t v = 0; v < vectors; ++v) {
        const Floats x = fixed.exponents(load(scores + v * lanes));
        const Floats p = power_of_2<5>(x);
        total += p;
        if (with_moment) moment += p * bounded_exponents(x);
        store(scores + v * lanes, p);
    }
    row.total += total;
    if (with_moment) row.moment += moment;
}

}  // namespace WEFT_INSTRUCTION_SET
}  // namespace weft
