// What vectors do between the products of the backward pass on pairs (backward_pairs.h): from S and
// dP to P and dS, packed as factors, two rows of a stripe at a time.
#pragma once

#include "backward_factors.h"

#if defined(__AMX_BF16__)

namespace headloom {
namespace HEADLOOM_INSTRUCTION_SET {

// The rows of one unit, done beside products of other units: tiles are multiplied by a unit of the
// processor that takes its time, and vectors by others, which would wait.
template <int splits>
class RowsBeside {
public:
    static constexpr int64_t cells = splits * tile_cells;

    // keys: whole chunks of a patch. calls: how often the products beside will call.
    RowsBeside(const Call& call, const Gradients& to, const BackwardTile& t, const BackwardPairs& p,
               const Unit& unit, const Patch& patch, int64_t b, int64_t h, int64_t first_query,
               int64_t stripe, int64_t rows, Range keys, int64_t first_chunk, int64_t calls)
        : call_(call),
          to_(to),
          t_(t),
          factor_(p.factor),
          b_(b),
          h_(h),
          first_query_(first_query),
          rows_(rows),
          chunks_((keys.end - keys.first) / chunk_terms),
          keys_(keys),
          plain_(!has_rules(call) && !to.by_entropy && !to.kept),
          lse_(to.lse + (b * call.heads + h) * call.queries_count + first_query),
          subtract_(to.subtract + (lse_ - to.lse)),
          share_(calls > 0 ? (16 * 3 * chunks_ + calls - 1) / calls : 0) {
        t_.score_row = patch_row;
        t_.scores = unit.scores;
        t_.gradients = unit.gradients;
        const int64_t at = (stripe * patch_blocks + 2 * first_chunk) * cells;
        weights_ = patch.weights + at;
        gradients_ = patch.gradients + at;
        terms_ = unit.gradient_terms + first_chunk * cells;
    }

    // A share of the work.
    void operator()() { work(share_); }

    void finish() { work(16 * 3 * chunks_); }

private:
    bool sees_all(int64_t row) const {
        const Range seen = visible_keys(call_, b_, first_query_ + row);
        return seen.first <= keys_.first && keys_.end <= seen.end;
    }

    // Some steps, each of rows n and 16 + n and a chunk of keys: one vector of each, or what takes
    // both. Steps are small, so that the matrix unit never waits for one.
    __attribute__((noinline)) void work(int64_t steps) {
        for (; steps > 0 && row_ < 16; --steps) {
            if (chunk_ == 0 && part_ == 0) begin(row_);
            take(row_, chunk_, part_);
            if (++part_ < 3) continue;
            part_ = 0;
            if (++chunk_ < chunks_) continue;
            chunk_ = 0;
            ++row_;
        }
    }

    void take(int64_t row, int64_t chunk, int64_t part) {
        float* gradients = t_.gradients + row * patch_row + chunk * chunk_terms;
        float* next_gradients = gradients + 16 * patch_row;
        if (part == 2) {
            int32_t* terms = terms_ + chunk * cells + row * 16;
            store_pairs<splits>(load(gradients), load(gradients + 16), terms);
            store_pairs<splits>(load(next_gradients), load(next_gradients + 16),
                                terms + patch_chunks * cells);
            return;
        }
        const int64_t column = part * 16, at = (2 * chunk + part) * cells + row * 16;
        const float* scores = t_.scores + row * patch_row + chunk * chunk_terms + column;
        Floats p = load(scores), next_p = load(scores + 16 * patch_row);
        Floats g = load(gradients + column), next_g = load(next_gradients + column);
        if (is_plain_) {
            p = weight(p, row), next_p = weight(next_p, row + 16);
            g = p * (g - subtract_[row]), next_g = next_p * (next_g - subtract_[row + 16]);
            store(gradients + column, g);
            store(next_gradients + column, next_g);
        }
        store_pairs<splits>(p, next_p, weights_ + at);
        store_pairs<splits>(g, next_g, gradients_ + at);
    }

    // Rows that see all keys, without rules, need no look at each by itself.
    void begin(int64_t row) {
        is_plain_ = plain_ && row + 16 < rows_ && sees_all(row) && sees_all(row + 16);
        if (is_plain_) return;
        differentiate(row);
        differentiate(row + 16);
    }

    Floats weight(Floats score, int64_t row) const {
        constexpr int degree = splits == 1 ? 4 : 5;  // as in the forward pass
        return power_of_2<degree>((score * factor_ - lse_[row]) * log2_of_e);
    }

    void differentiate(int64_t row) {
        float* scores = t_.scores + row * patch_row;
        const int64_t length = chunks_ * chunk_terms;
        if (row >= rows_) {
            std::memset(scores, 0, length * sizeof(float));
            std::memset(t_.gradients + row * patch_row, 0, length * sizeof(float));
            return;
        }
        if (factor_ != 1.0f)
            for (int64_t j = 0; j < length; j += lanes)
                store(scores + j, load(scores + j) * factor_);
        differentiate_row(call_, to_, t_, b_, h_, first_query_ + row, row, keys_);
    }

    const Call& call_;
    const Gradients& to_;
    BackwardTile t_;
    const float factor_;
    const int64_t b_, h_, first_query_, rows_, chunks_;  // of the stripe
    const Range keys_;
    const bool plain_;
    int32_t *weights_, *gradients_, *terms_;
    const float *lse_, *subtract_;  // of the stripe's rows
    const int64_t share_;           // steps in each call
    int64_t row_ = 0, chunk_ = 0, part_ = 0;
    bool is_plain_ = false;  // the two rows of this step
};

}  // namespace HEADLOOM_INSTRUCTION_SET
}  // namespace headloom

#endif
