// What a product of two float32 matrices is asked, as plain data (product_kernels.cpp has the
// kernel); and one call on all its threads.
#pragma once

#include <cstddef>
#include <cstdint>

namespace headloom {

// output (+)= act(left right + bias), with act the identity or max(0, x): left (rows, terms), right
// (terms, columns), output (rows, columns).
struct ProductCall {
    int64_t rows = 0, columns = 0, terms = 0;
    // Of each factor, numbers that follow each other in memory are of one row (column) and
    // successive terms if `along`, else of one term; `..._row` elements from one such run to the
    // next.
    const float* left = nullptr;
    int64_t left_row = 0;
    bool left_along = true;
    const float* right = nullptr;
    int64_t right_row = 0;
    bool right_along = false;
    const float* bias = nullptr;  // (columns,), or nullptr
    bool relu = false, accumulate = false;
    float* output = nullptr;
    int64_t output_row = 0;
};

// How a product is dealt out. Terms are summed in the same order whatever the tiles are, so that
// results depend on the call alone.
struct ProductPlan {
    int64_t tile_rows, tile_columns;  // of a task: multiples of 32
    int64_t segments, segment_terms;  // tasks of successive terms, whose sums are added in order
    float* partial;                   // (segments, rows, columns) where they are several
};

struct ProductKernels {
    size_t (*space)(const ProductCall& call, const ProductPlan& plan);  // bytes of a worker
    // Tasks first .. end; false where a result is not finite, because a factor is not or for its
    // size: then the results are worth nothing.
    bool (*tasks)(const ProductCall& call, const ProductPlan& plan, int64_t first, int64_t end,
                  char* memory);
};

struct Kernels;

// Fill the output. False where a result is not finite: then the output is worth nothing.
bool multiply(const Kernels& kernels, const ProductCall& call, int threads);

}  // namespace headloom
