// A block of queries while its keys stream by: what it keeps, how it begins, and how it ends.
#pragma once

#include "choose.h"
#include "finish.h"
#include "packing.h"
#include "pairs.h"
#include "received.h"
#include "softmax.h"
#include "strongest.h"
#include "workspace.h"

namespace headloom {
namespace HEADLOOM_INSTRUCTION_SET {

// The state of one block of queries while its keys stream by.
struct Block {
    float* queries;                 // (rows, depth), scaled
    int64_t tile_width, score_row;  // keys of a tile; scores from one row to the next
    float* scores;                  // (rows, score_row); where pairs are multiplied, of two stripes
    float* sums;                    // (rows, sums_row): weighted values so far
    float* relation;                // (rows, table_row): relative scores by distance, or nullptr
    float* by_distance;             // (rows, table_row): weights summed by distance, or nullptr
    float* key_panel;               // the key table as panels
    float* value_table;             // the value table in whole vectors
    Running running[most_queries];
    Range visible[most_queries];
    int32_t count[most_queries];
    Candidates candidates[most_queries];
    int64_t sums_row, table_row, capacity;
    int32_t* query_tiles;   // where pairs are multiplied: the queries
    int32_t* weight_tiles;  // and the weights of two stripes
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
#if defined(HEADLOOM_HAS_PAIRS)
    if (uses_pairs(call)) {
        b.query_tiles = space.take<int32_t>(queries / 16 * (round_up(call.depth, 32) / 32) *
                                            splits_of(call) * tile_cells);
        b.weight_tiles = space.take<int32_t>(2 * stripe_rows / 16 * (b.tile_width / 32) *
                                             splits_of(call) * tile_cells);
    }
#endif
    if (keeps_edges(call)) {
        b.capacity = candidate_capacity(smaller(call.kept, call.keys_count), b.tile_width);
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
        block.candidates[row].clear();
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

// Where the powers of a tile's scores can wait, from this row of the block on.
inline float* place_of(const Block& block, int64_t tile, int row) {
    const Waiting& waiting = block.waiting;
    return waiting.powers + (tile * waiting.rows + row) * block.score_row;
}

inline void take_place(Block& block, int64_t tile, int row) {
    block.scores = place_of(block, tile, row);
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

// Show a row a score that may be its highest: what it has summed so far follows its level. tile:
// the number of the tile, where it is asked what keys receive.
inline void raise_row(Block& block, int row, float higher, int64_t tile) {
    const float factor = block.running[row].raise(higher);
    if (factor == 1.0f) return;
    const Waiting& waiting = block.waiting;
    if (waiting.powers) waiting.raised[tile * waiting.rows + row] = factor;
    float* sums = block.sums + row * block.sums_row;
    for (int64_t d = 0; d < block.sums_row; d += lanes) store(sums + d, load(sums + d) * factor);
    if (block.by_distance)
        for (int64_t r = 0; r < block.table_row; r += lanes) {
            float* weights = block.by_distance + row * block.table_row + r;
            store(weights, load(weights) * factor);
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
        block.normalisers[row] =
            finish_row(call, block.head, at, block.running[row], block.sums + row * block.sums_row,
                       block.count[row], block.candidates[row]);
    }
    if (block.waiting.powers)
        receive(call, block.waiting, block.score_row, block.visible, block.first_query, block.rows,
                block.normalisers);
}

}  // namespace HEADLOOM_INSTRUCTION_SET
}  // namespace headloom
