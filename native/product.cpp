#include "product.h"

#include <algorithm>
#include <atomic>

#include "memory.h"
#include "threads.h"

namespace weft {
namespace {

// The sides of a task: as large as the caches hold with both its factors.
constexpr int64_t widest_tile = 256;
// Terms from which a product of few results is cut into segments, so that there are tasks for all.
constexpr int64_t long_terms = 1024;
constexpr int64_t enough_tasks = 8;
// Results that are added up together.
constexpr int64_t rows_at_once = 64;

int64_t pieces_of(int64_t count, int64_t size) { return (count + size - 1) / size; }

// The size of each of so many pieces, a multiple of 32.
int64_t even_size(int64_t count, int64_t pieces) {
    return pieces_of(pieces_of(count, pieces), 32) * 32;
}

ProductPlan plan_of(const ProductCall& call, int threads) {
    int64_t across = pieces_of(call.rows, widest_tile);
    const int64_t along = pieces_of(call.columns, widest_tile);
    ProductPlan plan{};
    plan.segments = std::min(pieces_of(call.terms, long_terms),
                             std::max<int64_t>(enough_tasks / (across * along), 1));
    plan.segment_terms = even_size(call.terms, plan.segments);
    plan.segments = pieces_of(call.terms, plan.segment_terms);
    // As much for every thread.
    while (across * along * plan.segments % threads && across < enough_tasks &&
           call.rows > 32 * across)
        ++across;
    plan.tile_rows = even_size(call.rows, across);
    plan.tile_columns = even_size(call.columns, along);
    return plan;
}

// The segments' results, in order, and what follows them.
bool add_segments(const ProductCall& call, const ProductPlan& plan, int64_t first, int64_t end) {
    bool finite = true;
    const int64_t segment = call.rows * call.columns;
    for (int64_t row = first; row < end; ++row) {
        const float* from = plan.partial + row * call.columns;
        float* to = call.output + row * call.output_row;
        for (int64_t n = 0; n < call.columns; ++n) {
            float sum = from[n];
            for (int64_t s = 1; s < plan.segments; ++s) sum += from[s * segment + n];
            if (call.bias) sum += call.bias[n];
            if (call.accumulate) sum += to[n];
            finite &= sum - sum == 0.0f;
            to[n] = call.relu ? std::max(sum, 0.0f) : sum;
        }
    }
    return finite;
}

}  // namespace

bool multiply(const Kernels& kernels, const ProductCall& call, int threads) {
    threads = std::max(threads, 1);
    ProductPlan plan = plan_of(call, threads);
    const int64_t count = plan.segments * pieces_of(call.rows, plan.tile_rows) *
                          pieces_of(call.columns, plan.tile_columns);
    const int64_t workers = std::min<int64_t>(threads, count);
    const bool in_segments = plan.segments > 1;
    const size_t partial =
        in_segments ? static_cast<size_t>(plan.segments * call.rows * call.columns) * sizeof(float)
                    : 0;
    const size_t room = (kernels.product->space(call, plan) + 63) / 64 * 64;
    const Memory memory = aligned_memory(room * static_cast<size_t>(workers));
    const Memory sums = aligned_memory(partial);
    if (in_segments) plan.partial = reinterpret_cast<float*>(sums.get());
    std::atomic<bool> finite{true};
    // Neighbouring tasks stay with one worker, which prepares the next while it computes one.
    run_tasks(threads, workers, [&](int64_t share, int) {
        char* own = memory.get() + room * static_cast<size_t>(share);
        if (!kernels.product->tasks(call, plan, share * count / workers,
                                    (share + 1) * count / workers, own))
            finite.store(false, std::memory_order_relaxed);
    });
    if (!in_segments || !finite) return finite;
    run_tasks(threads, pieces_of(call.rows, rows_at_once), [&](int64_t task, int) {
        const int64_t first = task * rows_at_once;
        if (!add_segments(call, plan, first, std::min(first + rows_at_once, call.rows)))
            finite.store(false, std::memory_order_relaxed);
    });
    return finite;
}

}  // namespace weft
