// The loss of a last linear map and its gradients, with no logits in memory: products of numbers
// rounded to bfloat16 (pairs.h).
//
//     z_rv = x_r . w_v,   p_r = softmax(z_r),   t_r: the target of row r,   s: smoothing
//     loss_r = log sum_v exp(z_rv) - (1 - s) z_rt - s mean_v z_rv
//     by x_r = sum_(v != t) p_rv w_v + (p_rt - 1 + s) w_t - s mean_v w_v
//     by w_v = sum_(r: t_r != v) p_rv x_r + sum_(r: t_r = v) (p_rt - 1 + s) x_r - s / V sum_r x_r
//
// This is attention of the rows to the choices, whose keys and values are both W. First some rows
// stream past all choices: a panel of logits becomes exponentials of their distance from the
// largest so far, and is multiplied by W while it is in the nearest cache. Then some choices stream
// past all rows, whose logits are computed once more: cheaper than keeping them. The target's own
// term, which a model that has learned makes the smallest difference of large numbers, is kept out
// of both products and added in float32.
//
// Sources: Milakov & Gimelshein 2018 (the running softmax); Wijmans et al. 2024, "Cut your losses
// in large-vocabulary language models" (logits computed again).
#pragma once

#include "multiply_pairs.h"
#include "projected_call.h"
#include "workspace.h"

#if defined(HEADLOOM_HAS_PAIRS)

namespace headloom {
namespace HEADLOOM_INSTRUCTION_SET {

class ProjectedBlock {
public:
    ProjectedBlock(const ProjectedCall& call, char* shared_memory, char* worker_memory)
        : call_(call),
          chunks_((call.width + chunk_terms - 1) / chunk_terms),
          blocks_((call.width + 15) / 16),
          sum_row_(round_up(call.width, 16)),
          panel_row_(panel_choices + 16),
          total_row_(round_up(call.width, 32) + 16),
          choices_at_once_(choices_of_task(call)),
          shared(shared_memory),
          worker(worker_memory) {
        const int64_t row_stripes = (call.rows + stripe_rows - 1) / stripe_rows;
        const int64_t choice_stripes = (call.choices + stripe_rows - 1) / stripe_rows;
        lse_ = shared.take<float>(row_stripes * stripe_rows);
        target_factors_ = shared.take<float>(row_stripes * stripe_rows);
        matrix_sums_ = shared.take<float>(choice_tasks() * sum_row_);
        input_sums_ = shared.take<float>(row_tasks() * sum_row_);
        matrix_columns_ = shared.take<int32_t>(2 * choice_stripes * chunks_ * tile_cells);
        if (call.by_inputs)
            matrix_terms_ = shared.take<int32_t>(choice_stripes * blocks_ * tile_cells);
        if (call.by_matrix) {
            input_columns_ = shared.take<int32_t>(2 * row_stripes * chunks_ * tile_cells);
            input_terms_ = shared.take<int32_t>(row_stripes * blocks_ * tile_cells);
        }
        const int64_t most_rows = larger(task_rows, choices_at_once_);
        left_ = worker.take<int32_t>(most_rows / 16 * chunks_ * tile_cells);
        panel_ = worker.take<float>(stripe_rows * panel_row_);
        weights_ = worker.take<int32_t>(2 * panel_choices / chunk_terms * tile_cells);
        totals_ = worker.take<float>(most_rows * total_row_);
        mean_ = worker.take<float>(sum_row_);
        most_ = worker.take<float>(task_rows);
        others_ = worker.take<float>(task_rows);
        target_logits_ = worker.take<float>(task_rows);
    }

    ProjectedTasks tasks() const {
        return {choice_tasks() + row_tasks(), row_tasks(), call_.by_matrix ? choice_tasks() : 0};
    }

