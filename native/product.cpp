#include "product.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "kernels.h"
#include "memory.h"
#include "threads.h"

namespace headloom {
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

// Memory of this thread, kept from call to call: a few megabytes, which the system would give and
// take back for each of a step's hundred products, page by page.
char* scratch(size_t bytes) {
    static thread_local Memory memory;
    static thread_local size_t size = 0;
    if (bytes > size) {
        size = 0;
        memory.reset();
        memory = aligned_memory(bytes);
        size = bytes;
    }
    return memory.get();
}

// Whether a number is infinite or NaN, as bits, so that compilers see vectors.
uint32_t not_finite(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return (bits & 0x7f800000u) == 0x7f800000u;
}

// The segments' results, in order, and what follows them; whether all are finite.
bool add_segments(const ProductCall& call, const ProductPlan& plan, int64_t first, int64_t end) {
    const int64_t columns = call.columns;
    std::vector<float> row_sums(static_cast<size_t>(columns));
    float* sums = row_sums.data();
    uint32_t bad = 0;
    for (int64_t row = first; row < end; ++row) {
        float* to = call.output + row * call.output_row;
        const float* from = plan.partial + row * columns;
        std::copy(from, from + columns, sums);
        for (int64_t s = 1; s < plan.segments; ++s) {
            from += call.rows * columns;
            for (int64_t n = 0; n < columns; ++n) sums[n] += from[n];
        }
        if (call.bias)
            for (int64_t n = 0; n < columns; ++n) sums[n] += call.bias[n];
        if (call.accumulate)
            for (int64_t n = 0; n < columns; ++n) sums[n] += to[n];
        for (int64_t n = 0; n < columns; ++n) bad |= not_finite(sums[n]);
        if (call.relu)
            for (int64_t n = 0; n < columns; ++n) sums[n] = sums[n] > 0.0f ? sums[n] : 0.0f;
        std::copy(sums, sums + columns, to);
    }
    return bad == 0;
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
    char* const memory = scratch(room * static_cast<size_t>(workers) + partial);
    if (in_segments)
        plan.partial = reinterpret_cast<float*>(memory + room * static_cast<size_t>(workers));
    std::atomic<bool> finite{true};
    // Neighbouring tasks stay with one worker, which prepares the next while it computes one.
    run_tasks(threads, workers, [&](int64_t share, int) {
        char* own = memory + room * static_cast<size_t>(share);
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

}  // namespace headloom
