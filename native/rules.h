// What happens to a tile's scores between the product and the softmax, one row at a time:
//
//     score = softcap(scaled product + relative scores) + bias by distance + bias, -inf if hidden
#pragma once

#include "vector.h"
#include "visible.h"

namespace headloom {
namespace HEADLOOM_INSTRUCTION_SET {

// Whether any rule changes the scores of this call after the product.
inline bool has_rules(const Call& call) {
    return call.softcap != 0 || call.bias.data || call.offset_bias.data || call.allowed.data ||
           call.key_table.data;
}

// The distances at which Shaw's positions change, as keys of a query: before `first` all keys
// are at distance -clip, from `end` on at +clip, between them each has its own.
inline Range relative_band(const Call& call, int64_t query, Range keys) {
    const int64_t centre = query + call.relative_offset;
    const int64_t first = smaller(larger(centre - call.clip, keys.first), keys.end);
    return {first, larger(smaller(centre + call.clip + 1, keys.end), first)};
}

// relation[clip(j - i)] + scores[j] for the keys of a row; scores[0] is the score of keys.first.
inline void add_relation(const Call& call, const float* relation, int64_t query, Range keys,
                         float* scores) {
    const Range band = relative_band(call, query, keys);
    const int64_t centre = query + call.relative_offset;
    int64_t j = keys.first;
    for (; j + lanes <= band.first; j += lanes)
        store(scores + (j - keys.first), load(scores + (j - keys.first)) + relation[0]);
    for (; j < band.first; ++j) scores[j - keys.first] += relation[0];
    const int64_t row = call.clip - centre;  // of the table, for key 0
    for (; j + lanes <= band.end; j += lanes)
        store(scores + (j - keys.first),
              load(scores + (j - keys.first)) + load(relation + (row + j)));
    for (; j < band.end; ++j) scores[j - keys.first] += relation[row + j];
    const float last = relation[2 * call.clip];
    for (; j + lanes <= keys.end; j += lanes)
        store(scores + (j - keys.first), load(scores + (j - keys.first)) + last);
    for (; j < keys.end; ++j) scores[j - keys.first] += last;
}

// Weights summed by distance, the inverse of add_relation: by_distance[clip(j - i)] += weights[j].
inline void sum_by_distance(const Call& call, const float* weights, int64_t query, Range keys,
                            float* by_distance) {
    const Range band = relative_band(call, query, keys);
    const int64_t centre = query + call.relative_offset;
    const auto total = [&](int64_t first, int64_t end) {
        Floats sums{};
        int64_t j = first;
        for (; j + lanes <= end; j += lanes) sums += load(weights + (j - keys.first));
        if (j < end) sums += load_part(weights + (j - keys.first), end - j);
        return sum(sums);
    };
    if (keys.first < band.first) by_distance[0] += total(keys.first, band.first);
    const int64_t row = call.clip - centre;  // of the table, for key 0
    int64_t j = band.first;
    for (; j + lanes <= band.end; j += lanes)
        store(by_distance + (row + j),
              load(by_distance + (row + j)) + load(weights + (j - keys.first)));
    for (; j < band.end; ++j) by_distance[row + j] += weights[j - keys.first];
    if (band.end < keys.end) by_distance[2 * call.clip] += total(band.end, keys.end);
}

// Apply every rule of the call to the scores of one query with the keys of a range; scores[0] is
// the score of keys.first. `relation`: the query's relative scores by distance, or nullptr.
// `slopes`: where to write the soft cap's derivative 1 - tanh^2, or nullptr.
inline void apply_rules(const Call& call, int64_t b, int64_t h, int64_t query, Range keys,
                        const float* relation, float* scores, float* slopes = nullptr) {
    const int64_t length = keys.end - keys.first;
    if (relation) add_relation(call, relation, query, keys, scores);
    if (call.softcap != 0) {
        const float cap = call.softcap, inverse = 1.0f / cap;
        for (int64_t j = 0; j < length; j += lanes) {
            const Floats bent = hyperbolic_tangent(load(scores + j) * inverse);
            store(scores + j, cap * bent);
            if (slopes) store(slopes + j, 1.0f - bent * bent);
        }
    }
    if (call.offset_bias.data) {
        const float* bias =
            call.offset_bias.at<float>(0, 0, h) + (keys.first - query + call.queries_count - 1);
        for (int64_t j = 0; j < length; j += lanes)
            store(scores + j, load(scores + j) + load_part(bias + j, length - j));
    }
    if (call.bias.data) {
        const float* bias = call.bias.at<float>(b, h, query) + keys.first;
        for (int64_t j = 0; j < length; j += lanes)
            store(scores + j, load(scores + j) + load_part(bias + j, length - j));
    }
    if (call.allowed.data) {
        const uint8_t* allowed = call.allowed.at<uint8_t>(b, h, query) + keys.first;
        for (int64_t j = 0; j < length; ++j) scores[j] = allowed[j] ? scores[j] : -infinity;
    }
}

// How many keys of a range a query may look at, once the rules have been applied.
inline int32_t keys_seen(const Call& call, Range keys, const float* scores) {
    if (!call.allowed.data && !call.bias.data && !call.offset_bias.data)
        return (int32_t)(keys.end - keys.first);
    int32_t seen = 0;
    for (int64_t j = 0; j < keys.end - keys.first; ++j) seen += scores[j] != -infinity;
    return seen;
}

}  // namespace HEADLOOM_INSTRUCTION_SET
}  // namespace headloom
