// A piece of the keys passes the few rows that meet it, tile by tile.
#pragma once

#include "few_block.h"

namespace headloom {
namespace HEADLOOM_INSTRUCTION_SET {

// The scores of every row with the keys of a tile.
inline void score_few(const Call& call, const FewBlock& block, Range tile, Ahead& ahead) {
    const int64_t number = tile.end - tile.first;
#if defined(__AVX512F__)
    if (block.spread) {
        const auto meet = [&](auto numbers, const void* keys, int64_t size) {
            meet_spread<decltype(numbers)>(block.spread, block.count, keys, call.keys.row * size,
                                           number, call.depth * size / 4, block.scores,
                                           few_score_row, block.panel, ahead);
        };
#if defined(HEADLOOM_HAS_PAIRS)
        if (call.bfloat16)
            return meet(PairNumbers{},
                        call.keys.at<uint16_t>(block.batch, block.kv_head, tile.first), 2);
#endif
        return meet(FloatNumbers{}, call.keys.at<float>(block.batch, block.kv_head, tile.first), 4);
    }
#endif
#if defined(HEADLOOM_HAS_PAIRS) && defined(__AMX_BF16__)
    if (block.tiles)
        return meet_tiles(block.tiles, block.count,
                          call.keys.at<uint16_t>(block.batch, block.kv_head, tile.first),
                          call.keys.row, number, call.depth, block.scores, few_score_row,
                          (uint16_t*)block.panel, ahead);
#endif
#if defined(HEADLOOM_HAS_PAIRS)
    if (call.bfloat16 && block.count >= rows_of_turned_pairs)
        return meet_turned_pairs((const int32_t*)block.queries, block.query_row / 2, block.count,
                                 call.keys.at<uint16_t>(block.batch, block.kv_head, tile.first),
                                 call.keys.row, number, call.depth, block.scores, few_score_row,
                                 (int32_t*)block.panel, ahead);
    const bool floats = !call.bfloat16;
#else
    const bool floats = true;
#endif
    if (floats && block.count >= rows_of_turned_floats)
        return meet_turned_keys((const float*)block.queries, block.query_row, block.count,
                                call.keys, call.bfloat16, block.batch, block.kv_head, tile,
                                call.depth, block.scores, few_score_row, block.panel, ahead);
    const auto meet = [&](auto products, const auto* queries) {
        using Products = decltype(products);
        meet_keys<Products>(
            queries, block.query_row, block.count,
            call.keys.at<typename Products::Key>(block.batch, block.kv_head, tile.first),
            call.keys.row, number, call.depth, block.scores, few_score_row, ahead);
    };
    if (!call.bfloat16) return meet(FloatProducts{}, (const float*)block.queries);
#if defined(HEADLOOM_HAS_PAIRS)
    meet(PairProducts{}, (const uint16_t*)block.queries);
#else
    meet(WideProducts{}, (const float*)block.queries);
#endif
}

// Show a row a score that may be its highest: what it has summed so far follows its level.
inline void raise_few(FewBlock& block, int row, float higher) {
    const float factor = block.rows[row].running.raise(higher);
    if (factor == 1.0f) return;
    float* sums = block.sums + row * block.sums_row;
    for (int64_t d = 0; d < block.sums_row; d += lanes) store(sums + d, load(sums + d) * factor);
}

// One row of a tile: scores to weights, floats or pairs; what the row does not see is 0.
template <bool with_statistics>
inline void softmax_few(const Call& call, FewBlock& block, int row, Range tile) {
    const bool pairs = weighs_pairs(call);
    const int64_t unit = pairs ? 2 * lanes : lanes;
    float* first_score = block.scores + row * few_score_row;
    float* scores = first_score - tile.first;  // by key
    const int64_t end = tile.first + round_up(tile.end - tile.first, unit);
    const auto clear = [&](int64_t from, int64_t to) {
        float* start = pairs ? first_score + (from - tile.first) / 2 : scores + from;
        for (int64_t j = 0; j < (pairs ? (to - from) / 2 : to - from); ++j) start[j] = 0;
    };
    const Range keys = intersection(block.visible[row], tile);
    if (keys.empty()) return clear(tile.first, end);
    const Range area = widened(keys, tile, unit);
    const int64_t vectors = (area.end - area.first) / lanes;
    if (block.factor != 1.0f)
        for (int64_t j = area.first; j < area.end; j += lanes)
            store(scores + j, load(scores + j) * block.factor);
    if (has_rules(call))
        apply_rules(call, block.batch, head_of(call, block, row), row % call.queries_count, keys,
                    nullptr, scores + keys.first);
    hide_outside(scores, keys, area);
    FewRow& state = block.rows[row];
    float highest;
    if (with_statistics && call.kept) {
        float guess = block.guess * block.norms[row];
        highest = add_candidates(state.candidates, call.kept, block.capacity, scores + area.first,
                                 vectors, (int32_t)area.first, guess);
        block.guess = guess / block.norms[row];
    } else
        highest = highest_of(scores + area.first, vectors);
    if (with_statistics) state.count += keys_seen(call, keys, scores + keys.first);
    raise_few(block, row, highest);
#if defined(HEADLOOM_HAS_PAIRS)
    if (pairs) {
        exponentiate_pairs<1, with_statistics>(
            state.running, scores + area.first, vectors / 2,
            reinterpret_cast<int32_t*>(first_score) + (area.first - tile.first) / 2,
            chunk_terms / 2, false);
        clear(tile.first, area.first);
        return clear(area.end, end);
    }
#endif
    exponentiate<with_statistics>(state.running, scores + area.first, vectors);
    clear(tile.first, area.first);
    clear(area.end, end);
}

// The sums of every row += its weights times the values of a tile.
inline void weigh_few(const Call& call, FewBlock& block, Range tile, Ahead& ahead) {
    const int64_t number = tile.end - tile.first;
    if (call.value_depth == 0) return;
    Ahead nothing;
#if defined(HEADLOOM_HAS_PAIRS)
    if (weighs_pairs(call)) {
        const uint16_t* values = call.values.at<uint16_t>(block.batch, block.kv_head, tile.first);
#if defined(__AMX_BF16__)
        if (block.tiles)
            return weigh_tiles(reinterpret_cast<const int32_t*>(block.scores), few_score_row,
                               block.count, values, call.values.row, number, call.value_depth,
                               block.sums, block.sums_row, ahead);
#endif
        for (int row = 0; row < block.count; row += group_rows)
            weigh_pairs((int)smaller(group_rows, block.count - row),
                        reinterpret_cast<const int32_t*>(block.scores + row * few_score_row),
                        few_score_row, values, call.values.row, number, call.value_depth,
                        block.sums + row * block.sums_row, block.sums_row, row ? nothing : ahead);
        return;
    }
#endif
    const float* values = block.values;
    int64_t value_row = block.sums_row;
    if (values_in_place(call)) {
        values = call.values.at<float>(block.batch, block.kv_head, tile.first);
        value_row = call.values.row;
    } else
        pack_rows(call.values, call.bfloat16, block.batch, block.kv_head, tile.first, tile.end,
                  call.value_depth, block.values);
    for (int row = 0; row < block.count; row += group_rows)
        weigh_floats((int)smaller(group_rows, block.count - row),
                     block.scores + row * few_score_row, few_score_row, values, value_row, number,
                     call.value_depth, block.sums + row * block.sums_row, block.sums_row,
                     row ? nothing : ahead);
}

// Let the keys of a piece pass.
template <bool with_statistics>
inline void pass_piece(const Call& call, FewBlock& block) {
    Range seen;
    for (int row = 0; row < block.count; ++row) seen = hull(seen, block.visible[row]);
    const bool asks = asks_ahead(call, block.count);
    for (int64_t first = seen.first; first < seen.end; first += few_tile) {
        const Range tile{first, smaller(first + few_tile, seen.end)};
        Ahead values, keys;
        if (asks)
            values = Ahead(call.values, call.bfloat16, block.batch, block.kv_head, first,
                           call.value_depth);
        score_few(call, block, tile, values);
        for (int row = 0; row < block.count; ++row)
            softmax_few<with_statistics>(call, block, row, tile);
        if (asks && tile.end < seen.end)
            keys =
                Ahead(call.keys, call.bfloat16, block.batch, block.kv_head, tile.end, call.depth);
        weigh_few(call, block, tile, keys);
    }
}

}  // namespace HEADLOOM_INSTRUCTION_SET
}  // namespace headloom
