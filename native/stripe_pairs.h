// A tile of keys and a stripe of rows, 32 of a block of queries, whose products are of bfloat16
// pairs. All between the two products - rules, candidates, maximum, sums - is as in forward.h.
#pragma once

#include "forward.h"
#include "multiply_pairs.h"

#if defined(WEFT_HAS_PAIRS)

namespace weft {
namespace WEFT_INSTRUCTION_SET {

inline int64_t chunks_of(int64_t terms) { return (terms + chunk_terms - 1) / chunk_terms; }

// The powers of a row's scores as a left factor, chunk by chunk; what the row does not see is 0.
// step: from one chunk of the factor to the next.
template <int splits, bool with_moment>
inline void exponentiate_pairs(Running& row, float* scores, int64_t chunks, int32_t* to,
                               int64_t step, bool keep_weights) {
    // Weights that are rounded to 8 bits need no more than 18.
    constexpr int degree = splits == 1 ? 4 : 5;
    const Running fixed = brought_near(row, scores, chunks * (chunk_terms / lanes));
    Floats total{}, moment{};
    for (int64_t c = 0; c < chunks; ++c, to += step) {
        float* chunk = scores + c * chunk_terms;
        const Floats x = fixed.exponents_near(load(chunk));
        const Floats y = fixed.exponents_near(load(chunk + 16));
        const Floats p = power_of_2<degree>(x), q = power_of_2<degree>(y);
        total += p + q;
        if (with_moment) {
            moment += p * bounded_exponents(x);
            moment += q * bounded_exponents(y);
        }
        if (keep_weights) {
            store(chunk, p);
            store(chunk + 16, q);
        }
        store_pairs<splits>(p, q, to);
    }
    row.total += total;
    if (with_moment) row.moment += moment;
}

// Whether the weights of a row, half as wide as its scores, take their place: what was just read is
// still near. Where the weights are wanted as floats too, or as three numbers, they do not fit.
template <int splits>
inline bool weights_in_place(const Call& call) {
    return splits == 1 && !call.value_table.data && !call.received;
}

// What a row sees of a tile, in whole chunks.
inline Range chunks_seen(const Block& block, int row, Range tile) {
    const Range keys = intersection(block.visible[row], tile);
    return keys.empty() ? keys : widened(keys, tile, chunk_terms);
}

// One row of a tile before its exponentials.
template <bool with_statistics>
inline void prepare_row_pairs(const Call& call, Block& block, int row, Range tile, bool rules) {
    const Range area = chunks_seen(block, row, tile);
    if (area.empty()) return;
    float* scores = block.scores + row % stripe_rows * block.score_row - tile.first;  // by key
    if (block.factor != 1.0f)
        for (int64_t j = area.first; j < area.end; j += lanes)
            store(scores + j, load(scores + j) * block.factor);
    prepare_row<with_statistics>(call, block, row, intersection(block.visible[row], tile), area,
                                 tile, scores + tile.first, rules);
}

// One row of a tile: scores to exponentials in tiles. `stripe`: what the product computed, whole
// chunks of keys.
template <int splits, bool with_statistics>
inline void softmax_row_pairs(const Call& call, Block& block, int row, Range stripe, Range tile) {
    const int64_t chunks_in_tile = block.tile_width / chunk_terms;
    float* scores = block.scores + row % stripe_rows * block.score_row - tile.first;  // by key
    const bool in_place = weights_in_place<splits>(call);
    int32_t* weights = in_place
                           ? reinterpret_cast<int32_t*>(scores + tile.first)
                           : block.weight_tiles +
                                 row % stripe_rows / 16 * chunks_in_tile * splits * tile_cells +
                                 row % 16 * 16;
    const int64_t step = in_place ? chunk_terms / 2 : splits * tile_cells;
    const auto chunk_of = [&](int64_t key) { return (key - tile.first) / chunk_terms; };
    const auto clear = [&](Range keys) {
        for (int64_t j = keys.first; j < keys.end; j += chunk_terms)
            for (int split = 0; split < splits; ++split)
                store(weights + chunk_of(j) * step + split * tile_cells, Integers{});
    };
    const Range area = chunks_seen(block, row, tile);
    if (call.value_depth == 0) {  // nothing to weigh: the row's totals are all that is asked
        if (!area.empty())
            exponentiate<with_statistics>(block.running[row], scores + area.first,
                                          (area.end - area.first) / lanes);
        return;
    }
    if (area.empty()) return clear(stripe);
    exponentiate_pairs<splits, with_statistics>(
        block.running[row], scores + area.first, (area.end - area.first) / chunk_terms,
        weights + chunk_of(area.first) * step, step,
        block.by_distance != nullptr || call.received != nullptr);
    if (block.by_distance) {
        const Range keys = intersection(block.visible[row], tile);
        sum_by_distance(call, scores + keys.first, block.first_query + row, keys,
                        block.by_distance + row * block.table_row);
    }
    clear({stripe.first, area.first});
    clear({area.end, stripe.end});
}

// The scores of a stripe of rows with some keys of a tile, whole chunks of them, before any rule.
template <int splits>
inline void multiply_scores(const Call& call, Block& block, const PackedKeys& keys, Range stripe,
                            Range tile, int first_row, bool two_rows) {
    constexpr int64_t cells = splits * tile_cells;
    const int64_t chunks = chunks_of(call.depth);
    const int32_t* queries = block.query_tiles + first_row / 16 * chunks * cells;
    const int32_t* turned_keys = keys.key_tiles + (stripe.first - keys.first) / 16 * chunks * cells;
    float* scores = block.scores + (stripe.first - tile.first);
    const int64_t length = stripe.end - stripe.first;
#if defined(__AMX_BF16__)
    // Longer rows are slower this way.
    if (splits == 1 && two_rows && length <= plain_tile && chunks <= 2) {
        const auto multiply = chunks == 1 ? multiply_queries<1> : multiply_queries<2>;
        return multiply(queries, turned_keys, scores, block.score_row, length / 16);
    }
#endif
    for (int64_t panel = 0; panel < length; panel += 32)
        multiply_tiles<splits>(
            two_rows, true, {queries, cells, chunks * cells, 16},
            {turned_keys + panel / 16 * chunks * cells, cells, chunks * cells, 16}, scores + panel,
            block.score_row, chunks, false);
}

// The sums of a stripe of rows += weights times values, for whole chunks of keys.
template <int splits>
inline void weigh_values(const Call& call, Block& block, const PackedKeys& keys,
                         const Tiles& weights, Range stripe, int first_row, bool two_rows) {
    constexpr int64_t cells = splits * tile_cells;
    const int64_t columns = round_up(call.value_depth, 16) / 16;
    for (int64_t key = stripe.first, end; key < stripe.end; key = end) {
        end = splits > 1 ? end_of_piece(key, stripe.end) : stripe.end;
        const int64_t chunk = (key - stripe.first) / chunk_terms;
        for (int64_t n = 0; n < columns; n += 2)
            multiply_tiles<splits>(
                two_rows, n + 1 < columns,
                {weights.cells + chunk * weights.chunk, weights.chunk, weights.block, weights.row},
                {keys.value_tiles + ((key - keys.first) / chunk_terms * columns + n) * cells,
                 columns * cells, cells, 16},
                block.sums + first_row * block.sums_row + n * 16, block.sums_row,
                (end - key) / chunk_terms, true);
    }
}

// Let one tile of keys pass a stripe of rows.
template <int splits, bool with_statistics>
inline void pass_stripe(const Call& call, Block& block, const PackedKeys& keys, Range tile,
                        int first_row) {
    const int end_row = (int)smaller(first_row + stripe_rows, block.rows);
    Range stripe = group_range(block, first_row, end_row - first_row, tile);
    if (stripe.empty()) return;
    stripe = widened(stripe, tile, chunk_terms);
    const bool two_rows = end_row - first_row > 16, rules = has_rules(call);
    constexpr int64_t cells = splits * tile_cells;
    const int64_t chunks_in_tile = block.tile_width / chunk_terms;
    multiply_scores<splits>(call, block, keys, stripe, tile, first_row, two_rows);
    for (int row = first_row; row < end_row; ++row)
        prepare_row_pairs<with_statistics>(call, block, row, tile, rules);
    for (int row = first_row; row < end_row; ++row)
        softmax_row_pairs<splits, with_statistics>(call, block, row, stripe, tile);
    const int64_t first_chunk = (stripe.first - tile.first) / chunk_terms;
    const Tiles weights =
        weights_in_place<splits>(call)
            ? Tiles{reinterpret_cast<int32_t*>(block.scores) + first_chunk * (chunk_terms / 2),
                    chunk_terms / 2, 16 * block.score_row, block.score_row}
            : Tiles{block.weight_tiles + first_chunk * cells, cells, chunks_in_tile * cells, 16};
    weigh_values<splits>(call, block, keys, weights, stripe, first_row, two_rows);
}

}  // namespace WEFT_INSTRUCTION_SET
}  // namespace weft

#endif
