#include "attention.h"

#include <algorithm>
#include <vector>

#include "few.h"
#include "memory.h"
#include "threads.h"

namespace headloom {
namespace {

// How many blocks of queries one task takes. Each task packs the keys it sees, at about a tenth of
// the cost of one block, so eight blocks make packing cheap; fewer where threads would be idle.
int64_t blocks_per_task(int64_t blocks, int64_t kv_heads, int threads) {
    const int64_t wanted = 4 * threads;
    const int64_t pieces = std::max<int64_t>(1, (wanted + kv_heads - 1) / kv_heads);
    return std::min<int64_t>(32, std::max<int64_t>(1, (blocks + pieces - 1) / pieces));
}

// Where it is asked what keys receive: a rule that knows the shapes alone, so that sums do not
// depend on the number of threads. So many tasks are enough for many threads, and few enough that
// their shares need less memory than the queries.
int64_t blocks_per_task(int64_t blocks, int64_t kv_heads) {
    const int64_t wanted = 64, pieces = (wanted + kv_heads - 1) / kv_heads;
    return (blocks + pieces - 1) / pieces;
}

// The tasks' shares of each head, added up in order.
void add_shares(const Call& call, int64_t blocks_of_head) {
    const int64_t group = call.heads / call.kv_heads, row = call.share_row;
    std::vector<double> sums(static_cast<size_t>(call.keys_count)), last = sums;
    for (int64_t head = 0; head < call.batch * call.heads; ++head) {
        const int64_t first_block = head % call.heads % group * blocks_of_head;
        const int64_t first_task = first_block / call.blocks_of_task;
        const int64_t last_task = (first_block + blocks_of_head - 1) / call.blocks_of_task;
        float* most = call.received_most + head * call.keys_count;
        std::fill(sums.begin(), sums.end(), 0.0);
        std::fill(last.begin(), last.end(), 0.0);
        std::fill(most, most + call.keys_count, 0.0f);
        for (int64_t task = first_task; task <= last_task; ++task) {
            const float* share =
                call.shares + (head * call.shares_of_head + (task - first_task)) * 3 * row;
            for (int64_t j = 0; j < call.keys_count; ++j) {
                sums[j] += share[j];
                if (!(share[row + j] <= most[j]) && most[j] == most[j]) most[j] = share[row + j];
                last[j] += share[2 * row + j];
            }
        }
        for (int64_t j = 0; j < call.keys_count; ++j)
            call.received[head * call.keys_count + j] = static_cast<float>(sums[j]);
        if (!call.received_last) continue;
        for (int64_t j = 0; j < call.keys_count; ++j)
            call.received_last[head * call.keys_count + j] = static_cast<float>(last[j]);
    }
}

}  // namespace

void forward(const Kernels& kernels, const Call& asked, int threads) {
    if (forward_few(kernels, asked, threads)) return;
    Call call = asked;
    const int64_t kv_heads = call.batch * call.kv_heads;
    const int64_t group = call.kv_heads ? call.heads / call.kv_heads : 0;
    const int64_t size = kernels.block_queries(call);
    const int64_t blocks_of_head = (call.queries_count + size - 1) / size;
    const int64_t blocks = group * blocks_of_head;
    if (kv_heads == 0 || blocks == 0) return;
    threads = std::max(threads, 1);
    const int64_t per_task = call.received ? blocks_per_task(blocks, kv_heads)
                                           : blocks_per_task(blocks, kv_heads, threads);
    Memory shares;
    if (call.received) {
        call.blocks_of_task = per_task;
        call.shares_of_head = (blocks_of_head + per_task - 2) / per_task + 1;
        call.share_row = (call.keys_count + 31) / 16 * 16;
        shares = aligned_memory(static_cast<size_t>(call.batch * call.heads * call.shares_of_head *
                                                    3 * call.share_row) *
                                sizeof(float));
        call.shares = reinterpret_cast<float*>(shares.get());
    }
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
    if (call.received) add_shares(call, blocks_of_head);
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

}  // namespace headloom
