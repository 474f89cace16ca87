// The loss of a last linear map, as plain data; see projected_block.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace headloom {

// Of logits = inputs matrix^T, cross-entropy with label smoothing:
//
//     loss = -(1 - s) log p(target) - s mean_v log p(v),    p = softmax(logits)
//
// and the gradients of the rows' sum. All numbers are float32 and contiguous.
struct ProjectedCall {
    int64_t rows = 0, width = 0, choices = 0;
    const float* inputs = nullptr;     // (rows, width)
    const float* matrix = nullptr;     // (choices, width)
    const int64_t* targets = nullptr;  // (rows,), each 0 to choices - 1
    float smoothing = 0.0f;
    float* losses = nullptr;     // (rows,)
    float* by_inputs = nullptr;  // (rows, width), nullptr where it is not wanted
    float* by_matrix = nullptr;  // (choices, width), nullptr likewise
};

struct ProjectedSpace {
    size_t shared = 0, worker = 0;  // bytes
};

// Tasks of one kind are run in any order, on any thread, all of them before those of the next.
struct ProjectedTasks {
    int64_t pack = 0, rows = 0, choices = 0;
};

struct ProjectedKernels {
    ProjectedSpace (*space)(const ProjectedCall& call);
    ProjectedTasks (*tasks)(const ProjectedCall& call);
    // The products' right factors; false where a number is not finite.
    bool (*pack)(const ProjectedCall& call, int64_t task, char* shared);
    // Losses, and gradients by the inputs.
    void (*rows)(const ProjectedCall& call, int64_t task, char* shared, char* worker);
    // Gradients by the matrix.
    void (*choices)(const ProjectedCall& call, int64_t task, char* shared, char* worker);
};

}  // namespace headloom
