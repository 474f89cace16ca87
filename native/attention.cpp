#include "attention.h"

#include <algorithm>

#include "memory.h"
#include "threads.h"

namespace weft {
namespace {

// How many blocks of queries one task takes. Each task packs the keys it sees, at about a tenth of
// the cost of one block, so eight blocks make packing cheap; fewer where threads would be idle.
int64_t blocks_per_task(int64_t blocks, int64_t kv_heads, int threads) {
    const int64_t wanted = 4 * threads;
    const int64_t pieces = std::max<int64_t>(1, (wanted + kv_heads - 1) / kv_heads);
    return std::min<int64_t>(32, std::max<int64_t>(1, (blocks + pieces - 1) / pieces));
}

}  // namespace

void forward(const Kernels& kernels, const Call& call, int threads) {
    const int64_t kv_heads = call.batch * call.kv_heads;
    const int64_t group = call.kv_heads ? call.heads / call.kv_heads : 0;
    const int64_t size = kernels.block_queries(call);
    const int64_t blocks = group * ((call.queries_count + size - 1) / size);
    if (kv_heads == 0 || blocks == 0) return;
    threads = std::max(threads, 1);
    const int64_t per_task = blocks_per_task(blocks, kv_heads, threads);
    const int64_t pieces = (blocks + per_task - 1) / per_task;
    threads = static_cast<int>(std::min<int64_t>(threads, kv_heads * pieces));

    const size_t workspace = kernels.forward_workspace(call);
    const Memory workspaces = aligned_memory(workspace * static_cast<size_t>(threads));
    run_tasks(threads, kv_heads * pieces, [&](int64_t task, int worker) {
        const int64_t head = task / pieces, piece = pieces - 1 - task % pieces;
        kernels.forward(call, head / call.kv_heads, head % call.kv_heads, piece * per_task,
                        std::min((piece + 1) * per_task, blocks),
                        workspaces.get() + workspace * static_cast<size_t>(worker));
    });
}

void backward(const Kernels& kernels, const Call& call, const Gradients& gradients, int threads) {
    const int64_t tasks = call.batch * call.kv_heads * gradients.pieces;
    if (tasks == 0 || call.queries_count == 0 || call.keys_count == 0) return;
    threads = static_cast<int>(std::min<int64_t>(std::max(threads, 1), tasks));
    const size_t workspace = kernels.backward_workspace(call, gradients);
    const Memory workspaces = aligned_memory(workspace * static_cast<size_t>(threads));
    run_tasks(threads, tasks, [&](int64_t task, int worker) {
        const int64_t head = task / gradients.pieces;
        kernels.backward(call, gradients, head / call.kv_heads, head % call.kv_heads,
                         task % gradients.pieces,
                         workspaces.get() + workspace * static_cast<size_t>(worker));
    });
}

}  // namespace weft
