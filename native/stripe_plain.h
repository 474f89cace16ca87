// Tiles of bfloat16 that every row of a stripe sees whole, with no rule, and no edges to keep: most
// of the work of plain attention, on a shorter path. Scores never leave the nearest cache: a tile
// is as short as the products allow, and no row is looked at alone but for its exponentials.
#pragma once

#include "stripe_pairs.h"

#if defined(HEADLOOM_HAS_PAIRS)

namespace headloom {
namespace HEADLOOM_INSTRUCTION_SET {

inline bool sees_whole_tile(const Call& call, const Block& block, int first_row, Range tile) {
    if (!is_plain(call) || block.rows - first_row < stripe_rows ||
        tile.end - tile.first != plain_tile)
        return false;
    const int rows = one_range_for_all(call) ? 1 : stripe_rows;
    for (int row = first_row; row < first_row + rows; ++row)
        if (block.visible[row].first > tile.first || block.visible[row].end < tile.end)
            return false;
    return true;
}

// Raise the levels of the rows that a tile's scores exceed.
inline void raise_rows(const Call& call, Block& block, int first_row) {
    for (int row = first_row; row < first_row + stripe_rows; ++row) {
        float* scores = block.scores + (row - first_row) * block.score_row;
        if (block.factor != 1.0f)
            for (int64_t j = 0; j < plain_tile; j += lanes)
                store(scores + j, load(scores + j) * block.factor);
        const Floats highest = highest_lanes(scores, plain_tile / lanes);
        if (lanes_above(highest, broadcast(block.running[row].limit())))
            raise_row(block, row, largest(highest), block.waiting.tiles - 1);
    }
}

// Let one whole tile pass a stripe of rows.
template <bool with_statistics>
inline void pass_whole_tile(const Call& call, Block& block, const PackedKeys& keys, Range tile,
                            int first_row) {
    multiply_scores<1>(call, block, keys, tile, first_row, true, block.scores);
    raise_rows(call, block, first_row);
    int32_t* weights = reinterpret_cast<int32_t*>(block.scores);
    constexpr int64_t step = chunk_terms / 2;  // they take the place of the scores
    for (int r = 0; r < stripe_rows; ++r) {
        if (r % 16 == 4) keep_awake();
        if (with_statistics) block.count[first_row + r] += (int32_t)plain_tile;
        exponentiate_pairs<1, with_statistics>(
            block.running[first_row + r], block.scores + r * block.score_row,
            plain_tile / chunk_terms, weights + r * block.score_row, step, false);
    }
    weigh_values<1>(call, block, keys, {weights, step, 16 * block.score_row, block.score_row}, tile,
                    first_row, true);
}

}  // namespace HEADLOOM_INSTRUCTION_SET
}  // namespace headloom

#endif
