// All queries of a group of heads against one piece of their keys, tile by tile: the backward
// pass's task, on pairs (backward_pairs.h) where these are faster and all numbers finite.
#pragma once

#include "backward.h"
#include "backward_pairs.h"

namespace headloom {
namespace HEADLOOM_INSTRUCTION_SET {

// Keys and values of a tile as the plain products read them.
inline void pack_tile(const Call& call, const Gradients& to, const BackwardTile& t, int64_t b,
                      int64_t kv_head, Range tile) {
    pack_panels(call.keys, call.bfloat16, b, kv_head, tile.first, tile.end, call.depth,
                t.key_panels);
    pack_panels(call.values, call.bfloat16, b, kv_head, tile.first, tile.end, call.value_depth,
                t.value_panels);
    // Scaled before the product, as the queries are: after it, infinity times 0 is NaN.
    copy_padded(call.keys, call.bfloat16, b, kv_head, tile.first, tile.end, call.depth,
                to.padded_depth, call.scale, t.key_rows);
}

// The rows of a head's gradients that are for its queries, of one piece of the keys.
inline int64_t first_query_row(const Call& call, int64_t b, int64_t h, int64_t piece) {
    return ((piece * call.batch + b) * call.heads + h) * call.queries_count;
}

inline void clear_keys(const Call& call, const Gradients& to, int64_t b, int64_t kv_head,
                       Range tile) {
    const int64_t row = (b * call.kv_heads + kv_head) * call.keys_count + tile.first;
    clear_rows(to.keys, row, tile.end - tile.first, to.padded_depth);
    clear_rows(to.values, row, tile.end - tile.first, to.padded_value_depth);
}

// All queries of a head against one tile of its keys, the first of the piece or not, and of the
// group's heads the first or not: what nothing was added to yet is not even cleared.
inline void backward_by_floats(const Call& call, const Gradients& to, const BackwardTile& t,
                               int64_t b, int64_t h, int64_t kv_head, Range tile, bool first_tile,
                               bool first_head) {
    if (first_tile)
        clear_rows(to.queries, first_query_row(call, b, h, tile.first / to.piece_keys),
                   call.queries_count, to.padded_depth);
    if (first_head) clear_keys(call, to, b, kv_head, tile);
    pack_tile(call, to, t, b, kv_head, tile);
    for (int64_t query = 0; query < call.queries_count; query += block_queries)
        backward_block(call, to, t, b, h, query, tile);
}

#if defined(__AMX_BF16__)
// Likewise; a block of which a number is not finite goes the other way: cut into three it would be
// NaN, and times the 0 of a key that is hidden too.
template <int splits>
inline void backward_by_pairs(const Call& call, const Gradients& to, const BackwardTile& t,
                              const BackwardPairs& p, int64_t b, int64_t h, int64_t kv_head,
                              Range tile, bool first_tile, bool first_head) {
    if (!pack_backward_keys<splits>(call, b, kv_head, tile, p))
        return backward_by_floats(call, to, t, b, h, kv_head, tile, first_tile, first_head);
    const size_t used = (size_t)round_up(tile.end - tile.first, chunk_terms) * sizeof(float);
    for (int64_t d = 0; d < to.padded_depth; ++d)
        std::memset(p.key_sums + d * backward_row, 0, used);
    for (int64_t d = 0; d < to.padded_value_depth; ++d)
        std::memset(p.value_sums + d * backward_row, 0, used);
    bool packed_floats = false;
    for (int64_t query = 0; query < call.queries_count; query += block_queries) {
        if (BackwardBlock<splits>(call, to, t, p, b, h, query, tile).pass(first_tile)) continue;
        if (first_tile)
            clear_rows(to.queries, first_query_row(call, b, h, tile.first / to.piece_keys) + query,
                       smaller(block_queries, call.queries_count - query), to.padded_depth);
        if (first_head) clear_keys(call, to, b, kv_head, tile);
        first_head = false;
        if (!packed_floats) pack_tile(call, to, t, b, kv_head, tile);
        packed_floats = true;
        backward_block(call, to, t, b, h, query, tile);
    }
    const int64_t row = (b * call.kv_heads + kv_head) * call.keys_count + tile.first;
    const auto write = first_head ? write_turned_sums<false> : write_turned_sums<true>;
    write(p.key_sums, to.padded_depth, tile.end - tile.first, p.factor,
          to.keys + row * to.padded_depth);
    write(p.value_sums, to.padded_value_depth, tile.end - tile.first, 1.0f,
          to.values + row * to.padded_value_depth);
}
#endif

inline void backward_piece(const Call& call, const Gradients& to, int64_t b, int64_t kv_head,
                           int64_t piece, Workspace& space) {
    const BackwardTile t = lay_out_backward(call, to, space);
#if defined(__AMX_BF16__)
    const bool pairs = backward_uses_pairs(call);
    const MatrixUnit unit(pairs);
    BackwardPairs p{};
    if (pairs) p = lay_out_backward_pairs(call, space);
#endif
    const int64_t group = call.heads / call.kv_heads;
    const int64_t first = piece * to.piece_keys;
    const int64_t end = smaller(first + to.piece_keys, call.keys_count);
    for (int64_t h = kv_head * group; h < (kv_head + 1) * group; ++h) {
        const bool first_head = h == kv_head * group;
        prepare_tables(call, to, t, h);
        for (int64_t key = first; key < end; key += backward_tile) {
            const Range tile{key, smaller(key + backward_tile, end)};
            const bool first_tile = key == first;
#if defined(__AMX_BF16__)
            if (pairs) {
                const auto by_pairs = call.bfloat16 ? backward_by_pairs<1> : backward_by_pairs<3>;
                by_pairs(call, to, t, p, b, h, kv_head, tile, first_tile, first_head);
                continue;
            }
#endif
            backward_by_floats(call, to, t, b, h, kv_head, tile, first_tile, first_head);
        }
    }
}

}  // namespace HEADLOOM_INSTRUCTION_SET
}  // namespace headloom
