// Tiles of bfloat16 that every row of a stripe sees whole, with no rule, and no edges to keep: most of
// the work of plain attention, on a shorter path. Scores never leave the nearest cache: a tile is as
// short as the products allow, and no row is looked at alone but for its exponentials. And the pass of
// a block of queries, whose stripes take this path or that of forward_pairs.h, tile by tile.
#pragma once

#include "forward_pairs.h"

#if defined(WEFT_HAS_PAIRS)

namespace weft {
namespace WEFT_INSTRUCTION_SET {

inline bool sees_whole_tile(const Call& call, const Block& block, int first_row, Range tile) {
    if (!is_plain(call) || block.rows - first_row < stripe_rows ||
        tile.end - tile.first != whole_tile_keys)
        return false;
    const int rows = one_range_for_all(call) ? 1 : stripe_rows;
    for (int row = first_row; row < first_row + rows; ++row)
        if (block.visible[row].first > tile.first || block.visible[row].end < tile.end) return false;
    return true;
}

// Raise the levels of the rows that a tile's scores exceed.
inline void raise_rows(const Call& call, Block& block, int first_row) {
    for (int row = first_row; row < first_row + stripe_rows; ++row) {
        float* scores = block.scores + (row - first_row) * block.tile_row;
        if (block.factor != 1.0f)
            for (int64_t j = 0; j < whole_tile_keys; j += lanes)
                store(scores + j, load(scores + j) * block.factor);
        const Floats highest = highest_lanes(scores, whole_tile_keys / lanes);
        if (lanes_above(highest, broadcast(block.running[row].limit())))
            raise_row(block, row, largest(highest));
    }
}

// Let one whole tile pass a stripe of rows.
template <bool with_statistics>
inline void pass_whole_tile(const Call& call, Block& block, const PackedKeys& keys, Range tile,
                            int first_row) {
    multiply_scores<1>(call, block, keys, tile, tile, first_row, true);
    raise_rows(call, block, first_row);
    int32_t* weights = reinterpret_cast<int32_t*>(block.scores);
    constexpr int64_t step = chunk_terms / 2;  // they take the place of the scores
    for (int r = 0; r < stripe_rows; ++r) {
        if (r % 16 == 4) keep_awake();
        if (with_statistics) block.count[first_row + r] += (int32_t)whole_tile_keys;
        exponentiate_pairs<1, with_statistics>(
            block.running[first_row + r], block.scores + r * block.tile_row,
            whole_tile_keys / chunk_terms, weights + r * block.tile_row, step, false);
    }
    weigh_values<1>(call, block, keys, {weights, step, 16 * block.tile_row, block.tile_row}, tile,
                    first_row, true);
}

// One block of queries from beginning to end. Returns false, with nothing done, where a query is
// not finite and its numbers would be cut.
template <int splits>
inline bool forward_block_pairs(const Call& call, Block& block, int64_t b, int64_t h, int64_t first,
                                const PackedKeys& keys) {
    begin_block(call, block, b, h, first, block.relation != nullptr);
    const bool exact = splits > 1 || is_power_of_two(call.scale);
    block.factor = exact ? 1.0f : call.scale;
    const bool finite =
        pack_left<splits>(call.queries, call.bfloat16, b, h, first, block.rows,
                          round_up(block.rows, 16), call.depth, exact ? call.scale : 1.0f,
                          block.query_tiles);
    if (splits > 1 && !finite) return false;
    stream_tiles(block, [&](Range tile) {
        for (int row = 0; row < block.rows; row += stripe_rows)
            if (splits == 1 && sees_whole_tile(call, block, row, tile))
                call.entropy ? pass_whole_tile<true>(call, block, keys, tile, row)
                             : pass_whole_tile<false>(call, block, keys, tile, row);
            else if (call.entropy)
                pass_stripe<splits, true>(call, block, keys, tile, row);
            else
                pass_stripe<splits, false>(call, block, keys, tile, row);
    });
    finish_block(call, block);
    return true;
}

}  // namespace WEFT_INSTRUCTION_SET
}  // namespace weft

#endif
