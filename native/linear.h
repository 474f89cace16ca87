// What the products of linear layers are asked, as plain data (linear_kernels.cpp has the kernels);
// and one call on all its threads.
#pragma once

#include <cstddef>
#include <cstdint>

namespace headloom {

// Linear maps of one input: output_p = act(input W_p^T + b_p), with act the identity or
// max(0, x). All numbers are float32 and contiguous, but for the rows of input and gradients.
struct LinearCall {
    static constexpr int most_parts = 3;

    int64_t rows = 0, terms = 0;  // input (rows, terms)
    int64_t parts = 0;
    const float* input = nullptr;
    int64_t input_row = 0;
    bool relu = false;

    int64_t columns[most_parts] = {};  // of each output: W (columns, terms)
    const float* weights[most_parts] = {};
    const float* biases[most_parts] = {};  // (columns,), or nullptr
    float* outputs[most_parts] = {};       // (rows, columns); read backward if relu

    // Backward.
    const float* by_outputs[most_parts] = {};  // rows of by_output_rows elements
    int64_t by_output_rows[most_parts] = {};
    float* by_weights[most_parts] = {};  // nullptr where it is not wanted
    float* by_biases[most_parts] = {};
    float* by_input = nullptr;  // (rows, terms), nullptr likewise
};

// Rows of a task, whose sums are added in order: results do not depend on the number of threads.
constexpr int64_t linear_task_rows = 128;

// One instruction set's kernels; `memory` is of the sizes that `space` tells.
struct LinearSpace {
    size_t shared = 0, worker = 0;  // bytes
};

struct LinearKernels {
    LinearSpace (*space)(const LinearCall& call, bool backward);
    // The products' right factors; false where a number is not finite.
    bool (*pack_weights)(const LinearCall& call, bool backward, int64_t part, char* shared);
    bool (*forward_rows)(const LinearCall& call, int64_t task, char* shared, char* worker);
    bool (*backward_rows)(const LinearCall& call, int64_t task, char* shared, char* worker);
    // 32 rows of the gradient of a part's W, and of its bias.
    void (*backward_weights)(const LinearCall& call, int64_t part, int64_t stripe, char* shared,
                             char* worker);
};

struct Kernels;

// Fill the outputs, or the gradients. Whether all factors are finite: else the results are worth
// nothing.
bool linear_forward(const Kernels& kernels, const LinearCall& call, int threads);
bool linear_backward(const Kernels& kernels, const LinearCall& call, int threads);

}  // namespace headloom
