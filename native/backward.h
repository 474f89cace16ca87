// The backward pass: scores are recomputed tile by tile from queries, keys and lse, so that it
// needs no more memory than its results.
//
// One task owns a range of keys of one key/value head. It adds to the gradients of those keys and
// values in place, tile by tile, while the queries of every head in the group pass by.
#pragma once

#include <algorithm>

#include "forward.h"
#include "gradients.h"

namespace headloom {
namespace HEADLOOM_INSTRUCTION_SET {

// Keys of a tile, and its scores from one row to the next.
constexpr int64_t backward_tile = usual_tile;
constexpr int64_t backward_row = backward_tile + row_padding;

// A weight whose score is this far below its row's log-sum-exp is none, to the entropy.
constexpr float least_logarithm = -100.0f;

// Scratch memory for one tile of scores and its gradients.
struct BackwardTile {
    float* queries;         // (block_queries, padded depth), scaled
    float* output;          // dO, (block_queries, padded value depth)
    int64_t score_row;      // numbers from one row of the next four to the next
    float* scores;          // (block_queries, score_row): S, then P
    float* gradients;       // dP, then dS
    float* slopes;          // of the soft cap, or nullptr
    float* relation;        // as in Block
    float* value_relation;  // dO . a^V by distance
    float* by_distance;     // dS, then P, summed by distance
    float* key_panels;      // the tile's keys, turned
    float* value_panels;    // the tile's values, turned
    float* key_rows;        // the tile's keys, in rows, scaled
    float* key_table_panels;
    float* value_table_panels;
    float* key_table_rows;
    int64_t table_row;
};

inline BackwardTile lay_out_backward(const Call& call, const Gradients& to, Workspace& space) {
    BackwardTile t{};
    t.table_row = round_up(2 * call.clip + 1, panel_columns);
    t.queries = space.take<float>(block_queries * to.padded_depth);
    t.output = space.take<float>(block_queries * to.padded_value_depth);
    t.score_row = backward_row;
    t.scores = space.take<float>(block_queries * backward_row + lanes);
    t.gradients = space.take<float>(block_queries * backward_row + lanes);
    if (call.softcap != 0) t.slopes = space.take<float>(block_queries * backward_row + lanes);
    t.key_panels = space.take<float>(backward_tile * to.padded_depth);
    t.value_panels = space.take<float>(backward_tile * to.padded_value_depth);
    t.key_rows = space.take<float>(backward_tile * to.padded_depth);
    if (call.key_table.data) {
        t.relation = space.take<float>(block_queries * t.table_row);
        t.key_table_panels = space.take<float>(t.table_row * to.padded_depth);
        t.key_table_rows = space.take<float>(t.table_row * to.padded_depth);
    }
    if (call.value_table.data) {
        t.value_relation = space.take<float>(block_queries * t.table_row);
        t.value_table_panels = space.take<float>(t.table_row * to.padded_value_depth);
    }
    if (call.key_table.data || call.value_table.data)
        t.by_distance = space.take<float>(block_queries * t.table_row);
    return t;
}

// Rows of float32 in whole vectors, `padded` columns apart, the columns past `columns` zero.
inline void copy_padded(const Tensor& tensor, bool bfloat16, int64_t b, int64_t h, int64_t first,
                        int64_t end, int64_t columns, int64_t padded, float factor, float* to) {
    for (int64_t i = first; i < end; ++i, to += padded) {
        copy_row(tensor, bfloat16, b, h, i, columns, 1.0f, to);
        if (factor != 1.0f)
            for (int64_t d = 0; d < columns; ++d) to[d] *= factor;
        for (int64_t d = columns; d < padded; ++d) to[d] = 0;
    }
}

// Zeros in some rows of a gradient: by the task that adds to them, just before it does.
inline void clear_rows(float* gradient, int64_t first, int64_t rows, int64_t columns) {
    // Not memset: a gradient without rows has no address.
    std::fill_n(gradient + first * columns, rows * columns, 0.0f);
}

// Which columns of a block's cells its rows see, group by group: what lies outside is 0, and no
// product counts it. Under a causal mask that is up to half of them.
struct Seen {
    static constexpr int64_t groups = (block_queries + group_rows - 1) / group_rows;
    Range columns[groups];