    bool pack(int64_t task) const {
        const int64_t width = call_.width;
        if (task < choice_tasks()) {
            const Tensor matrix{call_.matrix, 0, 0, width};
            const int64_t first = task * choices_at_once_;
            const int64_t end = smaller(first + choices_at_once_, call_.choices);
            sum_rows(call_.matrix, first, end, matrix_sums_ + task * sum_row_);
            if (matrix_terms_) pack_terms(matrix, first, end, matrix_terms_);
            return pack_columns(matrix, first, end, matrix_columns_);
        }
        task -= choice_tasks();
        const Tensor inputs{call_.inputs, 0, 0, width};
        const int64_t first = task * task_rows, end = smaller(first + task_rows, call_.rows);
        sum_rows(call_.inputs, first, end, input_sums_ + task * sum_row_);
        if (!call_.by_matrix) {
            Integers bad{};
            for (int64_t r = first; r < end; ++r)
                for (int64_t k = 0; k < width; k += 16)
                    bad |= not_finite(load_part(call_.inputs + r * width + k, width - k));
            return !any(bad);
        }
        pack_terms(inputs, first, end, input_terms_);
        return pack_columns(inputs, first, end, input_columns_);
    }

    void rows(int64_t task) const {
        const int64_t first = task * task_rows, end = smaller(first + task_rows, call_.rows);
        const Tensor inputs{call_.inputs, 0, 0, call_.width};
        const int64_t stripe_cells = 2 * chunks_ * tile_cells;
        for (int64_t row = first; row < end; row += stripe_rows)
            pack_left<1>(inputs, false, 0, 0, row, smaller(stripe_rows, end - row), stripe_rows,
                         call_.width, 1.0f, left_ + (row - first) / stripe_rows * stripe_cells);
        for (int64_t r = 0; r < task_rows; ++r) {
            most_[r] = -infinity;
            others_[r] = target_logits_[r] = 0.0f;
        }
        // Choices outside, so that their panel is read from memory once for all rows of the task.
        for (int64_t choice = 0; choice < call_.choices; choice += panel_choices)
            for (int64_t row = first; row < end; row += stripe_rows)
                stripe_of_rows(row, row - first, choice);
        add_sums(matrix_sums_, choice_tasks(), 1.0f / call_.choices);
        for (int64_t row = first; row < round_up(end, stripe_rows); ++row)
            if (row < end)
                finish_row(row, row - first);
            else
                lse_[row] = 0.0f;
    }

    void choices(int64_t task) const {
        const int64_t first = task * choices_at_once_, width = call_.width;
        const int64_t count = smaller(choices_at_once_, call_.choices - first);
        const Tensor matrix{call_.matrix, 0, 0, width};
        pack_left<1>(matrix, false, 0, 0, first, count, round_up(count, stripe_rows), width, 1.0f,
                     left_);
        for (int64_t row = 0; row < call_.rows; row += task_rows)
            for (int64_t c = 0; c < count; c += stripe_rows) stripe_of_choices(first, c, row);
        add_sums(input_sums_, row_tasks(), -call_.smoothing / call_.choices);
        for (int64_t c = 0; c < count; ++c) {
            float* to = call_.by_matrix + (first + c) * width;
            for (int64_t k = 0; k < width; k += 16)
                store_part(to + k, load(totals_ + c * total_row_ + k) + load(mean_ + k), width - k);
        }
        for (int64_t row = 0; row < call_.rows; ++row) {
            const int64_t target = call_.targets[row];
            if (target < first || target >= first + count) continue;
            add_multiple(call_.by_matrix + target * width, target_factors_[row],
                         call_.inputs + row * width);
        }
    }

private:
    static constexpr int64_t task_rows = 128;
    static constexpr int64_t panel_choices = 256;

    // So few that there are tasks for some threads.
    static int64_t choices_of_task(const ProjectedCall& call) {
        const int64_t eighth = round_up(call.choices / 8, stripe_rows);
        return smaller(panel_choices, larger(eighth, stripe_rows));
    }
    int64_t choice_tasks() const {
        return (call_.choices + choices_at_once_ - 1) / choices_at_once_;
    }
    int64_t row_tasks() const { return (call_.rows + task_rows - 1) / task_rows; }

    void sum_rows(const float* from, int64_t first, int64_t end, float* to) const {
        for (int64_t k = 0; k < call_.width; k += 16) {
            Floats total{};
            for (int64_t row = first; row < end; ++row)
                total += load_part(from + row * call_.width + k, call_.width - k);
            store(to + k, total);
        }
    }

    // mean_ = factor times the sum of the tasks' sums.
    void add_sums(const float* sums, int64_t tasks, float factor) const {
        for (int64_t k = 0; k < sum_row_; k += 16) {
            Floats total{};
            for (int64_t task = 0; task < tasks; ++task) total += load(sums + task * sum_row_ + k);
            store(mean_ + k, total * factor);
        }
    }

