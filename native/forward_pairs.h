// Streaming attention where products of bfloat16 pairs are faster: as forward.h, with tiles of
// pairs for the two products.
#pragma once

#include "stripe_beside.h"
#include "stripe_plain.h"

#if defined(HEADLOOM_HAS_PAIRS)

namespace headloom {
namespace HEADLOOM_INSTRUCTION_SET {

// Scratch memory for the keys and values of one head, as tiles.
struct PairSpace {
    int32_t* keys;
    int32_t* values;
};

inline PairSpace lay_out_pairs(const Call& call, Workspace& space) {
    const int64_t keys = round_up(call.keys_count, 32) + 32;
    const int64_t cells = splits_of(call) * tile_cells;
    return {space.take<int32_t>(keys / 16 * chunks_of(call.depth) * cells),
            space.take<int32_t>(keys / 32 * (round_up(call.value_depth, 16) / 16) * cells)};
}

// Pack the keys and values of a range. Returns whether all are finite: an infinity cut into three
// numbers would turn finite products into NaN.
template <int splits>
inline bool pack_pairs(const Call& call, int64_t b, int64_t kv_head, Range range, PairSpace space,
                       PackedKeys& keys) {
    keys.first = range.first / panel_columns * panel_columns;
    keys.as_pairs = true;
    keys.key_tiles = space.keys;
    keys.value_tiles = space.values;
    const bool finite_keys =
        pack_right_turned<splits>(call.keys, call.bfloat16, b, kv_head, keys.first,
                                  round_up(range.end, 32), range.end, call.depth, space.keys);
    const bool finite_values =
        pack_right<splits>(call.values, call.bfloat16, b, kv_head, keys.first, range.end,
                           call.value_depth, space.values);
    return splits == 1 || (finite_keys && finite_values);
}

// Let every tile of keys pass a block of queries, a stripe of rows at a time.
template <int splits, bool with_statistics>
inline void stream_stripes(const Call& call, Block& block, const PackedKeys& keys) {
    if constexpr (splits > 1) {
        StripesInTurn<with_statistics> stripes(call, block, keys);
        stream_tiles(block, [&](Range tile) {
            for (int row = 0; row < block.rows; row += stripe_rows) stripes.pass(tile, row);
        });
        stripes.finish();
    } else
        stream_tiles(block, [&](Range tile) {
            for (int row = 0; row < block.rows; row += stripe_rows) {
                if (call.received) take_place(block, block.waiting.tiles - 1, row);
                if (sees_whole_tile(call, block, row, tile))
                    pass_whole_tile<with_statistics>(call, block, keys, tile, row);
                else
                    pass_stripe<with_statistics>(call, block, keys, tile, row);
            }
        });
}

// One block of queries from beginning to end. Returns false, with nothing done, where a query is
// not finite and its numbers would be cut.
template <int splits>
inline bool forward_block_pairs(const Call& call, Block& block, int64_t b, int64_t h, int64_t first,
                                const PackedKeys& keys) {
    begin_block(call, block, b, h, first, block.relation != nullptr);
    const bool exact = splits > 1 || is_power_of_two(call.scale);
    block.factor = exact ? 1.0f : call.scale;
    const bool finite = pack_left<splits>(call.queries, call.bfloat16, b, h, first, block.rows,
                                          round_up(block.rows, 16), call.depth,
                                          exact ? call.scale : 1.0f, block.query_tiles);
    if (splits > 1 && !finite) return false;
    if (call.entropy)
        stream_stripes<splits, true>(call, block, keys);
    else
        stream_stripes<splits, false>(call, block, keys);
    finish_block(call, block);
    return true;
}

}  // namespace HEADLOOM_INSTRUCTION_SET
}  // namespace headloom

#endif
