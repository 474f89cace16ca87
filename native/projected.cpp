#include "projected.h"

#include <algorithm>
#include <atomic>

#include "memory.h"
#include "threads.h"

namespace headloom {

bool projected_losses(const Kernels& kernels, const ProjectedCall& call, int threads) {
    const ProjectedKernels& of = *kernels.projected;
    threads = std::max(threads, 1);
    const ProjectedSpace space = of.space(call);
    const Memory shared = aligned_memory(space.shared);
    const size_t room = (space.worker + 63) / 64 * 64;
    const Memory workers = aligned_memory(room * static_cast<size_t>(threads));
    const auto of_worker = [&](int worker) {
        return workers.get() + room * static_cast<size_t>(worker);
    };
    const ProjectedTasks tasks = of.tasks(call);
    std::atomic<bool> finite{true};
    run_tasks(threads, tasks.pack, [&](int64_t task, int) {
        if (!of.pack(call, task, shared.get())) finite.store(false, std::memory_order_relaxed);
    });
    if (!finite) return false;
    run_tasks(threads, tasks.rows, [&](int64_t task, int worker) {
        of.rows(call, task, shared.get(), of_worker(worker));
    });
    run_tasks(threads, tasks.choices, [&](int64_t task, int worker) {
        of.choices(call, task, shared.get(), of_worker(worker));
    });
    return true;
}

}  // namespace headloom
