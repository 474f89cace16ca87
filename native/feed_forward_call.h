// What the two maps of a feed-forward layer are asked, as plain data; see feed_forward_block.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace headloom {

// hidden = input W_1^T + b_1,  output = f(hidden) W_2^T + b_2. All numbers are float32 and
// contiguous, but for the rows of input and gradients.
struct FeedForwardCall {
    int64_t rows = 0, width = 0, inner = 0, outer = 0;
    int32_t kind = 0;              // of f: an Activation, see passes_call.h
    const float* input = nullptr;  // (rows, width)
    int64_t input_row = 0;
    const float* rise = nullptr;         // W_1, (inner, width)
    const float* rise_biases = nullptr;  // or nullptr
    const float* fall = nullptr;         // W_2, (outer, inner)
    const float* fall_biases = nullptr;
    float* hidden = nullptr;  // (rows, inner); written forward unless nullptr, read backward
    float* output = nullptr;  // (rows, outer)

    // Backward; nullptr where a gradient is not wanted.
    const float* by_output = nullptr;
    int64_t by_output_row = 0;
    float* by_input = nullptr;  // (rows, width)
    float* by_rise = nullptr;
    float* by_rise_biases = nullptr;
    float* by_fall = nullptr;
    float* by_fall_biases = nullptr;
};

// One instruction set's kernels; `memory` is of the sizes that `space` tells.
struct FeedForwardSpace {
    size_t shared = 0, worker = 0;  // bytes
};

struct FeedForwardKernels {
    FeedForwardSpace (*space)(const FeedForwardCall& call, bool backward);
    // The products' right factors, 0: W_1, 1: W_2; false where a number is not finite.
    bool (*pack_weights)(const FeedForwardCall& call, bool backward, int64_t which, char* shared);
    // A task of linear_task_rows rows; false likewise.
    bool (*forward_rows)(const FeedForwardCall& call, int64_t task, char* shared, char* worker);
    bool (*backward_rows)(const FeedForwardCall& call, int64_t task, char* shared, char* worker);
    // 32 rows of the gradients of W_2 and its bias, those first, or of W_1 and its bias.
    void (*backward_weights)(const FeedForwardCall& call, int64_t stripe, char* shared,
                             char* worker);
};

}  // namespace headloom
