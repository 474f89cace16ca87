// A block of queries while its keys stream by: what it keeps, how it begins, and what its rows come
// to in the end.
#pragma once

#include "choose.h"
#include "ordering.h"
#include "packing.h"
#include "pairs.h"
#include "received.h"
#include "softmax.h"
#include "strongest.h"
#include "workspace.h"

namespace weft {
namespace WEFT_INSTRUCTION_SET {

// The state of one block of queries while its keys stream by.
struct Block {
    float* queries;                 // (rows, depth), scaled
    int64_t tile_width, score_row;  // keys of a tile; scores from one row to the next
    float* scores;       // (rows, score_row); where pairs are multiplied, one stripe of rows
    float* sums;         // (rows, sums_row): weighted values so far
    float* relation;     // (rows, table_row): relative scores by distance, or nullptr
    float* by_distance;  // (rows, table_row): weights summed by distance, or nullptr
    float* key_panel;    // the key table as panels
    float* value_table;  // the value table in whole vectors
    Running running[most_queries];
    Range visible[most_queries];
    int32_t count[most_queries];
    Candidates candidates[most_queries];
    int64_t sums_row, table_row, capacity;
    int32_t* query_tiles;   // where pairs are multiplied: the queries
    int32_t* weight_tiles;  // and the exponentials of one stripe
    float factor;           // of the scores after the product; 1 where the queries are scaled
    int64_t batch, head, first_query;
    int rows;
    float guess;                // of the threshold of the next row whose query has length 1
    float norms[most_queries];  // of the queries
    Waiting waiting;            // where it is asked what keys receive
    float normalisers[most_queries];
};

inline Block* lay_out_block(const Call& call, Workspace& space) {
    const int queries = queries_of_block(call);
    Block* block = space.take<Block>(1);
    Block measured;
    Block& b = block ? *block : measured;
    b.sums_row = round_up(call.value_depth, lanes);
    b.table_row = round_up(2 * call.clip + 1, panel_columns);
    // No longer than the keys: what is never used should not be laid out.
    b.tile_width = smaller(keys_of_tile(call), round_up(larger(call.keys_count, 1), 32) + 32);
    b.score_row = b.tile_width + row_padding;
    b.queries = space.take<float>(queries * call.depth);
    b.scores = space.take<float>(queries * b.score_row + lanes);
    b.sums = space.take<float>(queries * b.sums_row);
    b.relation = b.by_distance = b.key_panel = b.value_table = nullptr;
    if (call.key_table.data) {
        b.relation = space.take<float>(queries * b.table_row);
        b.key_panel = space.take<float>(b.table_row * call.depth);
    }
    if (call.value_table.data) {
        b.by_distance = space.take<float>(queries * b.table_row);
        b.value_table = space.take<float>(b.table_row * b.sums_row);
    }
    b.query_tiles = b.weight_tiles = nullptr;
#if defined(WEFT_HAS_PAIRS)
    if (uses_pairs(call)) {
        b.query_tiles = space.take<int32_t>(queries / 16 * (round_up(call.depth, 32) / 32) *
                                            splits_of(call) * tile_cells);
        b.weight_tiles = space.take<int32_t>(stripe_rows / 16 * (b.tile_width / 32) *
                                             splits_of(call) * tile_cells);
    }
#endif
    if (keeps_edges(call)) {
        b.capacity = candidate_capacity(call.kept, b.tile_width);
        float* scores = space.take<float>(queries * (b.capacity + lanes));
        int32_t* keys = space.take<int32_t>(queries * (b.capacity + lanes));
        if (block)
            for (int row = 0; row < queries; ++row) {
                b.candidates[row].scores = scores + row * (b.capacity + lanes);
                b.candidates[row].keys = keys + row * (b.capacity + lanes);
            }
    }
    b.waiting = lay_out_waiting(call, queries, b.tile_width, b.score_row, space);
    return block;
}

// with_queries: whether they are wanted as floats.
inline void begin_block(const Call& call, Block& block, int64_t b, int64_t h, int64_t first,
                        bool with_queries) {
    block.batch = b;
    block.head = h;
    block.first_query = first;
    block.rows = (int)smaller(queries_of_block(call), call.queries_count - first);
    block.guess = infinity;
    block.waiting.tiles = 0;
    for (int row = 0; row < block.rows; ++row) {
        if (with_queries)
            copy_row(call.queries, call.bfloat16, b, h, first + row, call.depth, call.scale,
                     block.queries + row * call.depth);
        if (keeps_edges(call))
            block.norms[row] =
                rough_norm(call.queries, call.bfloat16, b, h, first + row, call.depth);
        block.running[row] = Running{};
        block.visible[row] = row > 0 && one_range_for_all(call)
                                 ? block.visible[0]
                                 : visible_keys(call, b, first + row);
        block.count[row] = 0;
        block.candidates[row].number = 0;
        block.candidates[row].threshold = -infinity;
    }
    std::memset(block.sums, 0, block.rows * block.sums_row * sizeof(float));
    const int64_t distances = 2 * call.clip + 1;
    if (block.relation) {
        pack_panels(call.key_table, false, 0, h, 0, distances, call.depth, block.key_panel);
        for (int row = 0; row < block.rows; row += group_rows) {
            const int rows = (int)smaller(group_rows, block.rows - row);
            for (int64_t r = 0; r < distances; r += panel_columns)
                multiply<false>(rows, panel_columns, block.queries + row * call.depth, call.depth,
                                1, block.key_panel + r * call.depth, panel_columns,
                                block.relation + row * block.table_row + r, block.table_row,
                                call.depth);
        }
    }
    if (block.by_distance) {
        pack_rows(call.value_table, false, 0, h, 0, distances, call.value_depth, block.value_table);
        std::memset(block.by_distance, 0, block.rows * block.table_row * sizeof(float));
    }
}

// Give a tile's scores, from this row of the block on, the place where their powers can wait.
inline void take_place(Block& block, int64_t tile, int row) {
    const Waiting& waiting = block.waiting;
    block.scores = waiting.powers + (tile * waiting.rows + row) * block.score_row;
}

inline void begin_tile(Block& block, Range tile) {
    Waiting& waiting = block.waiting;
    if (!waiting.powers) return;
    take_place(block, waiting.tiles, 0);
    waiting.ranges[waiting.tiles] = tile;
    for (int row = 0; row < block.rows; ++row)
        waiting.raised[waiting.tiles * waiting.rows + row] = 1.0f;
    ++waiting.tiles;
}

// Show a row a score that may be its highest: what it has summed so far follows its level.
inline void raise_row(Block& block, int row, float higher) {
    const float factor = block.running[row].raise(higher);
    if (factor == 1.0f) return;
    const Waiting& waiting = block.waiting;
    if (waiting.powers) waiting.raised[(waiting.tiles - 1) * waiting.rows + row] = factor;
    float* sums = block.sums + row * block.sums_row;
    for (int64_t d = 0; d < block.sums_row; d += lanes) store(sums + d, load(sums + d) * factor);
    if (block.by_distance)
        for (int64_t r = 0; r < block.table_row; r += lanes) {
            float* weights = block.by_distance + row * block.table_row + r;
            store(weights, load(weights) * factor);
        }
}

inline void write_output(const Call& call, int64_t row, const float* sums, float factor) {
    if (call.bfloat16) {
        uint16_t* to = (uint16_t*)call.output + row * call.value_depth;
        for (int64_t d = 0; d < call.value_depth; ++d) to[d] = to_bfloat16(sums[d] * factor);
    } else {
        float* to = (float*)call.output + row * call.value_depth;
        for (int64_t d = 0; d < call.value_depth; ++d) to[d] = sums[d] * factor;
    }
}

// From the streamed sums to the results of the block's rows.
inline void finish_block(const Call& call, Block& block) {
    if (block.by_distance)
        for (int row = 0; row < block.rows; row += group_rows)
            multiply<true>((int)smaller(group_rows, block.rows - row), call.value_depth,
                           block.by_distance + row * block.table_row, block.table_row, 1,
                           block.value_table, block.sums_row, block.sums + row * block.sums_row,
                           block.sums_row, 2 * call.clip + 1);
    for (int row = 0; row < block.rows; ++row) {
        const int64_t at =
            (block.batch * call.heads + block.head) * call.queries_count + block.first_query + row;
        Running& running = block.running[row];
        float factor = 1.0f, sink_total = 0.0f;
        if (call.sinks.data) {
            const float sink = call.sinks.at<float>(0, 0, 0)[block.head];
            factor = running.raise(sink);
            sink_total = sink == -infinity ? 0.0f : __builtin_exp2f(running.exponent(sink));
        }
        const float total = sum(running.total), with_sink = total + sink_total;
        // A row that saw no key: no mass, and minus infinity for its logarithm.
        const bool blind = with_sink == 0;
        const float inverse = blind ? 0.0f : 1.0f / with_sink;
        write_output(call, at, block.sums + row * block.sums_row, factor * inverse);
        block.normalisers[row] = factor * inverse;
        if (!call.lse) continue;
        const float logarithm = __builtin_logf(with_sink);
        call.lse[at] = blind ? -infinity : running.log_sum(logarithm);
        if (!call.entropy) continue;
        const float entropy = (total * logarithm - sum(running.moment) * log_of_2) * inverse;
        // Of one key it is 0, not what rounding leaves of a difference.
        const bool certain = block.count[row] == 1 && sink_total == 0;
        call.entropy[at] = blind || certain || entropy < 0 ? 0.0f : entropy;
        call.count[at] = block.count[row];
        float mass = 0;
        if (call.kept) {
            float* scores = call.kept_scores + at * call.kept;
            float* weights = call.kept_weights + at * call.kept;
            int32_t* keys = call.kept_keys + at * call.kept;
            const int64_t kept = order_strongest(block.candidates[row], call.kept, scores, keys);
            Floats total_kept{};
            for (int64_t n = 0; n < kept; n += lanes) {
                const Floats x = running.exponents(load_part(scores + n, kept - n));
                Floats p = power_of_2<5>(x) * inverse;
                if (n + lanes > kept)
                    for (int64_t lane = kept - n; lane < lanes; ++lane) p[lane] = 0;
                total_kept += p;
                store_part(weights + n, p, kept - n);
            }
            mass = sum(total_kept);
            for (int64_t n = kept; n < call.kept; ++n) {
                scores[n] = -infinity;
                weights[n] = 0;
                keys[n] = -1;
            }
        }
        const float rest = (blind ? 0.0f : inverse * with_sink) - mass;
        call.rest[at] = rest < 0 ? 0.0f : rest;
    }
    if (block.waiting.powers)
        receive(call, block.waiting, block.score_row, block.visible, block.first_query, block.rows,
                block.normalisers);
}

}  // namespace WEFT_INSTRUCTION_SET
}  // namespace weft
