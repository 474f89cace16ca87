#include "passes.h"

#include <algorithm>
#include <atomic>

#include "kernels.h"
#include "threads.h"

namespace headloom {

void losses(const Kernels& kernels, const LossCall& call, int threads) {
    constexpr int64_t rows = 8;
    run_tasks(threads, (call.rows + rows - 1) / rows, [&](int64_t task, int) {
        kernels.passes->loss(call, task * rows, std::min((task + 1) * rows, call.rows));
    });
}

void dropout(const Kernels& kernels, const DropoutCall& call, int threads) {
    constexpr int64_t piece = 1 << 15;
    run_tasks(threads, (call.count + piece - 1) / piece, [&](int64_t task, int) {
        kernels.passes->dropout(call, task * piece, std::min((task + 1) * piece, call.count));
    });
}

void rotary(const Kernels& kernels, const RotaryCall& call, int threads) {
    const int64_t rows = call.batch * call.positions;
    // Rows of a task: some thousand numbers.
    const int64_t step = std::max<int64_t>(1, 8192 / std::max<int64_t>(call.heads * call.depth, 1));
    run_tasks(threads, (rows + step - 1) / step, [&](int64_t task, int) {
        kernels.passes->rotary(call, task * step, std::min((task + 1) * step, rows));
    });
}

bool row_terms(const Kernels& kernels, const RowTermsCall& call, int threads) {
    constexpr int64_t piece = 512;
    const int64_t rows = call.batch * call.heads * call.rows;
    std::atomic<bool> near{true};
    run_tasks(threads, (rows + piece - 1) / piece, [&](int64_t task, int) {
        const int64_t first = task * piece, end = std::min(first + piece, rows);
        if (!kernels.passes->row_terms(call, first, end))
            near.store(false, std::memory_order_relaxed);
    });
    return near;
}

}  // namespace headloom
