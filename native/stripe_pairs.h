// A tile of keys and a stripe of rows, 32 of a block of queries, whose products are of bfloat16
// pairs; of float32 in stripe_beside.h, which takes the products from here. All between the two
// products - rules, candidates, maximum, sums - is as in forward.h.
#pragma once

#include "forward.h"
#include "multiply_pairs.h"

#if defined(HEADLOOM_HAS_PAIRS)

namespace headloom {
namespace HEADLOOM_INSTRUCTION_SET {

inline int64_t chunks_of(int64_t terms) { return (terms + chunk_terms - 1) / chunk_terms; }

// The powers of a row's scores as a left factor, chunk by chunk, and their sums. base: what is
// subtracted from their exponents. step: from one chunk of the factor to the next.
template <int splits, bool with_moment>
inline void exponentiate_chunks(float base, float* scores, int64_t chunks, int32_t* to,
                                int64_t step, bool keep_weights, Floats& to_total,
                                Floats& to_moment) {
    // Weights that are rounded to 8 bits need no more than 18.
    constexpr int degree = splits == 1 ? 4 : 5;
    Floats total = to_total, moment = to_moment;  // in registers
    for (int64_t c = 0; c < chunks; ++c, to += step) {
        float* chunk = scores + c * chunk_terms;
        const Floats x = multiply_subtract(load(chunk), log2_of_e, base);
        const Floats y = multiply_subtract(load(chunk + 16), log2_of_e, base);
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
    to_total = total;
    if (with_moment) to_moment = moment;
}

// The same for all that is seen of a row at once.
template <int splits, bool with_moment>
inline void exponentiate_pairs(Running& row, float* scores, int64_t chunks, int32_t* to,
                               int64_t step, bool keep_weights) {
    Floats total{}, moment{};
    const float base = base_near(row, scores, 2 * chunks);
    exponentiate_chunks<splits, with_moment>(base, scores, chunks, to, step, keep_weights, total,
                                             moment);
    row.total += total;
    if (with_moment) row.moment += moment;
}

// Whether the weights of a row, half as wide as its scores, take their place: what was just read is
// still near. Where the weights are wanted as floats too they do not fit.
inline bool weights_in_place(const Call& call) { return !call.value_table.data && !call.received; }

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
                                 tile, scores + tile.first, rules, block.waiting.tiles - 1);
}

// One row of a tile: scores to exponentials in tiles. `stripe`: what the product computed, whole
// chunks of keys.
template <bool with_statistics>
inline void softmax_row_pairs(const Call& call, Block& block, int row, Range stripe, Range tile) {
    const int64_t chunks_in_tile = block.tile_width / chunk_terms;
    float* scores = block.scores + row % stripe_rows * block.score_row - tile.first;  // by key
    const bool in_place = weights_in_place(call);
    int32_t* weights = in_place ? reinterpret_cast<int32_t*>(scores + tile.first)
                                : block.weight_tiles +
                                      row % stripe_rows / 16 * chunks_in_tile * tile_cells +
                                      row % 16 * 16;
    const int64_t step = in_place ? chunk_terms / 2 : tile_cells;
    const auto chunk_of = [&](int64_t key) { return (key - tile.first) / chunk_terms; };
    const auto clear = [&](Range keys) {
        for (int64_t j = keys.first; j < keys.end; j += chunk_terms)
            store(weights + chunk_of(j) * step, Integers{});
    };
    const Range area = chunks_seen(block, row, tile);
    if (call.value_depth == 0) {  // nothing to weigh: the row's totals are all that is asked
        if (!area.empty())
            exponentiate<with_statistics>(block.running[row], scores + area.first,
                                          (area.end - area.first) / lanes);
        return;
    }
    if (area.empty()) return clear(stripe);
    exponentiate_pairs<1, with_statistics>(
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

// The calls of what is done beside the products of a stripe.
template <int splits>
inline int64_t score_calls(const Call& call, Range stripe) {
    return (stripe.end - stripe.first) / chunk_terms * chunks_of(call.depth) * calls_beside<splits>;
}
template <int splits>
inline int64_t value_calls(const Call& call, Range stripe) {
    return (stripe.end - stripe.first) / chunk_terms * chunks_of(call.value_depth) *
           calls_beside<splits>;
}

// The scores of a stripe of rows with some keys, whole chunks of them, before any rule. scores: of
// the first row and key.
template <int splits, typename Beside = const Nothing>
inline void multiply_scores(const Call& call, const Block& block, const PackedKeys& keys,
                            Range stripe, int first_row, bool two_rows, float* scores,
                            Beside& beside = nothing) {
    constexpr int64_t cells = splits * tile_cells;
    const int64_t chunks = chunks_of(call.depth);
    const int32_t* queries = block.query_tiles + first_row / 16 * chunks * cells;
    const int32_t* turned_keys = keys.key_tiles + (stripe.first - keys.first) / 16 * chunks * cells;
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
            block.score_row, chunks, false, beside);
}

// The sums of a stripe of rows += weights times values, for whole chunks of keys.
template <int splits, typename Beside = const Nothing>
inline void weigh_values(const Call& call, const Block& block, const PackedKeys& keys,
                         const Tiles& weights, Range stripe, int first_row, bool two_rows,
                         Beside& beside = nothing) {
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
                (end - key) / chunk_terms, true, beside);
    }
}

// Let one tile of keys pass a stripe of rows.
template <bool with_statistics>
inline void pass_stripe(const Call& call, Block& block, const PackedKeys& keys, Range tile,
                        int first_row) {
    const int end_row = (int)smaller(first_row + stripe_rows, block.rows);
    Range stripe = group_range(block, first_row, end_row - first_row, tile);
    if (stripe.empty()) return;
    stripe = widened(stripe, tile, chunk_terms);
    const bool two_rows = end_row - first_row > 16, rules = has_rules(call);
    const int64_t chunks_in_tile = block.tile_width / chunk_terms;
    multiply_scores<1>(call, block, keys, stripe, first_row, two_rows,
                       block.scores + (stripe.first - tile.first));
    for (int row = first_row; row < end_row; ++row)
        prepare_row_pairs<with_statistics>(call, block, row, tile, rules);
    for (int row = first_row; row < end_row; ++row)
        softmax_row_pairs<with_statistics>(call, block, row, stripe, tile);
    const int64_t first_chunk = (stripe.first - tile.first) / chunk_terms;
    const Tiles weights =
        weights_in_place(call)
            ? Tiles{reinterpret_cast<int32_t*>(block.scores) + first_chunk * (chunk_terms / 2),
                    chunk_terms / 2, 16 * block.score_row, block.score_row}
            : Tiles{block.weight_tiles + first_chunk * tile_cells, tile_cells,
                    chunks_in_tile * tile_cells, 16};
    weigh_values<1>(call, block, keys, weights, stripe, first_row, two_rows);
}

}  // namespace HEADLOOM_INSTRUCTION_SET
}  // namespace headloom

#endif
