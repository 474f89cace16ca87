#include "prepared.h"

#include <atomic>

#include "memory.h"
#include "threads.h"

namespace headloom {
namespace {

int64_t rows_tasks(const PreparedCall& call) {
    return (call.rows + prepared_rows - 1) / prepared_rows;
}

int64_t columns_tasks(const PreparedCall& call) {
    return (call.columns + prepared_columns - 1) / prepared_columns;
}

}  // namespace

size_t prepared_bytes(const Kernels& kernels, const PreparedCall& call) {
    return kernels.prepared->bytes(call);
}

bool prepare(const Kernels& kernels, const PreparedCall& call, int threads) {
    std::atomic<bool> finite{true};
    run_tasks(threads, columns_tasks(call), [&](int64_t task, int) {
        if (!kernels.prepared->prepare(call, task)) finite.store(false, std::memory_order_relaxed);
    });
    return finite;
}

bool prepared_forward(const Kernels& kernels, const PreparedCall& call, int threads) {
    const PreparedKernels& of = *kernels.prepared;
    const size_t bytes = of.left_bytes(call);
    const Memory left = aligned_memory(bytes);
    const int64_t blocks = rows_tasks(call);
    if (bytes) {
        std::atomic<bool> finite{true};
        run_tasks(threads, blocks, [&](int64_t task, int) {
            if (!of.prepare_rows(call, task, left.get()))
                finite.store(false, std::memory_order_relaxed);
        });
        if (!finite) return false;
    }
    // Tasks that follow each other read the same columns of the matrix.
    run_tasks(threads, blocks * columns_tasks(call), [&](int64_t task, int) {
        of.multiply(call, task % blocks, task / blocks, left.get());
    });
    return true;
}

}  // namespace headloom
