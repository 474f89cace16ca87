// What a row comes to once all its keys have passed: its output, its totals and its strongest
// edges.
#pragma once

#include "ordering.h"
#include "packing.h"
#include "softmax.h"

namespace headloom {
namespace HEADLOOM_INSTRUCTION_SET {

inline void write_output(const Call& call, int64_t row, const float* sums, float factor) {
    if (call.bfloat16) {
        uint16_t* to = (uint16_t*)call.output + row * call.value_depth;
        for (int64_t d = 0; d < call.value_depth; ++d) to[d] = to_bfloat16(sums[d] * factor);
    }
    float* floats = call.bfloat16 ? call.exact_output : (float*)call.output;
    if (!floats) return;
    floats += row * call.value_depth;
    for (int64_t d = 0; d < call.value_depth; ++d) floats[d] = sums[d] * factor;
}

// The strongest edges of row `at`, ordered, and their weights. Returns the mass that is on them.
inline float write_edges(const Call& call, int64_t at, const Running& running, float inverse,
                         Candidates& candidates) {
    float* scores = call.kept_scores + at * call.kept;
    float* weights = call.kept_weights + at * call.kept;
    int32_t* keys = call.kept_keys + at * call.kept;
    const int64_t kept = order_strongest(candidates, call.kept, scores, keys);
    LongSum mass;
    for (int64_t n = 0; n < kept; n += lanes) {
        const Floats x = running.exponents(load_part(scores + n, kept - n));
        Floats p = power_of_2<5>(x) * inverse;
        if (n + lanes > kept)
            for (int64_t lane = kept - n; lane < lanes; ++lane) p[lane] = 0;
        mass.add(p);
        store_part(weights + n, p, kept - n);
    }
    for (int64_t n = kept; n < call.kept; ++n) {
        scores[n] = -infinity;
        weights[n] = 0;
        keys[n] = -1;
    }
    return sum(mass.total());
}

// The results of row `at`, counted over the whole call, from its streamed sums. Returns the factor
// that made the output of them.
inline float finish_row(const Call& call, int64_t head, int64_t at, Running& running,
                        const float* sums, int32_t count, Candidates& candidates) {
    float factor = 1.0f, sink_total = 0.0f;
    if (call.sinks.data) {
        const float sink = call.sinks.at<float>(0, 0, 0)[head];
        factor = running.raise(sink);
        // All that a softmax makes of a score that is infinite is no number.
        sink_total = sink == -infinity  ? 0.0f
                     : sink == infinity ? __builtin_nanf("")
                                        : __builtin_exp2f(running.exponent(sink));
    }
    const float total = sum(running.total), with_sink = total + sink_total;
    // A row that saw no key: no mass, and minus infinity for its logarithm.
    const bool blind = with_sink == 0;
    const float inverse = blind ? 0.0f : 1.0f / with_sink;
    write_output(call, at, sums, factor * inverse);
    if (!call.lse) return factor * inverse;
    const float logarithm = __builtin_logf(with_sink);
    call.lse[at] = blind ? -infinity : running.log_sum(logarithm);
    if (!call.entropy) return factor * inverse;
    const float entropy = (total * logarithm - sum(running.moment) * log_of_2) * inverse;
    // Of one key it is 0, not what rounding leaves of a difference.
    const bool certain = count == 1 && sink_total == 0;
    call.entropy[at] = blind || certain || entropy < 0 ? 0.0f : entropy;
    call.count[at] = count;
    const float mass = call.kept ? write_edges(call, at, running, inverse, candidates) : 0.0f;
    const float rest = (blind ? 0.0f : inverse * with_sink) - mass;
    call.rest[at] = rest < 0 ? 0.0f : rest;
    return factor * inverse;
}

}  // namespace HEADLOOM_INSTRUCTION_SET
}  // namespace headloom
