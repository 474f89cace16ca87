// Which path the forward pass of a call takes, and how large its blocks and tiles are.
//
//     path         for which calls                                         where
//     short        is_short: one small tile, 32 edges of a row at most     forward_short.h
//     few          is_few: as in a step of decoding                        few_pass.h
//     pairs        uses_pairs: products of bfloat16 pairs pay              forward_pairs.h
//       plain      of bfloat16, is_plain: tiles that a stripe sees whole   stripe_plain.h
//       any other  its other tiles, and those of other calls               stripe_pairs.h
//       beside     of float32: the softmax beside the products             stripe_beside.h
//     floats       every other call; and pairs that would not be finite    forward.h
//
// The backward pass: pairs where backward_uses_pairs says so (backward_factors.h), in
// backward_pairs.h; every other call, and numbers that are not finite, as floats, in backward.h.
#pragma once

#include "multiply.h"
#include "rules.h"

namespace headloom {
namespace HEADLOOM_INSTRUCTION_SET {

// Queries that the keys stream past together.
constexpr int block_queries = 8 * group_rows;
// Where pairs are multiplied the products are so fast that reading the keys from memory would
// bound them: more queries share each tile of keys; most where each key is three numbers, and there
// are blocks enough.
constexpr int most_queries = 4 * block_queries;
constexpr int64_t many_blocks = 64;

// Keys of a tile: usually, of plain attention by pairs, and where edges are kept by pairs.
constexpr int64_t usual_tile = 512;
constexpr int64_t plain_tile = 256;
constexpr int64_t kept_tile_bfloat16 = 2048;
constexpr int64_t kept_tile_float32 = 1024;
constexpr int64_t longest_tile = kept_tile_bfloat16;

// Rows of scores are this much longer than a tile: no power of two, so that they fall into
// different cache sets.
constexpr int64_t row_padding = 16;

// Where a call has more keys than these, the matrix unit's products are worth their packing.
constexpr int64_t short_keys = 128;
// Such rows have so many edges at most, and a task of theirs so many queries.
constexpr int64_t short_edges = 32;
constexpr int64_t short_queries = 64;

// Calls of float32 this large are cut into pairs: where each cut number is used often enough.
constexpr int64_t pairs_least_keys = 128;
constexpr int64_t pairs_least_queries = 32;
#if defined(__AMX_BF16__)
constexpr bool pairs_serve_float32 = true;
#else
constexpr bool pairs_serve_float32 = false;
#endif

// Queries of bfloat16 from which pairs pay where the path of few queries does not serve: fewer are
// multiplied as floats, since padding them to a stripe would cost more than pairs save.
constexpr int least_pair_queries = 5;

// Whether the products can read the values where they are.
inline bool values_in_place(const Call& call) {
    return !call.bfloat16 && call.value_depth % lanes == 0;
}

inline bool keeps_edges(const Call& call) { return call.kept > 0; }

// Whether a call of bfloat16 keeps no edges, asks nothing of its keys, and has no rule but which
// keys are seen.
inline bool is_plain(const Call& call) {
    return call.bfloat16 && !keeps_edges(call) && call.value_depth > 0 && !call.value_table.data &&
           !call.received && !has_rules(call);
}

// Whether one small tile holds all keys of a call, and few edges are kept.
inline bool is_short(const Call& call) {
    return call.keys_count <= short_keys && call.queries_count >= lanes && !call.bfloat16 &&
           call.kept <= short_edges && !call.received && !call.sinks.data &&
           !call.value_table.data && !has_rules(call) && one_range_for_all(call) &&
           values_in_place(call);
}

// Whether the products of a call are of pairs of bfloat16.
inline bool uses_pairs(const Call& call) {
#if defined(HEADLOOM_HAS_PAIRS)
    return (call.bfloat16 && call.queries_count >= least_pair_queries) ||
           (pairs_serve_float32 && call.keys_count >= pairs_least_keys &&
            call.queries_count >= pairs_least_queries);
#else
    (void)call;
    return false;
#endif
}

// Queries of a block whose powers wait for its end (received.h). On the processors with a matrix
// unit that were measured, powers that leave the second cache cost more than reading keys oftener.
inline int waiting_queries(const Call& call) {
#if defined(__AMX_BF16__)
    if (call.keys_count > 2048) return call.bfloat16 ? 32 : 96;
#else
    (void)call;
#endif
    return 2 * block_queries;
}

inline int queries_of_block(const Call& call) {
    if (!uses_pairs(call)) return block_queries;
    if (call.received) return waiting_queries(call);
    // Enough blocks for many threads.
    const int64_t blocks = call.batch * call.heads * (call.queries_count / most_queries);
    return call.bfloat16 || blocks < many_blocks ? 2 * block_queries : most_queries;
}

// Keys of a tile in the forward pass. Each row pays for each tile, most for its candidates, so that
// long tiles serve best where edges are kept, as far as a stripe of their scores stays near.
inline int64_t keys_of_tile(const Call& call) {
    if (uses_pairs(call) && keeps_edges(call))
        return call.bfloat16 ? kept_tile_bfloat16 : kept_tile_float32;
    return uses_pairs(call) && is_plain(call) ? plain_tile : usual_tile;
}

}  // namespace HEADLOOM_INSTRUCTION_SET
}  // namespace headloom
