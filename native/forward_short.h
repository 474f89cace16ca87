// Attention over short sequences of one range of keys, with up to 32 edges of each row.
//
// Where all keys of a row fit one small tile nothing needs to stream: each lane is a query, each
// row of the tile a key. So keys and values are read where they are and only the keys that are
// seen; the softmax needs no sums across lanes, no running state and no scaling of what came
// before; and the weights are normalised before the product, which writes the output where it
// belongs.
#pragma once

#include "columns.h"
#include "ordering.h"
#include "packing.h"
#include "softmax.h"

namespace headloom {
namespace HEADLOOM_INSTRUCTION_SET {

struct ShortSpace {
    float* queries;       // a panel: (depth, panel_columns)
    float* scores;        // (keys, panel_columns)
    ColumnSpace columns;  // where edges are kept
    Candidates row;       // of one row, where its bits matter
};

inline ShortSpace lay_out_short(const Call& call, Workspace& space) {
    ShortSpace taken{};
    taken.queries = space.take<float>(call.depth * panel_columns);
    taken.scores = space.take<float>(call.keys_count * panel_columns);
    if (!keeps_edges(call)) return taken;
    taken.columns = lay_out_columns(call.keys_count, space);
    const int64_t room = round_up(call.keys_count, lanes) + lanes;
    taken.row.scores = space.take<float>(room);
    taken.row.keys = space.take<int32_t>(room);
    return taken;
}

// The softmax of a vector of queries, lane by lane: what its powers are made with, and their sums.
struct ColumnSoftmax {
    Floats base, moved, level, inverse;
    bool any_moved;
    Floats total{}, moment{};

    explicit ColumnSoftmax(Floats highest) {
        // A query that sees nothing but minus infinity has no level to subtract.
        base = highest == -infinity ? Floats{} : highest;
        // Queries whose scores are far from 0 have them moved by the highest; see Running.
        const Floats size = maximum(base, -base);
        moved = size < far_scores && fused_multiply_add ? Floats{} : base;
        level = (base - moved) * log2_of_e;
        any_moved = !fused_multiply_add || !(largest(size) < far_scores);
    }

    Floats exponents(Floats scores) const {
        return multiply_subtract(any_moved ? scores - moved : scores, log2_of_e, level);
    }

    Floats lse() const {
        // What rounding took from the level is known exactly.
        Floats lost{};
        if (fused_multiply_add)
            lost = moved == 0.0f ? multiply_subtract(base, log2_of_e, level) : lost;
        const Floats found = base + (natural_log(total) - lost * log_of_2);
        return total == 0.0f ? broadcast(-infinity) : found;
    }

