#include "neighbours.h"

#include <algorithm>

#include "kernels.h"
#include "memory.h"
#include "threads.h"

namespace headloom {
namespace {

Memory workspaces_for(size_t bytes, int threads) {
    return aligned_memory((bytes + 63) / 64 * 64 * static_cast<size_t>(threads));
}

// Tasks of a pass whose results do not depend on how it is cut: enough to even out threads.
int64_t pieces_of(const NeighbourCall& call, int threads) {
    const int64_t work = call.edges_count + call.targets;
    return std::max<int64_t>(1, std::min<int64_t>(16 * threads, work / 256));
}

}  // namespace

void neighbours_forward(const Kernels& kernels, const NeighbourCall& call, int threads) {
    if (!call.targets || !call.heads) return;
    const NeighbourKernels& of = *kernels.neighbours;
    threads = std::max(threads, 1);
    const int64_t pieces = pieces_of(call, threads);
    const size_t workspace = (of.workspace(call) + 63) / 64 * 64;
    const Memory memory = workspaces_for(workspace, threads);
    run_tasks(threads, pieces, [&](int64_t task, int worker) {
        of.forward(call, task, pieces, memory.get() + workspace * static_cast<size_t>(worker));
    });
}

void neighbours_backward(const Kernels& kernels, const NeighbourCall& call,
                         const NeighbourGradients& to, int threads) {
    if (!call.heads) return;
    const NeighbourKernels& of = *kernels.neighbours;
    threads = std::max(threads, 1);
    const int64_t pieces = pieces_of(call, threads);
    const size_t workspace = (of.workspace(call) + 63) / 64 * 64;
    const Memory memory = workspaces_for(workspace, threads);
    const auto room = [&](int worker) {
        return memory.get() + workspace * static_cast<size_t>(worker);
    };
    run_tasks(threads, pieces, [&](int64_t task, int) { of.gather_state(call, to, task, pieces); });
    run_tasks(threads, to.pieces,
              [&](int64_t task, int worker) { of.backward_sources(call, to, task, room(worker)); });
    run_tasks(threads, pieces, [&](int64_t task, int worker) {
        of.backward_targets(call, to, task, pieces, room(worker));
    });
}

}  // namespace headloom
