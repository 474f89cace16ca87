// Products of linear layers, of numbers rounded to bfloat16 (pairs.h): forward and both gradients.
// Compiled once for every instruction set; those that do not multiply pairs leave them to torch.
//
//     output = act(input W^T + b)
//     by_input = G W,  by_W = G^T input,  by_b = sum of G's rows,  G = by_output [output > 0]
//
// Forward, a stripe of 32 rows is packed and multiplied by the packed W while it is in the nearest
// cache; bias and activation are applied as its products are written, row by row. Backward,
// a stripe of G is read once, and packed twice: as left factor of by_input, and turned, as left
// factor of by_W, whose sums run over all rows in the second pass.
#include "has_pairs.h"
#include "kernels.h"
#if defined(HEADLOOM_HAS_PAIRS)
#include "multiply_pairs.h"
#include "workspace.h"
#endif

namespace headloom {
namespace HEADLOOM_INSTRUCTION_SET {

extern const LinearKernels linear_kernels;

#if defined(HEADLOOM_HAS_PAIRS)

class LinearBlock {
public:
    static constexpr int64_t tile = tile_cells;

    LinearBlock(const LinearCall& call, bool backward, char* shared_memory, char* worker_memory)
        : call_(call),
          chunks_((call.terms + chunk_terms - 1) / chunk_terms),
          blocks_((call.terms + 15) / 16),
          stripes_((call.rows + stripe_rows - 1) / stripe_rows),
          shared(shared_memory),
          worker(worker_memory) {
        const int64_t tasks = (call.rows + linear_task_rows - 1) / linear_task_rows;
        for (int64_t p = 0; p < call.parts; ++p) {
            const int64_t part_blocks = (call.columns[p] + 15) / 16;
            const int64_t part_chunks = (call.columns[p] + chunk_terms - 1) / chunk_terms;
            if (!backward) {
                weights_[p] = shared.take<int32_t>(part_blocks * chunks_ * tile);
                continue;
            }
            if (call.by_input) {
                weights_[p] = shared.take<int32_t>(part_chunks * blocks_ * tile);
                left_[p] = worker.take<int32_t>(2 * part_chunks * tile);
            }
            if (call.by_weights[p])
                turned_[p] = shared.take<int32_t>(part_blocks * stripes_ * tile);
            if (call.by_biases[p]) sums_[p] = shared.take<float>(tasks * part_blocks * 16);
            gradient_[p] = worker.take<float>(stripe_rows * part_blocks * 16);
        }
        if (backward)
            inputs_ = shared.take<int32_t>(blocks_ * stripes_ * tile);
        else
            left_[0] = worker.take<int32_t>(2 * chunks_ * tile);
        int64_t widest = blocks_;
        for (int64_t p = 0; p < call.parts && !backward; ++p) widest = larger(widest, blocks_of(p));
        panel_ = worker.take<float>(stripe_rows * panel_row(widest));
    }

    bool pack_weights(bool backward, int64_t p) const {
        const Tensor weight{call_.weights[p], 0, 0, call_.terms};
        const int64_t columns = call_.columns[p];
        if (backward)
            return !weights_[p] ||
                   pack_right<1>(weight, false, 0, 0, 0, columns, call_.terms, weights_[p]);
        return pack_right_turned<1>(weight, false, 0, 0, 0, round_up(columns, 16), columns,
                                    call_.terms, weights_[p]);
    }

    bool forward(int64_t task) const {
        bool finite = true;
        const int64_t end = smaller((task + 1) * linear_task_rows, call_.rows);
        for (int64_t row = task * linear_task_rows; row < end; row += stripe_rows) {
            const int64_t count = smaller(stripe_rows, end - row);
            const Tensor input{call_.input, 0, 0, call_.input_row};
            finite &= pack_left<1>(input, false, 0, 0, row, count, stripe_rows, call_.terms, 1.0f,
                                   left_[0]);
            for (int64_t p = 0; p < call_.parts; ++p) forward_stripe(p, row, count);
        }
        return finite;
    }

