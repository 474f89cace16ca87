// Float32 on a matrix unit, a stripe of rows and a tile of keys at a time, as in stripe_pairs.h:
// but while vectors turn the scores of one stripe into weights, the unit multiplies the weights of
// the stripe before with its values, and the scores of the one after. With three numbers for each
// its products take longer than all the vectors do. (Of bfloat16 they take less; and beside them
// vectors multiply and add at half their speed, so that nothing is gained.)
#pragma once

#include "stripe_pairs.h"

#if defined(HEADLOOM_HAS_PAIRS)

namespace headloom {
namespace HEADLOOM_INSTRUCTION_SET {

// A stripe of rows, up to 32 of a block of queries, with a tile of keys.
struct Stripe {
    Range tile, keys;  // those whose scores are multiplied: whole chunks of the tile
    int first_row, end_row;
    int64_t place;     // the number of the tile, where it is asked what keys receive
    float* scores;     // of the first row, from the tile's first key on
    int32_t* weights;  // as a left factor, from the tile's first key on

    bool two_tiles() const { return end_row - first_row > 16; }
    int64_t first_chunk() const { return (keys.first - tile.first) / chunk_terms; }
    int64_t chunks() const { return (keys.end - keys.first) / chunk_terms; }
    float* multiplied() const { return scores + (keys.first - tile.first); }
};

// The softmax of a stripe's rows, done beside products.
template <bool with_statistics>
class SoftmaxBeside {
public:
    static constexpr int splits = 3;
    static constexpr int64_t step = splits * tile_cells;

    // calls: how often the products beside will call.
    SoftmaxBeside(const Call& call, Block& block, const Stripe& stripe, int64_t calls)
        : call_(call),
          block_(block),
          stripe_(stripe),
          rules_(has_rules(call)),
          whole_(sees_whole()),
          chooses_(with_statistics && call.kept > 0 && whole_),
          weighs_(call.value_depth > 0),
          keep_weights_(block.by_distance != nullptr || call.received != nullptr),
          share_(calls > 0
                     ? ((stripe.end_row - stripe.first_row) * stripe.chunks() + calls - 1) / calls
                     : 0),
          row_(stripe.first_row) {
        if (chooses_) look(row_);
    }

    // A share of the work.
    void operator()() { work(share_); }

    void finish() { work(stripe_rows * stripe_.chunks()); }

private:
    // Whether every row sees all keys of the stripe, and no rule changes their scores.
    bool sees_whole() const {
        if (rules_ || block_.by_distance) return false;
        const int end = one_range_for_all(call_) ? stripe_.first_row + 1 : stripe_.end_row;
        for (int row = stripe_.first_row; row < end; ++row)
            if (block_.visible[row].first > stripe_.keys.first ||
                block_.visible[row].end < stripe_.keys.end)
                return false;
        return true;
    }

    // Some chunks of keys of one row, or of more than one.
    __attribute__((noinline)) void work(int64_t chunks) {
        while (chunks > 0 && row_ < stripe_.end_row) {
            if (chunk_ == area_.first) begin();
            const int64_t some = smaller(chunks, area_.end - chunk_);
            pass({chunk_, chunk_ + some});
            chunks -= some;
            chunk_ += some;
            if (chunk_ == area_.end) end();
        }
    }

    // A row before its exponentials.
    void begin() {
        const int64_t row = row_ - stripe_.first_row;
        scores_ = stripe_.scores + row * block_.score_row;
        weights_ =
            stripe_.weights + row / 16 * (block_.tile_width / chunk_terms) * step + row % 16 * 16;
        total_ = moment_ = Floats{};
        if (whole_)
            begin_whole();
        else
            begin_part();
        chunk_ = area_.first;
    }

    void begin_whole() {
        const int64_t vectors = 2 * stripe_.chunks();
        float* scores = scores_ + (stripe_.keys.first - stripe_.tile.first);
        area_ = {stripe_.first_chunk(), stripe_.first_chunk() + stripe_.chunks()};
        Floats highest;
        if (chooses_) {
            const Scan& seen = seen_[row_ % 2];
            highest = seen.highest;
            look(row_ + 1);
            float guess = block_.guess * block_.norms[row_];
            take_candidates(block_.candidates[row_], call_.kept, seen, scores, vectors,
                            (int32_t)stripe_.keys.first, guess);
            if (seen.first) block_.guess = guess / block_.norms[row_];
        } else
            highest = highest_lanes(scores, vectors);
        if (with_statistics) block_.count[row_] += (int32_t)(stripe_.keys.end - stripe_.keys.first);
        Running& running = block_.running[row_];
        if (lanes_above(highest, broadcast(running.limit())))
            raise_row(block_, row_, largest(highest), stripe_.place);
        if (weighs_) base_ = base_near(running, scores, vectors);
    }

    // A row that does not see all, or has rules.
    void begin_part() {
        const Range seen = intersection(block_.visible[row_], stripe_.tile);
        area_ = {};
        if (seen.empty()) return;
        const Range area = widened(seen, stripe_.tile, chunk_terms);
        prepare_row<with_statistics>(call_, block_, row_, seen, area, stripe_.tile, scores_, rules_,
                                     stripe_.place);
        area_ = {(area.first - stripe_.tile.first) / chunk_terms,
                 (area.end - stripe_.tile.first) / chunk_terms};
        if (weighs_)
            base_ = base_near(block_.running[row_], scores_ + (area.first - stripe_.tile.first),
                              (area.end - area.first) / lanes);
    }

