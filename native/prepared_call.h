// What products by a matrix that is packed once, and used many times, are asked, as plain data.
#pragma once

#include <cstddef>
#include <cstdint>

namespace headloom {

// output = act(input W^T + b), with act the identity or max(0, x); W (columns, terms) is packed.
// All numbers are float32; with `pairs` the factors of each product are rounded to bfloat16.
struct PreparedCall {
    int64_t rows = 0, terms = 0, columns = 0;
    bool pairs = false;
    const float* weight = nullptr;  // contiguous; read by `prepare` alone
    char* matrix = nullptr;         // W packed, of the size that `bytes` tells

    const float* input = nullptr;  // (rows, terms), rows of input_row elements
    int64_t input_row = 0;
    const float* bias = nullptr;  // (columns,), or nullptr
    bool relu = false;
    float* output = nullptr;  // (rows, columns), contiguous
};

// Rows and columns of the output that are one task; which task a number is in changes nothing.
constexpr int64_t prepared_rows = 128, prepared_columns = 256;

// One instruction set's kernels.
struct PreparedKernels {
    size_t (*bytes)(const PreparedCall& call);
    // Some columns, counted in tasks; false where a number is not finite, which pairs would lose.
    bool (*prepare)(const PreparedCall& call, int64_t columns_task);
    // The input as the products read it, some rows at a time; nothing to do without pairs.
    size_t (*left_bytes)(const PreparedCall& call);
    bool (*prepare_rows)(const PreparedCall& call, int64_t rows_task, char* left);
    void (*multiply)(const PreparedCall& call, int64_t rows_task, int64_t columns_task,
                     const char* left);
};

}  // namespace headloom
