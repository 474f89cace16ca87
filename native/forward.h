// Streaming attention: output, and in the same pass the strongest edges and totals of each row.
//
// For each block of queries, the keys stream by in tiles: a tile of scores is one product of
// packed queries and keys; rules and masks are applied to it; then row by row its candidates for
// the strongest edges are taken, and the scores become exponentials that weigh the values. What a
// mask hides from a whole group of rows is never computed.
#pragma once

#include "block.h"

namespace headloom {
namespace HEADLOOM_INSTRUCTION_SET {

// The keys that at least one row of a group sees in a tile.
inline Range group_range(const Block& block, int row, int rows, Range tile) {
    Range range;
    for (int r = row; r < row + rows; ++r)
        range = hull(range, intersection(block.visible[r], tile));
    return range;
}

// Minus infinity in place of the scores of `area`, whole vectors, that are not in `keys`. In whole
// vectors: what is written lane by lane can not be read as a vector at once.
inline void hide_outside(float* scores, Range keys, Range area) {
    const Floats hidden = broadcast(-infinity);
    for (int64_t j = area.first; j < keys.first; j += lanes) {
        const Integers before = first_integers() < (int32_t)smaller(keys.first - j, lanes);
        store(scores + j, before ? hidden : load(scores + j));
    }
    for (int64_t j = area.first + (keys.end - area.first) / lanes * lanes; j < area.end;
         j += lanes) {
        const Integers after = first_integers() >= (int32_t)larger(keys.end - j, 0);
        store(scores + j, after ? hidden : load(scores + j));
    }
}

// One row of a tile before its exponentials: rules, candidates, maximum. `keys`: what the row sees
// of the tile, not empty. `area`: whole vectors around it, whose hidden scores become -infinity.
// `tile_scores`: the row's scores from the tile's first key on. place: see raise_row.
template <bool with_statistics>
inline void prepare_row(const Call& call, Block& block, int row, Range keys, Range area, Range tile,
                        float* tile_scores, bool rules, int64_t place) {
    float* scores = tile_scores - tile.first;  // by key
    if (rules)
        apply_rules(call, block.batch, block.head, block.first_query + row, keys,
                    block.relation ? block.relation + row * block.table_row : nullptr,
                    scores + keys.first);
    hide_outside(scores, keys, area);
    const int64_t vectors = (area.end - area.first) / lanes;
    if (with_statistics) block.count[row] += keys_seen(call, keys, scores + keys.first);
    if (with_statistics && call.kept) {
        float guess = block.guess * block.norms[row];
        const float highest =
            add_candidates(block.candidates[row], call.kept, block.capacity, scores + area.first,
                           vectors, (int32_t)area.first, guess);
        block.guess = guess / block.norms[row];
        return raise_row(block, row, highest, place);
    }
    const Floats highest = highest_lanes(scores + area.first, vectors);
    if (lanes_above(highest, broadcast(block.running[row].limit())))
        raise_row(block, row, largest(highest), place);
}

// A range widened to whole multiples of `unit` keys, counted from the start of the tile.
inline Range widened(Range keys, Range tile, int64_t unit) {
    return {tile.first + (keys.first - tile.first) / unit * unit,
            tile.first + round_up(keys.end - tile.first, unit)};
}

// One row of a tile: scores to exponentials. `group`: what the product computed.
template <bool with_statistics>
inline void softmax_row(const Call& call, Block& block, int row, Range group, Range tile,
                        bool rules) {
    float* scores = block.scores + row * block.score_row - tile.first;  // by key
    const Range keys = intersection(block.visible[row], tile);
    if (keys.empty()) {
        for (int64_t j = group.first; j < group.end; ++j) scores[j] = 0;
        return;
    }
    const Range area = widened(keys, tile, lanes);
    prepare_row<with_statistics>(call, block, row, keys, area, tile, scores + tile.first, rules,
                                 block.waiting.tiles - 1);
    exponentiate<with_statistics>(block.running[row], scores + area.first,
                                  (area.end - area.first) / lanes);
    if (block.by_distance)
        sum_by_distance(call, scores + keys.first, block.first_query + row, keys,
                        block.by_distance + row * block.table_row);
    for (int64_t j = group.first; j < area.first; ++j) scores[j] = 0;
    for (int64_t j = area.end; j < group.end; ++j) scores[j] = 0;
}

// Let one tile of keys pass a block of queries.
template <bool with_statistics>
inline void pass_tile(const Call& call, Block& block, const PackedKeys& keys, Range tile) {
    const bool rules = has_rules(call);
    Range groups[most_queries / group_rows + 1];
    for (int row = 0, g = 0; row < block.rows; row += group_rows, ++g)
        groups[g] = group_range(block, row, (int)smaller(group_rows, block.rows - row), tile);

    for (int64_t panel = tile.first; panel < tile.end; panel += panel_columns) {
        const float* columns = keys.panel(panel, call.depth);
        for (int row = 0, g = 0; row < block.rows; row += group_rows, ++g) {
            if (groups[g].end <= panel || groups[g].first >= panel + panel_columns) continue;
            multiply_rows<2, false>((int)smaller(group_rows, block.rows - row),
                                    block.queries + row * call.depth, call.depth, 1, columns,
                                    panel_columns,
                                    block.scores + row * block.score_row + (panel - tile.first),
                                    block.score_row, call.depth);
        }
    }
    for (int row = 0; row < block.rows; ++row) {
        const Range group = groups[row / group_rows];
        if (!group.empty()) softmax_row<with_statistics>(call, block, row, group, tile, rules);
    }
    for (int row = 0, g = 0; row < block.rows; row += group_rows, ++g) {
        for (int64_t key = groups[g].first, end; key < groups[g].end; key = end) {
            end = end_of_piece(key, groups[g].end);
            multiply<true>((int)smaller(group_rows, block.rows - row), call.value_depth,
                           block.scores + row * block.score_row + (key - tile.first),
                           block.score_row, 1, keys.value(key), keys.value_row,
                           block.sums + row * block.sums_row, block.sums_row, end - key);
        }
    }
}

// Let every tile of keys that a block of queries sees pass it: pass(tile) for each.
template <typename Pass>
inline void stream_tiles(Block& block, const Pass& pass) {
    Range seen;
    for (int row = 0; row < block.rows; ++row) seen = hull(seen, block.visible[row]);
    const int64_t start = seen.first / panel_columns * panel_columns;
    for (int64_t first = start; first < seen.end; first += block.tile_width) {
        const Range tile{first, smaller(first + block.tile_width, seen.end)};
        begin_tile(block, tile);
        pass(tile);
    }
}

// One block of queries from beginning to end. kv_head: whose keys are packed on the way, or -1
// where they are already.
inline void forward_block(const Call& call, Block& block, int64_t b, int64_t h, int64_t first,
                          PackedKeys& keys, int64_t kv_head) {
    begin_block(call, block, b, h, first, true);
    stream_tiles(block, [&](Range tile) {
        if (kv_head >= 0) pack_keys(call, b, kv_head, tile, keys);
        if (call.entropy)
            pass_tile<true>(call, block, keys, tile);
        else
            pass_tile<false>(call, block, keys, tile);
    });
    finish_block(call, block);
}

}  // namespace HEADLOOM_INSTRUCTION_SET
}  // namespace headloom