    bool backward(int64_t task) const {
        bool finite = true;
        const int64_t end = smaller((task + 1) * linear_task_rows, call_.rows);
        for (int64_t p = 0; p < call_.parts; ++p)
            if (sums_[p])
                for (int64_t n = 0; n < blocks_of(p) * 16; n += 16)
                    store(sums(p, task) + n, Floats{});
        for (int64_t row = task * linear_task_rows; row < end; row += stripe_rows) {
            const int64_t count = smaller(stripe_rows, end - row);
            for (int64_t p = 0; p < call_.parts; ++p) {
                finite &= read_gradient(p, task, row, count);
                const int64_t width = blocks_of(p) * 16;
                const Tensor rows{gradient_[p], 0, 0, width};
                if (left_[p])
                    pack_left<1>(rows, false, 0, 0, 0, stripe_rows, stripe_rows, call_.columns[p],
                                 1.0f, left_[p]);
                if (turned_[p]) pack_turned(gradient_[p], width, row / stripe_rows, turned_[p]);
            }
            finite &= pack_input(row, count);
            if (call_.by_input) by_input(row, count);
        }
        return finite;
    }

    // Rows stripe * 32 .. of the gradient of W, and that of the bias.
    void by_weight(int64_t p, int64_t stripe) const {
        const int64_t first = stripe * stripe_rows;
        const int64_t count = smaller(stripe_rows, call_.columns[p] - first);
        if (call_.by_biases[p]) {
            const int64_t tasks = (call_.rows + linear_task_rows - 1) / linear_task_rows;
            for (int64_t n = first; n < first + count; n += 16) {
                Floats total{};
                for (int64_t task = 0; task < tasks; ++task) total += load(sums(p, task) + n);
                store_part(call_.by_biases[p] + n, total, call_.columns[p] - n);
            }
        }
        if (!turned_[p]) return;
        const int64_t along = stripes_ * tile;
        const Tiles left{turned_[p] + 2 * stripe * along, tile, along, 16};
        for (int64_t k = 0; k < blocks_; k += 2) {
            const Tiles right{inputs_ + k * along, tile, along, 16};
            multiply_tiles<1>(count > 16, k + 1 < blocks_, left, right, panel_ + k * 16,
                              panel_row(blocks_), stripes_, false);
        }
        copy_panel(call_.by_weights[p] + first * call_.terms, count);
    }

private:
    int64_t blocks_of(int64_t p) const { return (call_.columns[p] + 15) / 16; }
    float* sums(int64_t p, int64_t task) const { return sums_[p] + task * blocks_of(p) * 16; }

    // From one row of a panel of so many blocks to the next: no power of two, so that rows fall
    // into different cache sets.
    static int64_t panel_row(int64_t blocks) { return round_up(blocks, 2) * 16 + 16; }

    // The first rows of the panel, as rows of the input's width.
    void copy_panel(float* to, int64_t count) const {
        for (int64_t r = 0; r < count; ++r)
            for (int64_t k = 0; k < call_.terms; k += 16)
                store_part(to + r * call_.terms + k, load(panel_ + r * panel_row(blocks_) + k),
                           call_.terms - k);
    }

    void forward_stripe(int64_t p, int64_t row, int64_t count) const {
        const int64_t columns = call_.columns[p], blocks = blocks_of(p), width = panel_row(blocks);
        const Tiles left{left_[0], tile, chunks_ * tile, 16};
        for (int64_t n = 0; n < blocks; n += 2) {
            const Tiles right{weights_[p] + n * chunks_ * tile, tile, chunks_ * tile, 16};
            multiply_tiles<1>(true, n + 1 < blocks, left, right, panel_ + n * 16, width, chunks_,
                              false);
        }
        const float* biases = call_.biases[p];
        for (int64_t r = 0; r < count; ++r) {
            const float* from = panel_ + r * width;
            float* to = call_.outputs[p] + (row + r) * columns;
            for (int64_t n = 0; n < columns; n += 16) {
                Floats x = load(from + n);
                if (biases) x += load_part(biases + n, columns - n);
                if (call_.relu) x = maximum(Floats{}, x);
                store_part(to + n, x, columns - n);
            }
        }
    }

    // G's rows, 0 past the last row and column; and their sums. Whether all are finite.
    bool read_gradient(int64_t p, int64_t task, int64_t row, int64_t count) const {
        const int64_t columns = call_.columns[p], width = blocks_of(p) * 16;
        Integers bad{};
        for (int64_t r = 0; r < stripe_rows; ++r) {
            float* to = gradient_[p] + r * width;
            const float* from = call_.by_outputs[p] + (row + r) * call_.by_output_rows[p];
            const float* output = call_.relu ? call_.outputs[p] + (row + r) * columns : nullptr;
            for (int64_t n = 0; n < width; n += 16) {
                Floats x{};
                if (r < count) {
                    x = load_part(from + n, columns - n);
                    if (output) x = load_part(output + n, columns - n) > 0.0f ? x : Floats{};
                }
                bad |= not_finite(x);
                store(to + n, x);
                if (sums_[p]) store(sums(p, task) + n, load(sums(p, task) + n) + x);
            }
        }
        return !any(bad);
    }

