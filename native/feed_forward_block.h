// The two maps of a feed-forward layer in one pass, of numbers rounded to bfloat16 (pairs.h).
//
//     hidden = x W_1^T + b_1,  a = f(hidden),  output = a W_2^T + b_2
//     by_a = G W_2,  by_hidden = by_a f'(hidden),  by_x = by_hidden W_1        G = by_output
//     by_W_2 = G^T a,  by_W_1 = by_hidden^T x,  by_b = sums of rows of G and by_hidden
//
// 32 rows at a time go through both maps while they are in the nearest caches. Forward, a is packed
// as it is computed, and never in memory as floats; nor is by_hidden, backward, where one
// evaluation gives f and f' both: a is not kept. Each product has the factors and the order of sums
// that linear_block.h has.
#pragma once

#include "activations.h"
#include "feed_forward_call.h"
#include "linear_call.h"
#include "multiply_pairs.h"
#include "workspace.h"

#if defined(HEADLOOM_HAS_PAIRS)

namespace headloom {
namespace HEADLOOM_INSTRUCTION_SET {

class FeedForwardBlock {
public:
    FeedForwardBlock(const FeedForwardCall& call, bool backward, char* shared_memory,
                     char* worker_memory)
        : call_(call),
          width_(call.width),
          inner_(call.inner),
          outer_(call.outer),
          stripes_((call.rows + stripe_rows - 1) / stripe_rows),
          shared(shared_memory),
          worker(worker_memory) {
        const int64_t widest = larger(inner_.blocks, larger(width_.blocks, outer_.blocks));
        panel_ = worker.take<float>(stripe_rows * panel_row(widest));
        left_inner_ = worker.take<int32_t>(2 * inner_.chunks * tile_cells);
        if (!backward) {
            rise_ = shared.take<int32_t>(inner_.blocks * width_.chunks * tile_cells);
            fall_ = shared.take<int32_t>(outer_.blocks * inner_.chunks * tile_cells);
            left_ = worker.take<int32_t>(2 * width_.chunks * tile_cells);
            return;
        }
        const int64_t tasks = (call.rows + linear_task_rows - 1) / linear_task_rows;
        if (call.by_input) rise_ = shared.take<int32_t>(inner_.chunks * width_.blocks * tile_cells);
        fall_ = shared.take<int32_t>(outer_.chunks * inner_.blocks * tile_cells);
        by_output_turned_ = shared.take<int32_t>(outer_.blocks * stripes_ * tile_cells);
        by_hidden_turned_ = shared.take<int32_t>(inner_.blocks * stripes_ * tile_cells);
        inputs_ = shared.take<int32_t>(width_.blocks * stripes_ * tile_cells);
        activated_ = shared.take<int32_t>(inner_.blocks * stripes_ * tile_cells);
        by_output_sums_ = shared.take<float>(tasks * outer_.blocks * 16);
        by_hidden_sums_ = shared.take<float>(tasks * inner_.blocks * 16);
        left_ = worker.take<int32_t>(2 * outer_.chunks * tile_cells);
        values_ = worker.take<float>(stripe_rows * panel_row(inner_.blocks));
    }

    bool pack_weights(bool backward, int64_t which) const {
        const Tensor rise{call_.rise, 0, 0, call_.width}, fall{call_.fall, 0, 0, call_.inner};
        if (!backward)
            return which == 0 ? pack_columns(rise, inner_, width_, rise_)
                              : pack_columns(fall, outer_, inner_, fall_);
        if (which == 0)
            return !rise_ || pack_right<1>(rise, false, 0, 0, 0, call_.inner, call_.width, rise_);
        return pack_right<1>(fall, false, 0, 0, 0, call_.outer, call_.inner, fall_);
    }

