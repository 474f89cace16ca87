#include "linear.h"

#include <algorithm>
#include <atomic>

#include "kernels.h"
#include "memory.h"
#include "threads.h"

namespace headloom {
namespace {

int64_t tasks_of(const LinearCall& call) {
    return (call.rows + linear_task_rows - 1) / linear_task_rows;
}

// Packs the weights, then runs the rows' tasks and, backward, those of the weights' gradients.
bool run(const LinearKernels& of, const LinearCall& call, int threads, bool backward) {
    threads = std::max(threads, 1);
    const LinearSpace space = of.space(call, backward);
    const Memory shared = aligned_memory(space.shared);
    const size_t room = (space.worker + 63) / 64 * 64;
    const Memory workers = aligned_memory(room * static_cast<size_t>(threads));
    const auto of_worker = [&](int worker) {
        return workers.get() + room * static_cast<size_t>(worker);
    };
    std::atomic<bool> finite{true};
    const auto note = [&](bool good) {
        if (!good) finite.store(false, std::memory_order_relaxed);
    };
    run_tasks(threads, call.parts, [&](int64_t part, int) {
        note(of.pack_weights(call, backward, part, shared.get()));
    });
    const auto rows = backward ? of.backward_rows : of.forward_rows;
    run_tasks(threads, tasks_of(call), [&](int64_t task, int worker) {
        note(rows(call, task, shared.get(), of_worker(worker)));
    });
    if (!backward) return finite;
    int64_t stripes = 0;
    for (int64_t p = 0; p < call.parts; ++p) stripes += (call.columns[p] + 31) / 32;
    run_tasks(threads, stripes, [&](int64_t stripe, int worker) {
        int64_t part = 0;
        for (; stripe >= (call.columns[part] + 31) / 32; ++part)
            stripe -= (call.columns[part] + 31) / 32;
        of.backward_weights(call, part, stripe, shared.get(), of_worker(worker));
    });
    return finite;
}

}  // namespace

bool linear_forward(const Kernels& kernels, const LinearCall& call, int threads) {
    return run(*kernels.linear, call, threads, false);
}

bool linear_backward(const Kernels& kernels, const LinearCall& call, int threads) {
    return run(*kernels.linear, call, threads, true);
}

}  // namespace headloom
