// The backward pass on a matrix unit: as backward.h, with tiles of bfloat16 pairs (pairs.h) for its
// five products. With a block of queries Q, and of gradients dO:
//
//     S = Q K^T, dP = dO V^T           left factors Q and dO, right factors K and V turned
//     dQ += dS K                       dS as a left factor, K as it is
//     dV^T += dO^T P, dK^T += Q^T dS   dO and Q turned, P and dS as right factors
//
// The last two are summed turned, so that P and dS are packed from their rows as they are: two rows
// make the pairs of a right factor, two vectors of one row those of a left one.
//
// A unit is a stripe of 32 queries with a patch of 64 keys. While the vectors turn the S and dP of
// one unit into factors (backward_rows.h), the matrix unit multiplies S and dP of the next, and
// what the last adds to dQ, dV and dK.
#pragma once

#include "backward_rows.h"

#if defined(__AMX_BF16__)

namespace headloom {
namespace HEADLOOM_INSTRUCTION_SET {

// The products of one block of queries with one tile of keys.
template <int splits>
class BackwardBlock {
public:
    static constexpr int64_t cells = splits * tile_cells;

    BackwardBlock(const Call& call, const Gradients& to, const BackwardTile& t,
                  const BackwardPairs& p, int64_t b, int64_t h, int64_t first_query, Range tile)
        : call_(call),
          to_(to),
          t_(t),
          p_(p),
          b_(b),
          h_(h),
          first_query_(first_query),
          rows_(smaller(block_queries, call.queries_count - first_query)),
          width_(round_up(call.depth, 32)),
          chunks_(chunks_of(call.depth)),
          value_chunks_(chunks_of(call.value_depth)),
          tile_(tile) {}

    // first: whether nothing has been added to dQ yet, nor written. Returns false, with nothing
    // done, where a number of the rows is not finite.
    bool pass(bool first) {
        find_units();
        if (count_ == 0) {
            if (first) clear_rows(queries_gradient(), 0, rows_, to_.padded_depth);
            return true;
        }
        const int64_t at = (b_ * call_.heads + h_) * call_.queries_count + first_query_;
        if (!rows_are_finite(to_, at, rows_) ||
            !pack_backward_rows<splits>(call_, to_, b_, h_, first_query_, rows_, p_))
            return false;
        std::memset(p_.query_sums, 0, round_up(rows_, stripe_rows) * width_ * sizeof(float));
        fetch_next();
        multiply_scores(0, nothing);
        for (int64_t n = 0; n < count_; ++n) {
            RowsBeside<splits> rows(call_, to_, t_, p_, p_.units[n % 2], patch_of(n), b_, h_,
                                    first_query_ + stripe_of(n) * stripe_rows, stripe_of(n),
                                    rows_of(n), keys_of(n), first_chunk_of(n), calls_of(n));
            if (n + 1 < count_) multiply_scores(n + 1, rows);
            if (n > 0) add_to_queries(n - 1, rows);
            if (n > 0) add_to_values(n - 1, rows);
            if (n > 1) add_to_keys(n - 2, rows);
            rows.finish();
        }
        add_to_queries(count_ - 1, nothing);
        add_to_values(count_ - 1, nothing);
        if (count_ > 1) add_to_keys(count_ - 2, nothing);
        add_to_keys(count_ - 1, nothing);
        first ? write_query_sums<false>() : write_query_sums<true>();
        return true;
    }

private:
    // Which keys of the tile each stripe sees, in whole chunks; and the units that have any.
    void find_units() {
        for (int64_t row = 0; row < rows_; ++row) {
            Range& seen = seen_[row / stripe_rows];
            seen = hull(seen, intersection(visible_keys(call_, b_, first_query_ + row), tile_));
        }
        for (Range& seen : seen_) {
            if (seen.empty()) continue;
            seen.first = tile_.first + (seen.first - tile_.first) / chunk_terms * chunk_terms;
            seen.end = tile_.first + round_up(seen.end - tile_.first, chunk_terms);
        }
        int8_t turn = 0;
        for (int64_t patch = 0; patch < backward_tile / patch_keys; ++patch)
            for (int64_t stripe = 0; stripe < block_stripes; ++stripe)
                if (!intersection(seen_[stripe], range_of(patch)).empty()) {
                    if (count_ > 0 && number_of_patch(count_ - 1) != patch)
                        turn = (int8_t)((turn + 1) % 3);
                    turns_[count_] = turn;
                    units_[count_++] = (int8_t)(patch * block_stripes + stripe);
                }
    }