    template <Activation kind>
    bool forward(int64_t task) const {
        bool finite = true;
        const int64_t end = smaller((task + 1) * linear_task_rows, call_.rows);
        for (int64_t row = task * linear_task_rows; row < end; row += stripe_rows) {
            const int64_t count = smaller(stripe_rows, end - row);
            const Tensor input{call_.input, 0, 0, call_.input_row};
            finite &=
                pack_left<1>(input, false, 0, 0, row, count, stripe_rows, call_.width, 1.0f, left_);
            multiply(left_, width_.chunks, rise_, tile_cells, width_.chunks * tile_cells,
                     inner_.blocks);
            finite &= activate<kind>(row, count);
            multiply(left_inner_, inner_.chunks, fall_, tile_cells, inner_.chunks * tile_cells,
                     outer_.blocks);
            for (int64_t r = 0; r < count; ++r) {
                const float* from = panel_ + r * panel_row(outer_.blocks);
                float* to = call_.output + (row + r) * call_.outer;
                for (int64_t n = 0; n < call_.outer; n += 16)
                    store_part(to + n, load(from + n) + bias(call_.fall_biases, n, call_.outer),
                               call_.outer - n);
            }
        }
        return finite;
    }

    template <Activation kind>
    bool backward(int64_t task) const {
        bool finite = true;
        const int64_t end = smaller((task + 1) * linear_task_rows, call_.rows);
        clear(by_output_sums_ + task * outer_.blocks * 16, outer_.blocks);
        clear(by_hidden_sums_ + task * inner_.blocks * 16, inner_.blocks);
        for (int64_t row = task * linear_task_rows; row < end; row += stripe_rows) {
            const int64_t count = smaller(stripe_rows, end - row), stripe = row / stripe_rows;
            finite &= read_gradient(row, count, by_output_sums_ + task * outer_.blocks * 16);
            pack_gradient(outer_, stripe, left_, by_output_turned_);
            multiply(left_, outer_.chunks, fall_, inner_.blocks * tile_cells, tile_cells,
                     inner_.blocks);
            finite &= differentiate<kind>(row, count, by_hidden_sums_ + task * inner_.blocks * 16);
            pack_gradient(inner_, stripe, left_inner_, by_hidden_turned_);
            pack_activated(stripe);
            finite &= pack_input(row, count);
            if (!call_.by_input) continue;
            multiply(left_inner_, inner_.chunks, rise_, width_.blocks * tile_cells, tile_cells,
                     width_.blocks);
            copy_panel(call_.by_input + row * call_.width, count, width_);
        }
        return finite;
    }

    void by_weights(int64_t stripe) const {
        const int64_t of_fall = (call_.outer + stripe_rows - 1) / stripe_rows;
        if (stripe < of_fall)
            by_weights(stripe * stripe_rows, outer_, by_output_sums_, by_output_turned_, inner_,
                       activated_, call_.by_fall, call_.by_fall_biases);
        else
            by_weights((stripe - of_fall) * stripe_rows, inner_, by_hidden_sums_, by_hidden_turned_,
                       width_, inputs_, call_.by_rise, call_.by_rise_biases);
    }

private:
    // Columns of a tensor: as terms of a sum, chunks of 32; as columns of a factor, blocks of 16.
    struct Columns {
        explicit Columns(int64_t count)
            : count(count), chunks((count + 31) / 32), blocks((count + 15) / 16) {}
        const int64_t count, chunks, blocks;
    };

    // From one row of a panel of so many blocks to the next: no power of two, so that rows fall
    // into different cache sets.
    static int64_t panel_row(int64_t blocks) { return round_up(blocks, 2) * 16 + 16; }

    static Floats bias(const float* biases, int64_t n, int64_t count) {
        return biases ? load_part(biases + n, count - n) : Floats{};
    }

    static void clear(float* sums, int64_t blocks) {
        for (int64_t n = 0; n < blocks * 16; n += 16) store(sums + n, Floats{});
    }

    static bool pack_columns(const Tensor& weight, const Columns& columns, const Columns& terms,
                             int32_t* tiles) {
        return pack_right_turned<1>(weight, false, 0, 0, 0, columns.blocks * 16, columns.count,
                                    terms.count, tiles);
    }