    // Of one key it is 0, not what rounding leaves of a difference.
    Floats entropy(int64_t keys) const {
        const Floats found = (total * natural_log(total) - moment * log_of_2) * inverse;
        return (total == 0.0f) | (found < 0.0f) | (keys == 1 ? -1 : 0) ? Floats{} : found;
    }
};

// Scale the scores of one vector of queries. Element [key * panel_columns + lane] is a query's
// score with a key. Returns the highest.
inline Floats scale_columns(float* scores, int64_t keys, float scale) {
    // Four maxima at a time: one would wait for itself.
    Floats highest[4];
    for (Floats& one : highest) one = broadcast(-infinity);
    const auto look = [&](int64_t j, int n) {
        const Floats scaled = load(scores + j * panel_columns) * scale;
        store(scores + j * panel_columns, scaled);
        highest[n] = maximum(scaled, highest[n]);
    };
    int64_t j = 0;
    for (; j + 4 <= keys; j += 4)
        for (int n = 0; n < 4; ++n) look(j + n, n);
    for (; j < keys; ++j) look(j, 0);
    return maximum(maximum(highest[0], highest[1]), maximum(highest[2], highest[3]));
}

// Their scores to normalised weights.
template <bool with_moment, bool any_moved>
inline void weigh_columns(float* scores, int64_t keys, ColumnSoftmax& softmax) {
    Floats total{}, moment{};
    const Floats moved = softmax.moved, level = softmax.level;
    for (int64_t j = 0; j < keys; ++j) {
        const Floats score = load(scores + j * panel_columns);
        const Floats x = multiply_subtract(any_moved ? score - moved : score, log2_of_e, level);
        const Floats p = power_of_2<5>(x);
        total += p;
        if (with_moment) moment += p * bounded_exponents(x);
        store(scores + j * panel_columns, p);
    }
    const Floats inverse = total == 0.0f ? Floats{} : 1.0f / total;
    for (int64_t j = 0; j < keys; ++j)
        store(scores + j * panel_columns, load(scores + j * panel_columns) * inverse);
    softmax.total = total;
    softmax.moment = moment;
    softmax.inverse = inverse;
}

// The strongest edges of one vector of queries, as they are given for rows from `at` on: keys and
// scores first, while there are scores.
inline void find_edges(const Call& call, const float* scores, Floats highest, Range seen,
                       const ShortSpace& space, int64_t queries) {
    const ColumnSpace& columns = space.columns;
    const int64_t keys = seen.end - seen.first, edges = smaller(call.kept, keys);
    unsigned wrong = strongest_of_columns(scores, keys, highest, edges, columns);
    for (; wrong; wrong &= wrong - 1) {
        const int64_t lane = __builtin_ctz(wrong);
        if (lane >= queries) break;
        Candidates row = space.row;
        row.clear();
        for (int64_t j = 0; j < keys; ++j) {
            const float score = scores[j * panel_columns + lane];
            if (!(score > -infinity)) continue;
            row.scores[row.number] = score;
            row.keys[row.number++] = (int32_t)j;
        }
        float its_scores[sorted_keys];
        int32_t its_keys[sorted_keys];
        const int64_t number = order_strongest(row, call.kept, its_scores, its_keys);
        for (int64_t n = 0; n < edges; ++n) {
            columns.scores[n * lanes + lane] = n < number ? its_scores[n] : -infinity;
            columns.keys[n * lanes + lane] = n < number ? its_keys[n] : -1;
        }
    }
    for (int64_t r = 0; r < edges && seen.first; ++r) {
        const Integers place = load(columns.keys + r * lanes);
        store(columns.keys + r * lanes, place < 0 ? place : place + (int32_t)seen.first);
    }
}

// The graph of one vector of queries, rows from `at` on.
inline void write_graph(const Call& call, const ColumnSoftmax& softmax, int64_t keys,
                        const ColumnSpace& columns, int64_t at, int64_t queries) {
    const int64_t edges = smaller(call.kept, keys);
    LongSum mass;
    for (int64_t r = edges; r < round_up(edges, lanes); ++r)
        store(columns.weights + r * lanes, Floats{});
    for (int64_t r = 0; r < edges; ++r) {
        const Floats score = load(columns.scores + r * lanes);
        const Floats p = power_of_2<5>(softmax.exponents(score)) * softmax.inverse;
        const Floats weight = load(columns.keys + r * lanes) < 0 ? Floats{} : p;
        mass.add(weight);
        store(columns.weights + r * lanes, weight);
    }
    const Floats rest = softmax.inverse * softmax.total - mass.total();
    store_part(call.entropy + at, softmax.entropy(keys), queries);
    store_part(call.rest + at, (softmax.total == 0.0f) | (rest < 0.0f) ? Floats{} : rest, queries);
    store_part(call.count + at, broadcast((int32_t)keys), queries);
    if (!call.kept) return;
    const auto write = [&](const float* from, Floats empty, float* to) {
        write_columns(from, edges, call.kept, queries, empty, to + at * call.kept);
    };
    write(columns.scores, broadcast(-infinity), call.kept_scores);
    write(columns.weights, Floats{}, call.kept_weights);
    write((const float*)columns.keys, (Floats)broadcast(-1), (float*)call.kept_keys);
}

// The scores of one vector of queries, rows from `at` on, to normalised weights; what the call asks
// of the rows besides the output is written.
inline void softmax_columns(const Call& call, float* scores, Range seen, const ShortSpace& space,
                            int64_t at, int64_t queries) {
    const int64_t keys = seen.end - seen.first;
    const Floats highest = scale_columns(scores, keys, call.scale);
    ColumnSoftmax softmax(highest);
    if (call.kept) find_edges(call, scores, highest, seen, space, queries);
    if (call.entropy)
        softmax.any_moved ? weigh_columns<true, true>(scores, keys, softmax)
                          : weigh_columns<true, false>(scores, keys, softmax);
    else
        softmax.any_moved ? weigh_columns<false, true>(scores, keys, softmax)
                          : weigh_columns<false, false>(scores, keys, softmax);
    if (call.lse) store_part(call.lse + at, softmax.lse(), queries);
    if (call.entropy) write_graph(call, softmax, keys, space.columns, at, queries);
}

template <typename Element>
inline void fill(Element* to, int64_t count, Element value) {
    for (int64_t n = 0; n < count; ++n) to[n] = value;
}

// Rows that see no key.
inline void write_blind(const Call& call, int64_t at, int64_t rows) {
    fill((float*)call.output + at * call.value_depth, rows * call.value_depth, 0.0f);
    if (call.lse) fill(call.lse + at, rows, -infinity);
    if (!call.entropy) return;
    fill(call.entropy + at, rows, 0.0f);
    fill(call.rest + at, rows, 0.0f);
    fill(call.count + at, rows, int32_t{0});
    fill(call.kept_keys + at * call.kept, rows * call.kept, int32_t{-1});
    fill(call.kept_scores + at * call.kept, rows * call.kept, -infinity);
    fill(call.kept_weights + at * call.kept, rows * call.kept, 0.0f);
}

// Queries `first_query` to `end` of one head.
inline void forward_short(const Call& call, int64_t b, int64_t h, int64_t kv_head,
                          int64_t first_query, int64_t end, const ShortSpace& space) {
    const Range seen = visible_keys(call, b, 0);
    const int64_t keys = seen.empty() ? 0 : seen.end - seen.first;
    const int64_t head_row = (b * call.heads + h) * call.queries_count;
    if (keys == 0) return write_blind(call, head_row + first_query, end - first_query);
    float* output = (float*)call.output + head_row * call.value_depth;
    const float* key_rows = call.keys.at<float>(b, kv_head, seen.first);
    const float* value_rows = call.values.at<float>(b, kv_head, seen.first);
    for (int64_t first = first_query; first < end; first += panel_columns) {
        const int64_t queries = smaller(panel_columns, end - first);
        pack_panel(call.queries, false, b, h, first, end, call.depth, space.queries);
        for (int64_t j = 0; j < keys; j += group_rows)
            multiply_rows<2, false>((int)smaller(group_rows, keys - j),
                                    key_rows + j * call.keys.row, call.keys.row, 1, space.queries,
                                    panel_columns, space.scores + j * panel_columns, panel_columns,
                                    call.depth);
        for (int64_t column = 0; column < queries; column += lanes)
            softmax_columns(call, space.scores + column, seen, space, head_row + first + column,
                            smaller(lanes, queries - column));
        for (int64_t i = 0; i < queries; i += group_rows)
            multiply<false>((int)smaller(group_rows, queries - i), call.value_depth,
                            space.scores + i, 1, panel_columns, value_rows, call.values.row,
                            output + (first + i) * call.value_depth, call.value_depth, keys);
    }
}

}  // namespace HEADLOOM_INSTRUCTION_SET
}  // namespace headloom