    Range range_of(int64_t patch) const {
        const int64_t first = tile_.first + patch * patch_keys;
        return {first, first + patch_keys};
    }
    int64_t number_of_patch(int64_t n) const { return units_[n] / block_stripes; }
    int64_t stripe_of(int64_t n) const { return units_[n] % block_stripes; }
    int64_t rows_of(int64_t n) const {
        return smaller(stripe_rows, rows_ - stripe_of(n) * stripe_rows);
    }
    const Patch& patch_of(int64_t n) const { return p_.patches[turns_[n]]; }
    Range keys_of(int64_t n) const {
        return intersection(seen_[stripe_of(n)], range_of(number_of_patch(n)));
    }
    int64_t first_chunk_of(int64_t n) const {
        return (keys_of(n).first - range_of(number_of_patch(n)).first) / chunk_terms;
    }
    // Whether a patch has no more units.
    bool ends_patch(int64_t n) const {
        return n + 1 == count_ || number_of_patch(n + 1) != number_of_patch(n);
    }

    // The stripes that see a chunk of a patch.
    Range stripes_of(int64_t patch, int64_t chunk) const {
        const int64_t first = range_of(patch).first + chunk * chunk_terms;
        Range stripes;
        for (int64_t stripe = 0; stripe < block_stripes; ++stripe)
            if (!intersection(seen_[stripe], {first, first + chunk_terms}).empty())
                stripes = hull(stripes, {stripe, stripe + 1});
        return stripes;
    }

    // How often the products that are multiplied while the rows of a unit are done call them.
    int64_t calls_of(int64_t n) const {
        const auto chunks_at = [&](int64_t unit) {
            const Range keys = keys_of(unit);
            return (keys.end - keys.first) / chunk_terms;
        };
        const auto of_patch = [&](int64_t unit, int64_t depth) {
            int64_t count = 0;
            for (int64_t chunk = 0; ends_patch(unit) && chunk < patch_chunks; ++chunk) {
                const Range stripes = stripes_of(number_of_patch(unit), chunk);
                if (!stripes.empty()) count += (stripes.end - stripes.first) * chunks_of(depth);
            }
            return count;
        };
        int64_t count = 0;
        if (n + 1 < count_) count += chunks_at(n + 1) * (chunks_ + value_chunks_);
        if (n > 0) count += chunks_at(n - 1) * chunks_ + of_patch(n - 1, call_.value_depth);
        if (n > 1) count += of_patch(n - 2, call_.depth);
        return count * calls_beside<splits>;
    }

    // Ask for the rows of the next block, which are far.
    void fetch_next() const {
        const int64_t first = first_query_ + block_queries;
        const int64_t end = smaller(first + block_queries, call_.queries_count);
        for (int64_t row = first; row < end; ++row) {
            const char* query = call_.bfloat16
                                    ? (const char*)call_.queries.at<uint16_t>(b_, h_, row)
                                    : (const char*)call_.queries.at<float>(b_, h_, row);
            const int64_t bytes = call_.depth * (call_.bfloat16 ? 2 : 4);
            for (int64_t n = 0; n < bytes; n += 64) __builtin_prefetch(query + n, 0, 2);
            const float* output = to_.output.at<float>(b_, h_, row);
            for (int64_t d = 0; d < call_.value_depth; d += 16)
                __builtin_prefetch(output + d, 0, 2);
        }
    }

    // S and dP of a unit.
    template <typename Beside>
    void multiply_scores(int64_t n, Beside& beside) const {
        const Range keys = keys_of(n);
        const Unit& unit = p_.units[n % 2];
        const auto multiply = [&](const int32_t* rows, const int32_t* columns, int64_t chunks,
                                  float* to) {
            const Tiles left{rows + 2 * stripe_of(n) * chunks * cells, cells, chunks * cells, 16};
            for (int64_t key = keys.first; key < keys.end; key += 32)
                multiply_tiles<splits>(rows_of(n) > 16, true, left,
                                       {columns + (key - tile_.first) / 16 * chunks * cells, cells,
                                        chunks * cells, 16},
                                       to + (key - keys.first), patch_row, chunks, false, beside);
        };
        multiply(p_.queries, p_.key_columns, chunks_, unit.scores);
        multiply(p_.output, p_.value_columns, value_chunks_, unit.gradients);
    }