    // A row is looked at for candidates while the one before is worked on.
    void look(int row) {
        if (row == stripe_.end_row) return;
        const int64_t vectors = 2 * stripe_.chunks();
        Scan& seen = seen_[row % 2];
        begin_scan(block_.candidates[row], call_.kept, block_.capacity, vectors,
                   block_.guess * block_.norms[row], seen);
        scan(stripe_.multiplied() + (row - stripe_.first_row) * block_.score_row, vectors, seen);
    }

    // The exponentials of some chunks.
    void pass(Range chunks) {
        const int64_t some = chunks.end - chunks.first;
        float* scores = scores_ + chunks.first * chunk_terms;
        if (weighs_)
            exponentiate_chunks<splits, with_statistics>(base_, scores, some,
                                                         weights_ + chunks.first * step, step,
                                                         keep_weights_, total_, moment_);
        else  // the row's totals are all that is asked
            exponentiate<with_statistics>(block_.running[row_], scores, 2 * some);
    }

    void end() {
        Running& running = block_.running[row_];
        running.total += total_;
        if (with_statistics) running.moment += moment_;
        if (!whole_) end_part();
        area_ = {};
        chunk_ = 0;
        ++row_;
    }

    void end_part() {
        if (block_.by_distance) {
            const Range keys = intersection(block_.visible[row_], stripe_.tile);
            if (!keys.empty())
                sum_by_distance(call_, scores_ + (keys.first - stripe_.tile.first),
                                block_.first_query + row_, keys,
                                block_.by_distance + row_ * block_.table_row);
        }
        const int64_t first = stripe_.first_chunk(), end = first + stripe_.chunks();
        clear({first, smaller(area_.first, end)});
        clear({larger(area_.end, first), end});
    }

    // What the row does not see weighs 0.
    void clear(Range chunks) {
        for (int64_t chunk = chunks.first; chunk < chunks.end; ++chunk)
            for (int split = 0; split < splits; ++split)
                store(weights_ + chunk * step + split * tile_cells, Integers{});
    }

    const Call& call_;
    Block& block_;
    const Stripe& stripe_;
    const bool rules_, whole_, chooses_, weighs_, keep_weights_;
    const int64_t share_;  // chunks in each call
    // Of the row that is being done.
    int row_;
    int64_t chunk_ = 0;
    Range area_;  // the chunks of the tile that it sees a part of
    float* scores_ = nullptr;
    int32_t* weights_ = nullptr;
    float base_ = 0;
    Floats total_{}, moment_{};
    // Of it and of the next.
    Scan seen_[2];
};

// The stripes of a block in turn.
template <bool with_statistics>
class StripesInTurn {
public:
    static constexpr int splits = 3;
    static constexpr int64_t cells = splits * tile_cells;

    StripesInTurn(const Call& call, Block& block, const PackedKeys& keys)
        : call_(call), block_(block), keys_(keys), tile_chunks_(block.tile_width / chunk_terms) {}

    // Let a tile of keys pass the rows from first_row on.
    void pass(Range tile, int first_row) {
        const int end_row = (int)smaller(first_row + stripe_rows, block_.rows);
        const Range seen = group_range(block_, first_row, end_row - first_row, tile);
        if (seen.empty()) return;
        const int64_t place = block_.waiting.tiles - 1, turn = count_ % 2;
        Stripe& next = stripes_[count_ % 3];
        next = {tile,
                widened(seen, tile, chunk_terms),
                first_row,
                end_row,
                place,
                call_.received ? place_of(block_, place, first_row)
                               : block_.scores + turn * stripe_rows * block_.score_row,
                block_.weight_tiles + turn * 2 * tile_chunks_ * cells};
        if (count_ > 0)
            compute_softmax(count_ - 1, &next);
        else
            multiply(next, nothing);
        ++count_;
    }

    void finish() {
        if (count_ == 0) return;
        compute_softmax(count_ - 1, nullptr);
        weigh(stripes_[(count_ - 1) % 3], nothing);
    }

private:
    // The softmax of stripe n, beside what can be multiplied meanwhile.
    void compute_softmax(int64_t n, const Stripe* next) {
        const Stripe& stripe = stripes_[n % 3];
        const Stripe* last = n > 0 ? &stripes_[(n - 1) % 3] : nullptr;
        // Before the level of its rows rises, their sums must be there.
        if (last && last->first_row == stripe.first_row) {
            weigh(*last, nothing);
            last = nullptr;
        }
        const int64_t calls = (last ? value_calls<splits>(call_, last->keys) : 0) +
                              (next ? score_calls<splits>(call_, next->keys) : 0);
        SoftmaxBeside<with_statistics> rows(call_, block_, stripe, calls);
        if (last) weigh(*last, rows);
        if (next) multiply(*next, rows);  // scores where those of the last were
        rows.finish();
    }

    template <typename Beside>
    void multiply(const Stripe& stripe, Beside& beside) const {
        multiply_scores<splits>(call_, block_, keys_, stripe.keys, stripe.first_row,
                                stripe.two_tiles(), stripe.multiplied(), beside);
    }

    template <typename Beside>
    void weigh(const Stripe& stripe, Beside& beside) const {
        weigh_values<splits>(
            call_, block_, keys_,
            {stripe.weights + stripe.first_chunk() * cells, cells, tile_chunks_ * cells, 16},
            stripe.keys, stripe.first_row, stripe.two_tiles(), beside);
    }

    const Call& call_;
    Block& block_;
    const PackedKeys& keys_;
    const int64_t tile_chunks_;
    Stripe stripes_[3];  // the last three
    int64_t count_ = 0;
};

}  // namespace HEADLOOM_INSTRUCTION_SET
}  // namespace headloom

#endif