    // panel_ = a packed stripe times a right factor of `blocks` blocks.
    void multiply(const int32_t* left_tiles, int64_t chunks, const int32_t* right_tiles,
                  int64_t right_chunk, int64_t right_block, int64_t blocks) const {
        const Tiles left{left_tiles, tile_cells, chunks * tile_cells, 16};
        for (int64_t n = 0; n < blocks; n += 2)
            multiply_tiles<1>(true, n + 1 < blocks, left,
                              {right_tiles + n * right_block, right_chunk, right_block, 16},
                              panel_ + n * 16, panel_row(blocks), chunks, false);
    }

    // What the panel has of `hidden`, with its bias, to memory; its activation as a left factor.
    template <Activation kind>
    bool activate(int64_t row, int64_t count) const {
        Integers bad{};
        for (int64_t r = 0; r < stripe_rows; ++r) {
            const float* from = panel_ + r * panel_row(inner_.blocks);
            float* to =
                call_.hidden && r < count ? call_.hidden + (row + r) * call_.inner : nullptr;
            int32_t* cells = left_inner_ + r / 16 * inner_.chunks * tile_cells + r % 16 * 16;
            const auto block = [&](int64_t n) {
                if (n >= call_.inner) return Floats{};
                const Floats x = load(from + n) + bias(call_.rise_biases, n, call_.inner);
                if (to) store_part(to + n, x, call_.inner - n);
                return activated<kind>(x).value;
            };
            for (int64_t c = 0; c < inner_.chunks; ++c) {
                const Floats low = block(c * 32), high = block(c * 32 + 16);
                bad |= not_finite(low) | not_finite(high);
                store_pairs<1>(low, high, cells + c * tile_cells);
            }
        }
        return !any(bad);
    }

    // G's rows to the panel, 0 past the last row and column; and their sums.
    bool read_gradient(int64_t row, int64_t count, float* sums) const {
        Integers bad{};
        for (int64_t r = 0; r < stripe_rows; ++r) {
            const float* from = call_.by_output + (row + r) * call_.by_output_row;
            float* to = panel_ + r * panel_row(outer_.blocks);
            for (int64_t n = 0; n < outer_.blocks * 16; n += 16) {
                const Floats x = r < count ? load_part(from + n, call_.outer - n) : Floats{};
                bad |= not_finite(x);
                store(to + n, x);
                store(sums + n, load(sums + n) + x);
            }
        }
        return !any(bad);
    }

    // The panel, by_a, becomes by_hidden, and values_ a.
    template <Activation kind>
    bool differentiate(int64_t row, int64_t count, float* sums) const {
        Integers bad{};
        for (int64_t r = 0; r < stripe_rows; ++r) {
            const float* hidden = call_.hidden + (row + r) * call_.inner;
            float* by_hidden = panel_ + r * panel_row(inner_.blocks);
            float* values = values_ + r * panel_row(inner_.blocks);
            for (int64_t n = 0; n < inner_.blocks * 16; n += 16) {
                const Floats x = r < count ? load_part(hidden + n, call_.inner - n) : Floats{};
                const Activated of = activated<kind>(x);
                const Floats gradient = of.slope * load(by_hidden + n);
                bad |= not_finite(of.value) | not_finite(gradient);
                store(values + n, of.value);
                store(by_hidden + n, gradient);
                store(sums + n, load(sums + n) + gradient);
            }
        }
        return !any(bad);
    }

    // A stripe of a gradient in the panel as a left factor, and turned.
    void pack_gradient(const Columns& columns, int64_t stripe, int32_t* left,
                       int32_t* turned) const {
        const int64_t row = panel_row(columns.blocks);
        const Tensor rows{panel_, 0, 0, row};
        pack_left<1>(rows, false, 0, 0, 0, stripe_rows, stripe_rows, columns.count, 1.0f, left);
        for (int64_t n = 0; n < columns.blocks; ++n) {
            Floats low[lanes], high[lanes];
            for (int64_t t = 0; t < 16; ++t) {
                low[t] = load(panel_ + t * row + n * 16);
                high[t] = load(panel_ + (t + 16) * row + n * 16);
            }
            store_turned<1>(low, high, turned + (n * stripes_ + stripe) * tile_cells);
        }
    }

