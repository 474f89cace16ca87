// Attention over short sequences of one range of keys, output and log-sum-exp alone.
//
// Where all keys of a row fit one small tile nothing needs to stream: each lane is a query, each
// row of the tile a key. So keys and values are read where they are and only the keys that are
// seen; the softmax needs no sums across lanes, no running state and no scaling of what came
// before; and the weights are normalised before the product, which writes the output where it
// belongs.
#pragma once

#include <algorithm>

#include "choose.h"
#include "packing.h"
#include "softmax.h"

namespace weft {
namespace WEFT_INSTRUCTION_SET {

struct ShortSpace {
    float* queries;  // a panel: (depth, panel_columns)
    float* scores;   // (keys, panel_columns)
};

inline ShortSpace lay_out_short(const Call& call, Workspace& space) {
    return {space.take<float>(call.depth * panel_columns),
            space.take<float>(call.keys_count * panel_columns)};
}

// The scores of one vector of queries to normalised weights, their log-sum-exp to `lse` if it is
// asked for. Element [key * panel_columns + lane] is a query's score with a key.
inline void softmax_columns(float* scores, int64_t keys, float scale, int64_t queries, float* lse) {
    Floats highest = broadcast(-infinity);
    for (int64_t j = 0; j < keys; ++j) {
        const Floats scaled = load(scores + j * panel_columns) * scale;
        store(scores + j * panel_columns, scaled);
        highest = maximum(scaled, highest);
    }
    // A query that sees nothing but minus infinity has no level to subtract.
    const Floats base = highest == -infinity ? Floats{} : highest;
    // Queries whose scores are far from 0 have them moved by the highest; see Running.
    const Floats size = maximum(base, -base);
    const Floats moved = size < far_scores && fused_multiply_add ? Floats{} : base;
    const Floats level = (base - moved) * log2_of_e;
    const bool any_moved = !fused_multiply_add || !(largest(size) < far_scores);
    Floats total{};
    const auto weigh = [&](int64_t j, Floats score) {
        const Floats p = power_of_2<5>(multiply_subtract(score, log2_of_e, level));
        total += p;
        store(scores + j * panel_columns, p);
    };
    if (any_moved)
        for (int64_t j = 0; j < keys; ++j) weigh(j, load(scores + j * panel_columns) - moved);
    else
        for (int64_t j = 0; j < keys; ++j) weigh(j, load(scores + j * panel_columns));
    const Floats inverse = total == 0.0f ? Floats{} : 1.0f / total;
    for (int64_t j = 0; j < keys; ++j)
        store(scores + j * panel_columns, load(scores + j * panel_columns) * inverse);
    for (int64_t lane = 0; lane < queries && lse; ++lane) {
        // What rounding took from the level is known exactly.
        const float lost = fused_multiply_add && moved[lane] == 0
                               ? __builtin_fmaf(base[lane], log2_of_e, -level[lane])
                               : 0.0f;
        lse[lane] = total[lane] == 0 ? -infinity
                                     : base[lane] + (__builtin_logf(total[lane]) - lost * log_of_2);
    }
}

// All queries of one head.
inline void forward_short(const Call& call, int64_t b, int64_t h, int64_t kv_head,
                          const ShortSpace& space) {
    const Range seen = visible_keys(call, b, 0);
    const int64_t keys = seen.empty() ? 0 : seen.end - seen.first;
    const int64_t head_row = (b * call.heads + h) * call.queries_count;
    float* output = (float*)call.output + head_row * call.value_depth;
    float* lse = call.lse ? call.lse + head_row : nullptr;
    if (keys == 0) {
        std::fill_n(output, call.queries_count * call.value_depth, 0.0f);
        for (int64_t i = 0; i < call.queries_count && lse; ++i) lse[i] = -infinity;
        return;
    }
    const float* key_rows = call.keys.at<float>(b, kv_head, seen.first);
    const float* value_rows = call.values.at<float>(b, kv_head, seen.first);
    for (int64_t first = 0; first < call.queries_count; first += panel_columns) {
        const int64_t queries = smaller(panel_columns, call.queries_count - first);
        pack_panel(call.queries, false, b, h, first, call.queries_count, call.depth, space.queries);
        for (int64_t j = 0; j < keys; j += group_rows)
            multiply_rows<2, false>((int)smaller(group_rows, keys - j),
                                    key_rows + j * call.keys.row, call.keys.row, 1, space.queries,
                                    panel_columns, space.scores + j * panel_columns, panel_columns,
                                    call.depth);
        for (int64_t column = 0; column < queries; column += lanes)
            softmax_columns(space.scores + column, keys, call.scale,
                            smaller(lanes, queries - column), lse ? lse + first + column : nullptr);
        for (int64_t i = 0; i < queries; i += group_rows)
            multiply<false>((int)smaller(group_rows, queries - i), call.value_depth,
                            space.scores + i, 1, panel_columns, value_rows, call.values.row,
                            output + (first + i) * call.value_depth, call.value_depth, keys);
    }
}

}  // namespace WEFT_INSTRUCTION_SET
}  // namespace weft
