#include "few.h"

#include <algorithm>
#include <atomic>
#include <memory>

#include "kernels.h"
#include "memory.h"
#include "threads.h"

namespace headloom {

bool forward_few(const Kernels& kernels, const Call& call, int threads) {
    const FewKernels& few = *kernels.few;
    const FewPlan plan = few.plan(call);
    if (plan.pieces == 0) return false;
    const int64_t tasks = plan.groups * plan.pieces;
    threads = static_cast<int>(std::min<int64_t>(std::max(threads, 1), tasks));
    const Memory workspaces = aligned_memory(plan.workspace * static_cast<size_t>(threads));
    if (plan.pieces == 1) {
        run_tasks(threads, tasks, [&](int64_t group, int worker) {
            few.piece(call, plan, group, 0,
                      workspaces.get() + plan.workspace * static_cast<size_t>(worker), nullptr);
        });
        return true;
    }
    const Memory parts = aligned_memory(plan.part * static_cast<size_t>(tasks));
    // Who finishes the last piece of a group joins them.
    const std::unique_ptr<std::atomic<int64_t>[]> left(
        new std::atomic<int64_t>[static_cast<size_t>(plan.groups)]);
    for (int64_t group = 0; group < plan.groups; ++group) left[group] = plan.pieces;
    run_tasks(threads, tasks, [&](int64_t task, int worker) {
        const int64_t group = task / plan.pieces, piece = task % plan.pieces;
        char* workspace = workspaces.get() + plan.workspace * static_cast<size_t>(worker);
        char* first = parts.get() + plan.part * static_cast<size_t>(group * plan.pieces);
        few.piece(call, plan, group, piece, workspace,
                  first + plan.part * static_cast<size_t>(piece));
        if (left[group].fetch_sub(1, std::memory_order_acq_rel) == 1)
            few.join(call, plan, group, workspace, first);
    });
    return true;
}

}  // namespace headloom