    // dQ += dS K.
    template <typename Beside>
    void add_to_queries(int64_t n, Beside& beside) const {
        const Range keys = keys_of(n);
        const int64_t columns = (call_.depth + 15) / 16, length = (keys.end - keys.first) / 32;
        const Tiles left{p_.units[n % 2].gradient_terms + first_chunk_of(n) * cells, cells,
                         patch_chunks * cells, 16};
        const int32_t* right = p_.key_terms + (keys.first - tile_.first) / 32 * columns * cells;
        float* sums = p_.query_sums + stripe_of(n) * stripe_rows * width_;
        for (int64_t column = 0; column < columns; column += 2)
            multiply_tiles<splits>(rows_of(n) > 16, column + 1 < columns, left,
                                   {right + column * cells, columns * cells, cells, 16},
                                   sums + column * 16, width_, length, true, beside);
    }

    // dV^T += dO^T P, of a patch whose last unit this is.
    template <typename Beside>
    void add_to_values(int64_t n, Beside& beside) const {
        if (ends_patch(n))
            add_turned(n, p_.output_terms, call_.value_depth, patch_of(n).weights, p_.value_sums,
                       beside);
    }

    // dK^T += Q^T dS. A unit later, so that every unit's rows have as many products beside them.
    template <typename Beside>
    void add_to_keys(int64_t n, Beside& beside) const {
        if (ends_patch(n))
            add_turned(n, p_.query_terms, call_.depth, patch_of(n).gradients, p_.key_sums, beside);
    }

    template <typename Beside>
    void add_turned(int64_t n, const int32_t* terms, int64_t depth, const int32_t* columns,
                    float* sums, Beside& beside) const {
        const int64_t patch = number_of_patch(n), blocks = (depth + 15) / 16;
        for (int64_t chunk = 0; chunk < patch_chunks; ++chunk) {
            const Range stripes = stripes_of(patch, chunk);
            if (stripes.empty()) continue;
            const int64_t right = (stripes.first * patch_blocks + 2 * chunk) * cells;
            float* to = sums + patch * patch_keys + chunk * chunk_terms;
            for (int64_t d = 0; d < blocks; d += 2)
                multiply_tiles<splits>(d + 1 < blocks, true,
                                       {terms + (d * block_stripes + stripes.first) * cells, cells,
                                        block_stripes * cells, 16},
                                       {columns + right, patch_blocks * cells, cells, 16},
                                       to + d * 16 * backward_row, backward_row,
                                       stripes.end - stripes.first, true, beside);
        }
    }

    float* queries_gradient() const {
        const int64_t piece = tile_.first / to_.piece_keys;
        const int64_t head = (piece * call_.batch + b_) * call_.heads + h_;
        return to_.queries + (head * call_.queries_count + first_query_) * to_.padded_depth;
    }

    template <bool add>
    void write_query_sums() const {
        float* to = queries_gradient();
        for (int64_t row = 0; row < rows_; ++row, to += to_.padded_depth)
            for (int64_t d = 0; d < to_.padded_depth; d += lanes) {
                const Floats sum = load(p_.query_sums + row * width_ + d) * call_.scale;
                store(to + d, add ? load(to + d) + sum : sum);
            }
    }

    const Call& call_;
    const Gradients& to_;
    const BackwardTile& t_;
    const BackwardPairs& p_;
    const int64_t b_, h_, first_query_, rows_, width_, chunks_, value_chunks_;
    const Range tile_;
    Range seen_[block_stripes];
    static constexpr int64_t most_units = backward_tile / patch_keys * block_stripes;
    int8_t units_[most_units];  // patches times stripes
    int8_t turns_[most_units];  // which of the places of patches each has
    int64_t count_ = 0;
};

// rows[j, :] (+)= factor * sums[:, j], for so many rows of `padded` columns.
template <bool add>
inline void write_turned_sums(const float* sums, int64_t padded, int64_t rows, float factor,
                              float* to) {
    for (int64_t j = 0; j < rows; j += lanes)
        for (int64_t d = 0; d < padded; d += lanes) {
            Floats square[lanes];
#pragma GCC unroll 16
            for (int row = 0; row < lanes; ++row)
                square[row] = load(sums + (d + row) * backward_row + j);
            transpose(square);
            for (int64_t row = 0; row < smaller(lanes, rows - j); ++row) {
                float* place = to + (j + row) * padded + d;
                const Floats sum = square[row] * factor;
                store(place, add ? load(place) + sum : sum);
            }
        }
}

}  // namespace HEADLOOM_INSTRUCTION_SET
}  // namespace headloom

#endif