    // A stripe of a as terms of a right factor.
    void pack_activated(int64_t stripe) const {
        const int64_t row = panel_row(inner_.blocks);
        for (int64_t n = 0; n < inner_.blocks; ++n)
            for (int64_t t = 0; t < 16; ++t)
                store_pairs<1>(load(values_ + t * row + n * 16),
                               load(values_ + (t + 16) * row + n * 16),
                               activated_ + (n * stripes_ + stripe) * tile_cells + t * 16);
    }

    // A stripe of the input as terms of a right factor.
    bool pack_input(int64_t row, int64_t count) const {
        Integers bad{};
        const float* from = call_.input + row * call_.input_row;
        for (int64_t k = 0; k < width_.blocks; ++k) {
            int32_t* to = inputs_ + (k * stripes_ + row / stripe_rows) * tile_cells;
            const auto block = [&](int64_t r) {
                return r < count
                           ? load_part(from + r * call_.input_row + k * 16, call_.width - k * 16)
                           : Floats{};
            };
            for (int64_t t = 0; t < 16; ++t) {
                const Floats low = block(t), high = block(t + 16);
                bad |= not_finite(low) | not_finite(high);
                store_pairs<1>(low, high, to + t * 16);
            }
        }
        return !any(bad);
    }

    // The first rows of the panel, as rows of a tensor.
    void copy_panel(float* to, int64_t count, const Columns& columns) const {
        for (int64_t r = 0; r < count; ++r)
            for (int64_t k = 0; k < columns.count; k += 16)
                store_part(to + r * columns.count + k,
                           load(panel_ + r * panel_row(columns.blocks) + k), columns.count - k);
    }

    // Up to 32 rows, from `first` on, of the gradients of a W and its bias, where they are wanted.
    void by_weights(int64_t first, const Columns& rows, const float* sums, const int32_t* turned,
                    const Columns& columns, const int32_t* terms, float* by_weight,
                    float* by_biases) const {
        const int64_t count = smaller(stripe_rows, rows.count - first);
        if (by_biases) {
            const int64_t tasks = (call_.rows + linear_task_rows - 1) / linear_task_rows;
            for (int64_t n = first; n < first + count; n += 16) {
                Floats total{};
                for (int64_t task = 0; task < tasks; ++task)
                    total += load(sums + task * rows.blocks * 16 + n);
                store_part(by_biases + n, total, rows.count - n);
            }
        }
        if (!by_weight) return;
        const int64_t along = stripes_ * tile_cells;
        const Tiles left{turned + first / 16 * along, tile_cells, along, 16};
        for (int64_t k = 0; k < columns.blocks; k += 2)
            multiply_tiles<1>(count > 16, k + 1 < columns.blocks, left,
                              {terms + k * along, tile_cells, along, 16}, panel_ + k * 16,
                              panel_row(columns.blocks), stripes_, false);
        copy_panel(by_weight + first * columns.count, count, columns);
    }

    const FeedForwardCall& call_;
    const Columns width_, inner_, outer_;
    const int64_t stripes_;  // of rows
    // Shared: the packed weights; backward, the factors of the weights' gradients, (blocks,
    // stripes), and sums of rows, a task each.
    int32_t *rise_ = nullptr, *fall_ = nullptr;
    int32_t *by_output_turned_ = nullptr, *by_hidden_turned_ = nullptr;
    int32_t *inputs_ = nullptr, *activated_ = nullptr;
    float *by_output_sums_ = nullptr, *by_hidden_sums_ = nullptr;
    // Of this worker: the left factors of a stripe, its products, and a.
    int32_t *left_ = nullptr, *left_inner_ = nullptr;
    float *panel_ = nullptr, *values_ = nullptr;

public:
    Workspace shared, worker;
};

}  // namespace HEADLOOM_INSTRUCTION_SET
}  // namespace headloom

#endif
