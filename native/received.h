// What each key receives: the columns of the weights, their sums and their largest.
//
// A weight is known when the last key of its row has passed. Until then the powers of a block wait
// where they were made: each tile has a place of its own for its scores, where otherwise all tiles
// share one. With the powers waits, for each tile and row, the factor by which the tile's scores
// raised the level of those before it; from the last tile back, their product brings a row's
// normaliser to the level of each tile. The sums cost some hundredth of the products.
#pragma once

#include "multiply.h"
#include "workspace.h"

namespace headloom {
namespace HEADLOOM_INSTRUCTION_SET {

struct Waiting {
    float* powers;  // (tiles, rows, score_row); nullptr where nobody asks what keys receive
    float* raised;  // (tiles, rows)
    Range* ranges;  // (tiles,): their keys
    int64_t rows;   // of a tile that there is room for
    int64_t tiles;  // that have passed
    float* share;   // (3, call.share_row): what the task's rows of this head give to each key
};

inline Waiting lay_out_waiting(const Call& call, int64_t queries, int64_t tile_width,
                               int64_t score_row, Workspace& space) {
    Waiting waiting{};
    if (!call.received) return waiting;
    // Tiles begin at a multiple of panel_columns, which may be before the first key that is seen.
    const int64_t tiles = (call.keys_count + panel_columns) / tile_width + 1;
    waiting.rows = smaller(queries, round_up(call.queries_count, 32));
    waiting.powers = space.take<float>(tiles * waiting.rows * score_row + lanes);
    waiting.raised = space.take<float>(tiles * waiting.rows);
    waiting.ranges = space.take<Range>(tiles);
    return waiting;
}

// sums[j] += the weights of some rows with key j; most[j] becomes the largest of them if it is
// larger. A weight is its power times the factor of its row.
template <int rows>
inline void add_weights(const float* powers, int64_t row_step, const float* factors, Range area,
                        float* sums, float* most) {
    Floats factor[rows];
    for (int r = 0; r < rows; ++r) factor[r] = broadcast(factors[r]);
    for (int64_t j = area.first; j < area.end; j += lanes) {
        Floats total{}, highest = load(most + j);
        for (int r = 0; r < rows; ++r) {
            const Floats weight = load(powers + r * row_step + j) * factor[r];
            total += weight;
            highest = maximum(weight, highest);  // in this order NaN stays
        }
        store(sums + j, load(sums + j) + total);
        store(most + j, highest);
    }
}

// Whole vectors around what a row sees of a tile: all other places hold no powers.
inline Range powers_of(Range visible, Range tile) {
    const Range keys = intersection(visible, tile);
    if (keys.empty()) return {};
    return {tile.first + (keys.first - tile.first) / lanes * lanes,
            tile.first + round_up(keys.end - tile.first, lanes)};
}

// The weights of rows `first` to `end` with the keys of a tile join the sums and the largest.
inline void add_tile(const float* powers, int64_t score_row, const Range* visible, Range tile,
                     const float* factors, int first, int end, float* sums, float* most) {
    for (int row = first; row < end; row += group_rows) {
        const int rows = (int)smaller(group_rows, end - row);
        Range common = powers_of(visible[row], tile);
        for (int r = row + 1; r < row + rows; ++r)
            common = intersection(common, powers_of(visible[r], tile));
        const bool whole = rows == group_rows && !common.empty();
        const float* of_row = powers + row * score_row - tile.first;  // by key
        if (whole) add_weights<group_rows>(of_row, score_row, factors + row, common, sums, most);
        for (int r = row; r < row + rows; ++r, of_row += score_row) {
            const Range area = powers_of(visible[r], tile);
            const Range before{area.first, whole ? common.first : area.end};
            if (!before.empty()) add_weights<1>(of_row, 0, factors + r, before, sums, most);
            if (whole && common.end < area.end)
                add_weights<1>(of_row, 0, factors + r, {common.end, area.end}, sums, most);
        }
    }
}

// All that the keys receive from the rows of a block, once their normalisers are known. These are
// changed on the way.
inline void receive(const Call& call, const Waiting& waiting, int64_t score_row,
                    const Range* visible, int64_t first_query, int rows, float* normalisers) {
    float *sums = waiting.share, *most = sums + call.share_row, *last = most + call.share_row;
    const int first_last =
        (int)smaller(larger(call.queries_count - call.last_queries - first_query, 0), rows);
    // A row whose total is no number gives none to any key, whichever it sees.
    bool broken = false, broken_last = false;
    for (int row = 0; row < rows; ++row)
        if (normalisers[row] != normalisers[row]) {
            broken = true;
            broken_last |= row >= first_last;
        }
    for (int64_t j = 0; broken && j < call.keys_count; ++j) {
        sums[j] = most[j] = __builtin_nanf("");
        if (broken_last) last[j] = __builtin_nanf("");
    }
    for (int64_t t = waiting.tiles - 1; t >= 0; --t) {
        const float* powers = waiting.powers + t * waiting.rows * score_row;
        add_tile(powers, score_row, visible, waiting.ranges[t], normalisers, 0, rows, sums, most);
        if (first_last < rows)
            // (The largest weights of these rows are among those of all.)
            add_tile(powers, score_row, visible, waiting.ranges[t], normalisers, first_last, rows,
                     last, most);
        for (int row = 0; row < rows; ++row)
            normalisers[row] *= waiting.raised[t * waiting.rows + row];
    }
}

}  // namespace HEADLOOM_INSTRUCTION_SET
}  // namespace headloom
