#include "attention.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>

#include "threads.h"

namespace weft {
namespace {

struct Free {
    void operator()(void* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<char, Free>;

Memory allocate(size_t bytes) {
    const size_t rounded = (bytes + 63) / 64 * 64;
    void* memory = rounded ? std::aligned_alloc(64, rounded) : nullptr;
    if (rounded && !memory) throw std::bad_alloc();
    return Memory(static_cast<char*>(memory));
}

// Packing is cut into pieces of this many keys.
constexpr int64_t packing_piece = 2048;
// Heads whose keys and values are smaller than this are packed by the task that uses them, where
// there are enough heads to go round: they stay in its cache, and no thread waits for another.
constexpr int64_t small_head = 64 * 1024;

}  // namespace

void forward(const Kernels& kernels, Call call, int threads) {
    const int64_t kv_heads = call.batch * call.kv_heads;
    const int64_t blocks =
        (call.queries_count + kernels.block_queries - 1) / kernels.block_queries;
    if (kv_heads == 0 || call.heads == 0 || blocks == 0) return;
    threads = std::max(threads, 1);

    const int64_t keys_size = kernels.packed_keys_size(call);
    const int64_t values_size = kernels.packed_values_size(call);
    const bool pack_within =
        (keys_size + values_size <= small_head && kv_heads >= 16) ||
        (blocks == 1 && call.heads == call.kv_heads);
    const size_t workspace_size = kernels.forward_workspace(call, pack_within) + 64;
    const Memory workspaces = allocate(workspace_size * static_cast<size_t>(threads));
    const auto workspace = [&](int worker) {
        const size_t aligned = workspace_size / 64 * 64;
        return workspaces.get() + aligned * static_cast<size_t>(worker);
    };

    if (pack_within) {
        run_tasks(threads, kv_heads, [&](int64_t task, int worker) {
            kernels.forward_head(call, task / call.kv_heads, task % call.kv_heads,
                                 workspace(worker));
        });
        return;
    }

    const Memory packed_keys = allocate(static_cast<size_t>(kv_heads * keys_size) * sizeof(float));
    const Memory packed_values =
        allocate(static_cast<size_t>(kv_heads * values_size) * sizeof(float));
    call.packed_keys = reinterpret_cast<float*>(packed_keys.get());
    call.packed_values = reinterpret_cast<float*>(packed_values.get());
    const int64_t pieces = (call.keys_count + packing_piece - 1) / packing_piece;
    run_tasks(threads, kv_heads * pieces, [&](int64_t task, int) {
        const int64_t head = task / pieces, first = task % pieces * packing_piece;
        kernels.pack(call, head / call.kv_heads, head % call.kv_heads, first,
                     std::min(first + packing_piece, call.keys_count));
    });
    // The last queries first: under a causal mask they see the most keys, and the short tasks at
    // the end even out what the threads have left.
    run_tasks(threads, call.batch * call.heads * blocks, [&](int64_t task, int worker) {
        const int64_t head = task / blocks, block = blocks - 1 - task % blocks;
        kernels.forward_block(call, head / call.heads, head % call.heads,
                              block * kernels.block_queries, workspace(worker));
    });
}

}  // namespace weft
