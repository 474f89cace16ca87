#include "feed_forward.h"

#include <algorithm>
#include <atomic>

#include "memory.h"
#include "threads.h"

namespace headloom {
namespace {

int64_t stripes_of(int64_t columns) { return (columns + 31) / 32; }

// Packs the weights, then runs the rows' tasks and, backward, those of the weights' gradients.
bool run(const FeedForwardKernels& of, const FeedForwardCall& call, int threads, bool backward) {
    threads = std::max(threads, 1);
    const FeedForwardSpace space = of.space(call, backward);
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
    run_tasks(threads, 2, [&](int64_t which, int) {
        note(of.pack_weights(call, backward, which, shared.get()));
    });
    const auto rows = backward ? of.backward_rows : of.forward_rows;
    const int64_t tasks = (call.rows + linear_task_rows - 1) / linear_task_rows;
    run_tasks(threads, tasks, [&](int64_t task, int worker) {
        note(rows(call, task, shared.get(), of_worker(worker)));
    });
    if (!backward || !finite) return finite;
    const int64_t stripes = stripes_of(call.outer) + stripes_of(call.inner);
    run_tasks(threads, stripes, [&](int64_t stripe, int worker) {
        of.backward_weights(call, stripe, shared.get(), of_worker(worker));
    });
    return true;
}

}  // namespace

bool feed_forward(const Kernels& kernels, const FeedForwardCall& call, int threads) {
    return run(*kernels.feed_forward, call, threads, false);
}

bool feed_forward_backward(const Kernels& kernels, const FeedForwardCall& call, int threads) {
    return run(*kernels.feed_forward, call, threads, true);
}

}  // namespace headloom