    void pack_terms(const Tensor& rows, int64_t first, int64_t end, int32_t* tiles) const {
        pack_right<1>(rows, false, 0, 0, first, end, call_.width,
                      tiles + first / chunk_terms * blocks_ * tile_cells);
    }

    bool pack_columns(const Tensor& rows, int64_t first, int64_t end, int32_t* tiles) const {
        return pack_right_turned<1>(rows, false, 0, 0, first, round_up(end, stripe_rows), end,
                                    call_.width, tiles + first / 16 * chunks_ * tile_cells);
    }

    // Logits of 32 rows of the left factor and `count` columns, a multiple of 32, of the right one.
    void logits(const int32_t* left_tiles, const int32_t* right_tiles, int64_t count) const {
        const Tiles left{left_tiles, tile_cells, chunks_ * tile_cells, 16};
        for (int64_t n = 0; n < count / 16; n += 2) {
            const Tiles right{right_tiles + n * chunks_ * tile_cells, tile_cells,
                              chunks_ * tile_cells, 16};
            multiply_tiles<1>(true, true, left, right, panel_ + n * 16, panel_row_, chunks_, false);
        }
    }

    // totals (+)= weights times `chunks` chunks of terms.
    void add_products(const int32_t* right_tiles, int64_t chunks, float* totals,
                      bool accumulate) const {
        const Tiles left{weights_, tile_cells, chunks * tile_cells, 16};
        for (int64_t k = 0; k < blocks_; k += 2) {
            const Tiles right{right_tiles + k * tile_cells, blocks_ * tile_cells, tile_cells, 16};
            multiply_tiles<1>(true, k + 1 < blocks_, left, right, totals + k * 16, total_row_,
                              chunks, accumulate);
        }
    }

    int32_t* weights_of_row(int64_t r, int64_t chunks) const {
        return weights_ + r / 16 * chunks * tile_cells + r % 16 * 16;
    }

    // 32 rows against the choices of a panel: `r` is the first one's number in the task.
    void stripe_of_rows(int64_t row, int64_t r, int64_t choice) const {
        const int64_t count = smaller(panel_choices, call_.choices - choice);
        const int64_t padded = round_up(count, stripe_rows), chunks = padded / chunk_terms;
        logits(left_ + r / 16 * chunks_ * tile_cells,
               matrix_columns_ + choice / 16 * chunks_ * tile_cells, padded);
        for (int64_t i = 0; i < stripe_rows; ++i) {
            float* z = panel_ + i * panel_row_;
            for (int64_t v = count; v < padded; ++v) z[v] = -infinity;
            const int64_t target = row + i < call_.rows ? call_.targets[row + i] - choice : -1;
            score_row(z, padded, target, r + i, totals_ + (r + i) * total_row_, choice > 0,
                      weights_of_row(i, chunks));
        }
        if (call_.by_inputs)
            add_products(matrix_terms_ + choice / chunk_terms * blocks_ * tile_cells, chunks,
                         totals_ + r * total_row_, choice > 0);
    }

    // Logits of a row to weights, exp(z - most); what the row has so far shrinks as `most` grows.
    void score_row(float* z, int64_t padded, int64_t target, int64_t r, float* totals, bool begun,
                   int32_t* weights) const {
        Floats larger_logits = broadcast(most_[r]);
        for (int64_t v = 0; v < padded; v += 16)
            larger_logits = maximum(larger_logits, load(z + v));
        const float most = largest(larger_logits);
        if (begun && most > most_[r]) {
            const float shrink = exponential(broadcast(most_[r] - most))[0];
            others_[r] *= shrink;
            for (int64_t k = 0; call_.by_inputs && k < blocks_ * 16; k += 16)
                store(totals + k, load(totals + k) * shrink);
        }
        most_[r] = most;
        if (target >= 0 && target < padded) {
            target_logits_[r] = z[target];
            z[target] = -infinity;
        }
        Floats sums{};
        for (int64_t v = 0; v < padded; v += chunk_terms) {
            const Floats low = exponential(load(z + v) - most);
            const Floats high = exponential(load(z + v + 16) - most);
            sums += low + high;
            if (call_.by_inputs) store_pairs<1>(low, high, weights + v / chunk_terms * tile_cells);
        }
        others_[r] += sum(sums);
    }

