// The running softmax of a row: its maximum, its sum, and what its entropy needs, kept while the
// row's scores stream by in tiles.
#pragma once

#include "vector.h"

namespace weft {
namespace WEFT_INSTRUCTION_SET {

// Of the scores s_j seen so far: their maximum m, sum of e^(s_j - m), and sum of
// e^(s_j - m) (s_j - m), from which the entropy follows. The sums are kept lane by lane and added
// up once, at the end of the row.
struct Running {
    Floats total{};
    Floats moment{};
    float maximum = -infinity;

    // Change the maximum to a higher one. Returns the factor by which sums made under the old one
    // shrink.
    float raise(float higher) {
        if (!(higher > maximum)) return 1.0f;
        if (maximum == -infinity) {
            maximum = higher;
            return 1.0f;  // nothing was seen: every sum is 0
        }
        const float factor = __builtin_expf(maximum - higher);
        moment = factor * (moment + total * (maximum - higher));
        total *= factor;
        maximum = higher;
        return factor;
    }
};

// Replace whole vectors of scores by e^(score - maximum), and add them to the row.
template <bool with_moment>
inline void exponentiate(Running& row, float* scores, int64_t vectors) {
    // A row that has seen nothing but minus infinity has no maximum to subtract.
    const Floats highest = broadcast(row.maximum == -infinity ? 0.0f : row.maximum);
    Floats total = row.total, moment = row.moment;
    for (int64_t v = 0; v < vectors; ++v) {
        const Floats x = load(scores + v * lanes) - highest;
        const Floats p = exponential(x);
        total += p;
        // Hidden keys weigh 0, but 0 times minus infinity is NaN: bound the factor.
        if (with_moment) moment += p * maximum(broadcast(-100.0f), x);
        store(scores + v * lanes, p);
    }
    row.total = total;
    if (with_moment) row.moment = moment;
}

}  // namespace WEFT_INSTRUCTION_SET
}  // namespace weft