    static Seen all(int64_t count) {
        Seen seen;
        for (Range& range : seen.columns) range = {0, count};
        return seen;
    }

    Range of_row(int64_t row) const { return columns[row / group_rows]; }

    // The rows, whole groups of them, that see some of the columns.
    Range rows(Range of, int64_t count) const {
        Range found;
        for (int64_t row = 0; row < count; row += group_rows)
            if (!intersection(of_row(row), of).empty())
                found = hull(found, {row, smaller(row + group_rows, count)});
        return found;
    }
};

// to[:, 0 .. columns) = rows of a . columns of the panels, for every row of a block, where seen.
inline void multiply_panels(int64_t rows, const float* a, int64_t a_row, const float* panels,
                            int64_t depth, int64_t columns, float* to, int64_t to_row,
                            const Seen& seen) {
    for (int64_t panel = 0; panel < columns; panel += panel_columns)
        for (int64_t row = 0; row < rows; row += group_rows)
            if (!intersection(seen.of_row(row), {panel, panel + panel_columns}).empty())
                multiply_rows<2, false>((int)smaller(group_rows, rows - row), a + row * a_row,
                                        a_row, 1, panels + panel * depth, panel_columns,
                                        to + row * to_row + panel, to_row, depth);
}

// to[t, :] += sum over rows i of a[i, t] * b[i, :], for `count` columns t of a.
inline void add_turned(int64_t count, int64_t rows, const float* a, int64_t a_row, const float* b,
                       int64_t b_row, int64_t columns, float* to, int64_t to_row,
                       const Seen& seen) {
    for (int64_t t = 0; t < count; t += group_rows) {
        const int64_t end = smaller(t + group_rows, count);
        const Range of = seen.rows({t, end}, rows);
        if (!of.empty())
            multiply<true>((int)(end - t), columns, a + of.first * a_row + t, 1, a_row,
                           b + of.first * b_row, b_row, to + t * to_row, to_row, of.end - of.first);
    }
}

// to[i, :] += sum over t of a[i, t] * b[t, :].
inline void add_product(int64_t rows, const float* a, int64_t a_row, const float* b, int64_t b_row,
                        int64_t columns, float* to, int64_t to_row, const Seen& seen) {
    for (int64_t i = 0; i < rows; i += group_rows) {
        const Range of = seen.of_row(i);
        if (!of.empty())
            multiply<true>((int)smaller(group_rows, rows - i), columns, a + i * a_row + of.first,
                           a_row, 1, b + of.first * b_row, b_row, to + i * to_row, to_row,
                           of.end - of.first);
    }
}

// One row of a tile: from scores and dP to P and dS, both zero where the row sees nothing.
// `tile`: the keys that any row of the block sees in this tile.
inline void differentiate_row(const Call& call, const Gradients& to, const BackwardTile& t,
                              int64_t b, int64_t h, int64_t query, int64_t row, Range tile) {
    float* scores = t.scores + row * t.score_row;
    float* gradients = t.gradients + row * t.score_row;
    const Range keys = intersection(visible_keys(call, b, query), tile);
    const int64_t width = vectors_of(tile.end - tile.first) * lanes;
    if (keys.empty()) {
        std::memset(scores, 0, width * sizeof(float));
        std::memset(gradients, 0, width * sizeof(float));
        return;
    }
    const int64_t start = keys.first - tile.first, length = keys.end - keys.first;
    float* slopes = t.slopes ? t.slopes + row * t.score_row + start : nullptr;
    if (has_rules(call))
        apply_rules(call, b, h, query, keys, t.relation ? t.relation + row * t.table_row : nullptr,
                    scores + start, slopes);
    if (t.value_relation)
        add_relation(call, t.value_relation + row * t.table_row, query, keys, gradients + start);
    for (int64_t j = start + length; j < start + vectors_of(length) * lanes; ++j) {
        scores[j] = -infinity;
        gradients[j] = 0;
    }
    const int64_t at = (b * call.heads + h) * call.queries_count + query;
    const float lse = to.lse[at], subtract = to.subtract[at];
    const float by_entropy = to.by_entropy ? to.by_entropy[at] : 0.0f;
    for (int64_t j = start; j < start + length; j += lanes) {
        const Floats x = load(scores + j) - lse;
        const Floats p = exponential(x);
        Floats factor = load(gradients + j) - subtract;
        if (to.by_entropy) factor -= by_entropy * maximum(broadcast(least_logarithm), x);
        store(scores + j, p);
        store(gradients + j, p * factor);
    }
    if (to.kept) {
        const int32_t* kept_keys = to.kept_keys + at * to.kept;
        const float* kept = to.kept_scores + at * to.kept;
        for (int64_t n = 0; n < to.kept; ++n)
            if (kept_keys[n] >= keys.first && kept_keys[n] < keys.end)
                gradients[kept_keys[n] - tile.first] += kept[n];
    }
    for (int64_t j = 0; j < start; ++j) scores[j] = gradients[j] = 0;
    for (int64_t j = start + length; j < width; ++j) scores[j] = gradients[j] = 0;

    if (to.bias) {
        float* bias = to.bias + at * call.keys_count + tile.first;
        for (int64_t j = start; j < start + length; ++j) bias[j] += gradients[j];
    }
    if (to.key_bias) {
        float* bias = to.key_bias + (b * call.heads + h) * call.keys_count + tile.first;
        for (int64_t j = start; j < start + length; ++j) bias[j] += gradients[j];
    }
    if (to.offset_bias) {
        const int64_t distances = call.queries_count + call.keys_count - 1;
        const int64_t piece = tile.first / to.piece_keys;
        float* bias = to.offset_bias + ((piece * call.batch + b) * call.heads + h) * distances +
                      (tile.first - query + call.queries_count - 1);
        for (int64_t j = start; j < start + length; ++j) bias[j] += gradients[j];
    }
    if (slopes)
        for (int64_t j = 0; j < length; ++j) gradients[start + j] *= slopes[j];
}

// Gradients of a relative table, from P or dS summed by distance; and what the key table's
// distances give back to the queries.
inline void add_table_gradients(const Call& call, const Gradients& to, const BackwardTile& t,
                                int64_t b, int64_t h, int64_t first_query, int64_t rows, Range tile,
                                float* query_gradients) {
    const int64_t distances = 2 * call.clip + 1;
    const Seen every = Seen::all(distances);
    const int64_t copy = (tile.first / to.piece_keys * call.batch + b) * call.heads + h;
    const auto sum_rows = [&](const float* cells) {
        std::memset(t.by_distance, 0, rows * t.table_row * sizeof(float));
        for (int64_t row = 0; row < rows; ++row) {
            const Range keys = intersection(visible_keys(call, b, first_query + row), tile);
            if (!keys.empty())
                sum_by_distance(call, cells + row * t.score_row + (keys.first - tile.first),
                                first_query + row, keys, t.by_distance + row * t.table_row);
        }
    };
    if (call.key_table.data) {
        sum_rows(t.gradients);
        add_product(rows, t.by_distance, t.table_row, t.key_table_rows, to.padded_depth,
                    to.padded_depth, query_gradients, to.padded_depth, every);
        if (to.key_table)
            add_turned(distances, rows, t.by_distance, t.table_row, t.queries, to.padded_depth,
                       to.padded_depth, to.key_table + copy * distances * to.padded_depth,
                       to.padded_depth, every);
    }
    if (to.value_table) {
        sum_rows(t.scores);
        add_turned(distances, rows, t.by_distance, t.table_row, t.output, to.padded_value_depth,
                   to.padded_value_depth, to.value_table + copy * distances * to.padded_value_depth,
                   to.padded_value_depth, every);
    }
}

// Prepare what one head's relative tables need, once for each pass of its queries.
inline void prepare_tables(const Call& call, const Gradients& to, const BackwardTile& t,
                           int64_t h) {
    const int64_t distances = 2 * call.clip + 1;
    if (call.key_table.data) {
        pack_panels(call.key_table, false, 0, h, 0, distances, call.depth, t.key_table_panels);
        copy_padded(call.key_table, false, 0, h, 0, distances, call.depth, to.padded_depth,
                    call.scale, t.key_table_rows);
    }
    if (call.value_table.data) {
        pack_panels(call.value_table, false, 0, h, 0, distances, call.value_depth,
                    t.value_table_panels);
    }
}

// One block of queries against one tile of keys.
inline void backward_block(const Call& call, const Gradients& to, const BackwardTile& t, int64_t b,
                           int64_t h, int64_t first_query, Range tile) {
    const int64_t rows = smaller(block_queries, call.queries_count - first_query);
    Seen by_group;
    Range seen;
    for (int64_t row = 0; row < rows; ++row) {
        const Range keys = intersection(visible_keys(call, b, first_query + row), tile);
        Range& group = by_group.columns[row / group_rows];
        group = hull(group, keys);
        seen = hull(seen, keys);
    }
    if (seen.empty()) return;
    // From here on the tile is what is seen of it, from a whole panel on.
    const int64_t skipped = (seen.first - tile.first) / panel_columns * panel_columns;
    const int64_t first_key = tile.first + skipped;
    const Range inner{first_key, seen.end};
    const int64_t count = inner.end - inner.first;
    for (Range& group : by_group.columns)
        if (!group.empty()) group = {group.first - first_key, group.end - first_key};

    copy_padded(call.queries, call.bfloat16, b, h, first_query, first_query + rows, call.depth,
                to.padded_depth, call.scale, t.queries);
    copy_padded(to.output, false, b, h, first_query, first_query + rows, call.value_depth,
                to.padded_value_depth, 1.0f, t.output);
    multiply_panels(rows, t.queries, to.padded_depth, t.key_panels + skipped * call.depth,
                    call.depth, count, t.scores, t.score_row, by_group);
    multiply_panels(rows, t.output, to.padded_value_depth,
                    t.value_panels + skipped * call.value_depth, call.value_depth, count,
                    t.gradients, t.score_row, by_group);
    const Seen every = Seen::all(2 * call.clip + 1);
    if (t.relation)
        multiply_panels(rows, t.queries, to.padded_depth, t.key_table_panels, call.depth,
                        2 * call.clip + 1, t.relation, t.table_row, every);
    if (t.value_relation)
        multiply_panels(rows, t.output, to.padded_value_depth, t.value_table_panels,
                        call.value_depth, 2 * call.clip + 1, t.value_relation, t.table_row, every);
    for (int64_t row = 0; row < rows; ++row)
        differentiate_row(call, to, t, b, h, first_query + row, row, inner);

    const int64_t kv_row = (b * call.kv_heads + h / (call.heads / call.kv_heads)) * call.keys_count;
    const int64_t piece = tile.first / to.piece_keys;
    float* query_gradients =
        to.queries +
        (((piece * call.batch + b) * call.heads + h) * call.queries_count + first_query) *
            to.padded_depth;
    add_turned(count, rows, t.scores, t.score_row, t.output, to.padded_value_depth,
               to.padded_value_depth, to.values + (kv_row + first_key) * to.padded_value_depth,
               to.padded_value_depth, by_group);
    add_turned(count, rows, t.gradients, t.score_row, t.queries, to.padded_depth, to.padded_depth,
               to.keys + (kv_row + first_key) * to.padded_depth, to.padded_depth, by_group);
    add_product(rows, t.gradients, t.score_row, t.key_rows + skipped * to.padded_depth,
                to.padded_depth, to.padded_depth, query_gradients, to.padded_depth, by_group);
    if (t.by_distance)
        add_table_gradients(call, to, t, b, h, first_query, rows, inner, query_gradients);
}

}  // namespace HEADLOOM_INSTRUCTION_SET
}  // namespace headloom