    void finish_row(int64_t row, int64_t r) const {
        const int64_t width = call_.width, target = call_.targets[row];
        const float smoothing = call_.smoothing;
        const float own = exponential(broadcast(target_logits_[r] - most_[r]))[0];
        const float mass = others_[r] + own, lse = most_[r] + __builtin_logf(mass);
        const float* x = call_.inputs + row * width;
        Floats products{};
        for (int64_t k = 0; k < width; k += 16)
            products += load_part(x + k, width - k) * load(mean_ + k);
        const float mean_logit = smoothing > 0 ? sum(products) : 0.0f;
        call_.losses[row] = lse - (1.0f - smoothing) * target_logits_[r] - smoothing * mean_logit;
        lse_[row] = lse;
        target_factors_[row] = smoothing - others_[r] / mass;  // p - 1 + s, without cancellation
        if (!call_.by_inputs) return;
        float* to = call_.by_inputs + row * width;
        const float inverse = 1.0f / mass;
        for (int64_t k = 0; k < width; k += 16) {
            const Floats total = load(totals_ + r * total_row_ + k) * inverse;
            store_part(to + k, total - load(mean_ + k) * smoothing, width - k);
        }
        add_multiple(to, target_factors_[row], call_.matrix + target * width);
    }

    void add_multiple(float* to, float factor, const float* from) const {
        for (int64_t k = 0; k < call_.width; k += 16) {
            const int64_t rest = call_.width - k;
            store_part(to + k, load_part(to + k, rest) + load_part(from + k, rest) * factor, rest);
        }
    }

    // 32 choices, from number `c` of the task's, against the rows of one task.
    void stripe_of_choices(int64_t first, int64_t c, int64_t row) const {
        const int64_t count = smaller(task_rows, call_.rows - row);
        const int64_t padded = round_up(count, stripe_rows), chunks = padded / chunk_terms;
        logits(left_ + c / 16 * chunks_ * tile_cells,
               input_columns_ + row / 16 * chunks_ * tile_cells, padded);
        for (int64_t i = 0; i < count; ++i) {
            const int64_t target = call_.targets[row + i] - first - c;
            if (target >= 0 && target < stripe_rows) panel_[target * panel_row_ + i] = -infinity;
        }
        for (int64_t i = 0; i < stripe_rows; ++i) {
            const float* z = panel_ + i * panel_row_;
            int32_t* weights = weights_of_row(i, chunks);
            for (int64_t r = 0; r < padded; r += chunk_terms) {
                const Floats low = exponential(load(z + r) - load(lse_ + row + r));
                const Floats high = exponential(load(z + r + 16) - load(lse_ + row + r + 16));
                store_pairs<1>(low, high, weights + r / chunk_terms * tile_cells);
            }
        }
        add_products(input_terms_ + row / chunk_terms * blocks_ * tile_cells, chunks,
                     totals_ + c * total_row_, row > 0);
    }

    const ProjectedCall& call_;
    const int64_t chunks_, blocks_;  // of the width, as terms and as columns
    const int64_t sum_row_, panel_row_, total_row_;
    const int64_t choices_at_once_;
    // Shared: of each row, what is found first; W and x, as columns and as terms of right factors,
    // and the sums of their rows, a task each.
    float *lse_ = nullptr, *target_factors_ = nullptr;
    float *matrix_sums_ = nullptr, *input_sums_ = nullptr;
    int32_t *matrix_columns_ = nullptr, *matrix_terms_ = nullptr;
    int32_t *input_columns_ = nullptr, *input_terms_ = nullptr;
    // Of this worker: the left factor, logits, their weights, the products' sums; mean of W's rows;
    // of each row of the task the largest logit, the mass beside the target's, the target's logit.
    int32_t* left_ = nullptr;
    float* panel_ = nullptr;
    int32_t* weights_ = nullptr;
    float* totals_ = nullptr;
    float* mean_ = nullptr;
    float *most_ = nullptr, *others_ = nullptr, *target_logits_ = nullptr;

public:
    Workspace shared, worker;
};

}  // namespace HEADLOOM_INSTRUCTION_SET
}  // namespace headloom

#endif
