// The factors of the backward pass's products of pairs (backward_pairs.h): where they lie, and how
// they are packed. On a matrix unit alone: dot products of pairs in vectors are slower than floats.
#pragma once

#include "backward.h"
#include "stripe_pairs.h"

#if defined(__AMX_BF16__)

namespace headloom {
namespace HEADLOOM_INSTRUCTION_SET {

// Keys whose scores with a block of queries are computed together, so that they stay near.
constexpr int64_t patch_keys = 64, patch_row = patch_keys + row_padding;
constexpr int64_t patch_chunks = patch_keys / chunk_terms, patch_blocks = patch_keys / 16;
constexpr int64_t block_stripes = block_queries / stripe_rows;
static_assert(block_queries % stripe_rows == 0 && block_stripes <= 2, "no gap between those seen");
static_assert(backward_tile % patch_keys == 0, "whole patches");

// A patch as right factors.
struct Patch {
    int32_t* weights;    // P, (queries / 32, keys / 16, splits), of dV^T
    int32_t* gradients;  // dS, likewise, of dK^T
};

// One stripe of a patch, the unit of work.
struct Unit {
    float* scores;            // (stripe_rows, patch_row): S
    float* gradients;         // dP
    int32_t* gradient_terms;  // dS, (queries / 16, keys / 32, splits): left factor of dQ
};

struct BackwardPairs {
    // Of a tile of keys.
    int32_t* key_columns;    // K, (keys / 16, depth / 32, splits): right factor of S
    int32_t* value_columns;  // V, likewise: right factor of dP
    int32_t* key_terms;      // K, (keys / 32, depth / 16, splits): right factor of dQ
    float* key_sums;         // dK^T, (depth, backward_row)
    float* value_sums;       // dV^T, (value depth, backward_row)
    // Of a block of queries.
    int32_t* queries;       // Q, (queries / 16, depth / 32, splits): left factor of S
    int32_t* output;        // dO, likewise: left factor of dP
    int32_t* query_terms;   // Q, (depth / 16, queries / 32, splits): left factor of dK^T
    int32_t* output_terms;  // dO, likewise: left factor of dV^T
    float* query_sums;      // dQ, (queries, depth)
    // Of a patch.
    Patch patches[3];  // patches, and units of them, take turns
    Unit units[2];
    // S is `factor` times the product, and the gradients of queries and keys are multiples too.
    float query_factor, factor;
};

// Calls of fewer queries or columns, and under a band of fewer keys times columns, are not worth
// their packing.
constexpr int64_t backward_least_queries = 64, backward_least_columns = 64;
constexpr int64_t banded_least_cells = 256 * 128;

// Whether the products of a backward pass are of pairs. Relative tables want P and dS as floats.
inline bool backward_uses_pairs(const Call& call) {
    const int64_t columns = call.depth + call.value_depth;
    return call.keys_count >= pairs_least_keys && call.queries_count >= backward_least_queries &&
           columns >= backward_least_columns &&
           (!call.banded || call.keys_count * columns >= banded_least_cells) &&
           !call.key_table.data && !call.value_table.data;
}

inline BackwardPairs lay_out_backward_pairs(const Call& call, Workspace& space) {
    const int64_t cells = splits_of(call) * tile_cells;
    const int64_t depth = round_up(call.depth, 32), value_depth = round_up(call.value_depth, 32);
    BackwardPairs p{};
    p.key_columns = space.take<int32_t>(backward_tile / 16 * depth / 32 * cells);
    p.value_columns = space.take<int32_t>(backward_tile / 16 * value_depth / 32 * cells);
    p.key_terms = space.take<int32_t>(backward_tile / 32 * depth / 16 * cells);
    p.key_sums = space.take<float>(depth * backward_row);
    p.value_sums = space.take<float>(value_depth * backward_row);
    p.queries = space.take<int32_t>(block_queries / 16 * depth / 32 * cells);
    p.output = space.take<int32_t>(block_queries / 16 * value_depth / 32 * cells);
    p.query_terms = space.take<int32_t>(block_stripes * depth / 16 * cells);
    p.output_terms = space.take<int32_t>(block_stripes * value_depth / 16 * cells);
    p.query_sums = space.take<float>(block_queries * depth);
    for (Patch& patch : p.patches) {
        patch.weights = space.take<int32_t>(block_stripes * patch_blocks * cells);
        patch.gradients = space.take<int32_t>(block_stripes * patch_blocks * cells);
    }
    for (Unit& unit : p.units) {
        unit.scores = space.take<float>(stripe_rows * patch_row + lanes);
        unit.gradients = space.take<float>(stripe_rows * patch_row + lanes);
        unit.gradient_terms = space.take<int32_t>(stripe_rows / 16 * patch_chunks * cells);
    }
    const bool exact = !call.bfloat16 || is_power_of_two(call.scale);
    p.query_factor = exact ? call.scale : 1.0f;
    p.factor = exact ? 1.0f : call.scale;
    return p;
}

// Rows of a block as terms of a left factor whose rows are the tensor's columns: tiles
// (columns / 16, rows / 32, splits).
template <int splits>
inline void pack_left_turned(const Tensor& tensor, bool bfloat16, int64_t b, int64_t h,
                             int64_t first, int64_t rows, int64_t columns, float factor,
                             int32_t* tiles) {
    for (int64_t n = 0; n * 16 < columns; ++n)
        for (int64_t stripe = 0; stripe < block_stripes; ++stripe, tiles += splits * tile_cells) {
            if (stripe * stripe_rows >= rows) continue;
            Floats low[lanes], high[lanes];
            for (int64_t t = 0; t < 16; ++t) {
                const int64_t row = stripe * stripe_rows + t, rest = columns - n * 16;
                low[t] = high[t] = Floats{};
                if (row < rows)
                    low[t] =
                        load_columns(tensor, bfloat16, b, h, first + row, n * 16, rest) * factor;
                if (row + 16 < rows)
                    high[t] = load_columns(tensor, bfloat16, b, h, first + row + 16, n * 16, rest) *
                              factor;
            }
            store_turned<splits>(low, high, tiles);
        }
}

// Pack the keys and values of a tile. Returns whether all are finite.
template <int splits>
inline bool pack_backward_keys(const Call& call, int64_t b, int64_t kv_head, Range tile,
                               const BackwardPairs& p) {
    const int64_t padded = tile.first + round_up(tile.end - tile.first, chunk_terms);
    bool finite = pack_right_turned<splits>(call.keys, call.bfloat16, b, kv_head, tile.first,
                                            padded, tile.end, call.depth, p.key_columns);
    finite &= pack_right_turned<splits>(call.values, call.bfloat16, b, kv_head, tile.first, padded,
                                        tile.end, call.value_depth, p.value_columns);
    pack_right<splits>(call.keys, call.bfloat16, b, kv_head, tile.first, tile.end, call.depth,
                       p.key_terms);
    return finite;
}

// Pack a block of queries and of dO. Returns whether all are finite.
template <int splits>
inline bool pack_backward_rows(const Call& call, const Gradients& to, int64_t b, int64_t h,
                               int64_t first, int64_t rows, const BackwardPairs& p) {
    const int64_t padded = round_up(rows, 16);
    bool finite = pack_left<splits>(call.queries, call.bfloat16, b, h, first, rows, padded,
                                    call.depth, p.query_factor, p.queries);
    finite &= pack_left<splits>(to.output, false, b, h, first, rows, padded, call.value_depth, 1.0f,
                                p.output);
    pack_left_turned<splits>(call.queries, call.bfloat16, b, h, first, rows, call.depth,
                             p.query_factor, p.query_terms);
    pack_left_turned<splits>(to.output, false, b, h, first, rows, call.value_depth, 1.0f,
                             p.output_terms);
    return finite;
}

// Whether all that rows of a block bring besides queries and dO is finite.
inline bool rows_are_finite(const Gradients& to, int64_t at, int64_t rows) {
    const auto finite = [](const float* numbers, int64_t count) {
        float sum = 0;  // NaN as soon as one is not
        for (int64_t n = 0; n < count; ++n) sum += numbers[n] * 0.0f;
        return sum == 0.0f;
    };
    return finite(to.subtract + at, rows) && (!to.by_entropy || finite(to.by_entropy + at, rows)) &&
           (!to.kept || finite(to.kept_scores + at * to.kept, rows * to.kept));
}

}  // namespace HEADLOOM_INSTRUCTION_SET
}  // namespace headloom

#endif