    // A stripe's columns as rows of a left factor whose terms are the stripe's rows.
    void pack_turned(const float* rows, int64_t width, int64_t stripe, int32_t* tiles) const {
        for (int64_t n = 0; n < width / 16; ++n) {
            Floats low[lanes], high[lanes];
            for (int64_t t = 0; t < 16; ++t) {
                low[t] = load(rows + t * width + n * 16);
                high[t] = load(rows + (t + 16) * width + n * 16);
            }
            store_turned<1>(low, high, tiles + (n * stripes_ + stripe) * tile);
        }
    }

    // A stripe of the input as terms of a right factor.
    bool pack_input(int64_t row, int64_t count) const {
        Integers bad{};
        const int64_t width = call_.terms;
        const float* from = call_.input + row * call_.input_row;
        for (int64_t k = 0; k < blocks_; ++k) {
            int32_t* to = inputs_ + (k * stripes_ + row / stripe_rows) * tile;
            for (int64_t t = 0; t < 16; ++t) {
                Floats low{}, high{};
                const int64_t rest = width - k * 16;
                if (t < count) low = load_part(from + t * call_.input_row + k * 16, rest);
                if (t + 16 < count)
                    high = load_part(from + (t + 16) * call_.input_row + k * 16, rest);
                bad |= not_finite(low) | not_finite(high);
                store_pairs<1>(low, high, to + t * 16);
            }
        }
        return !any(bad);
    }

    void by_input(int64_t row, int64_t count) const {
        for (int64_t k = 0; k < blocks_; k += 2) {
            for (int64_t p = 0; p < call_.parts; ++p) {
                const int64_t part_chunks = (call_.columns[p] + chunk_terms - 1) / chunk_terms;
                const Tiles left{left_[p], tile, part_chunks * tile, 16};
                const Tiles right{weights_[p] + k * tile, blocks_ * tile, tile, 16};
                multiply_tiles<1>(true, k + 1 < blocks_, left, right, panel_ + k * 16,
                                  panel_row(blocks_), part_chunks, p > 0);
            }
        }
        copy_panel(call_.by_input + row * call_.terms, count);
    }

    const LinearCall& call_;
    const int64_t chunks_, blocks_;  // of the input's columns, as terms and as columns
    const int64_t stripes_;          // of rows
    // Shared: packed W; G turned and the input, (blocks, stripes); sums of G's rows, a task each.
    int32_t* weights_[LinearCall::most_parts] = {};
    int32_t* turned_[LinearCall::most_parts] = {};
    int32_t* inputs_ = nullptr;
    float* sums_[LinearCall::most_parts] = {};
    // Of this worker.
    int32_t* left_[LinearCall::most_parts] = {};
    float* gradient_[LinearCall::most_parts] = {};
    float* panel_ = nullptr;  // products of a stripe

public:
    Workspace shared, worker;
};

// Calls `run` with the kernel of a call.
template <typename Run>
static auto with_block(const LinearCall& call, bool backward, char* shared, char* worker,
                       const Run& run) {
    const SmallNumbersAreZero small_numbers_are_zero{};
    const MatrixUnit unit(true);
    return run(LinearBlock(call, backward, shared, worker));
}

static LinearSpace space(const LinearCall& call, bool backward) {
    return with_block(call, backward, nullptr, nullptr, [](const auto& block) {
        return LinearSpace{block.shared.used(), block.worker.used()};
    });
}

static bool pack_weights(const LinearCall& call, bool backward, int64_t part, char* shared) {
    return with_block(call, backward, shared, nullptr,
                      [&](const auto& block) { return block.pack_weights(backward, part); });
}

static bool forward_rows(const LinearCall& call, int64_t task, char* shared, char* worker) {
    return with_block(call, false, shared, worker,
                      [&](const auto& block) { return block.forward(task); });
}

static bool backward_rows(const LinearCall& call, int64_t task, char* shared, char* worker) {
    return with_block(call, true, shared, worker,
                      [&](const auto& block) { return block.backward(task); });
}

static void backward_weights(const LinearCall& call, int64_t part, int64_t stripe, char* shared,
                             char* worker) {
    with_block(call, true, shared, worker,
               [&](const auto& block) { block.by_weight(part, stripe); });
}

const LinearKernels linear_kernels = {space, pack_weights, forward_rows, backward_rows,
                                      backward_weights};

#else
const LinearKernels linear_kernels = {};
#endif

}  // namespace HEADLOOM_INSTRUCTION_SET
}  // namespace headloom
