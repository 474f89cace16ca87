// What passes over memory are asked, as plain data: losses, dropout, rotary positions; and one call
// on all its threads.
#pragma once

#include <cstdint>

#include "call.h"

namespace headloom {

// Cross-entropy with label smoothing, of each row of logits:
//
//     loss = -(1 - s) log p(target) - s mean_v log p(v),    p = softmax(logits)
//
// and, in place of the logits if `gradient`, its derivative p - (1 - s) [v = target] - s / columns.
struct LossCall {
    int64_t rows = 0, columns = 0;
    float* logits = nullptr;           // (rows, columns)
    const int64_t* targets = nullptr;  // (rows,), each 0 to columns - 1
    float smoothing = 0.0f;
    bool gradient = false;
    float* losses = nullptr;  // (rows,)
};

// output = residual + (kept ? factor * input : 0). Which number is kept depends on the seed and its
// place alone, so that backward finds the same again.
struct DropoutCall {
    int64_t count = 0;
    const float* input = nullptr;
    const float* residual = nullptr;  // nullptr: 0
    float* output = nullptr;
    uint64_t seed = 0;
    uint32_t dropped = 0;  // of 2^32
    float factor = 1.0f;
};

// Turn each pair (x_i, x_{i + depth / 2}) of row m by the angle whose cosine and sine are at
// m * depth / 2 + i of the tables; by minus it if `back`.
struct RotaryCall {
    int64_t batch = 0, heads = 0, positions = 0, depth = 0;
    Tensor input, output;  // float32; the output's data are written
    const float* cosines = nullptr;
    const float* sines = nullptr;
    bool back = false;
};

// What the backward pass of attention takes from each row of a head, with dO the gradient by its
// output O:
//
//     subtract = dO . O,  finite_lse = lse;    0 and infinity where a row sees no key
struct RowTermsCall {
    int64_t batch = 0, heads = 0, rows = 0, depth = 0;
    Tensor by_output;               // float32
    const float* output = nullptr;  // (batch, heads, rows, depth)
    const float* lse = nullptr;     // (batch, heads, rows)
    float far = 0.0f;               // magnitudes of lse above it are told
    float* subtract = nullptr;
    float* finite_lse = nullptr;
};

struct PassKernels {
    void (*loss)(const LossCall& call, int64_t first, int64_t end);  // rows
    void (*dropout)(const DropoutCall& call, int64_t first, int64_t end);
    // Rows are counted over positions, then batch; each has all heads.
    void (*rotary)(const RotaryCall& call, int64_t first, int64_t end);
    // Rows over all heads; whether none of them is far.
    bool (*row_terms)(const RowTermsCall& call, int64_t first, int64_t end);
};

struct Kernels;

void losses(const Kernels& kernels, const LossCall& call, int threads);
void dropout(const Kernels& kernels, const DropoutCall& call, int threads);
void rotary(const Kernels& kernels, const RotaryCall& call, int threads);
// Whether no row is far.
bool row_terms(const Kernels& kernels, const RowTermsCall& call, int threads);

}  // namespace headloom
