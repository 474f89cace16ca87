// What one call of a kernel is asked, as plain data: every kernel, whatever instruction set it
// is compiled for, reads this and nothing else. Strides count elements; the last dimension of
// every tensor is contiguous.
#pragma once

#include <cstdint>

namespace weft {

// A tensor (batch, heads, rows, columns) with contiguous columns.
struct Tensor {
    const void* data = nullptr;
    int64_t batch = 0, head = 0, row = 0;

    template <typename Element>
    const Element* at(int64_t b, int64_t h, int64_t i) const {
        return static_cast<const Element*>(data) + b * batch + h * head + i * row;
    }
};

struct Call {
    int64_t batch = 0, heads = 0, kv_heads = 0, queries_count = 0, keys_count = 0;
    int64_t depth = 0, value_depth = 0;
    Tensor queries, keys, values;
    bool bfloat16 = false;
    float scale = 1.0f;
    float softcap = 0.0f;  // 0: none

    // Who may look at whom: query i at key j iff i + left <= j <= i + right (if banded), and
    // first_key[b] <= j < end_key[b], and row_first[b, i] <= j < row_end[b, i], and allowed.
    bool banded = false;
    int64_t left = 0, right = 0;
    const int64_t* first_key = nullptr;
    const int64_t* end_key = nullptr;
    const int64_t* row_first = nullptr;
    const int64_t* row_end = nullptr;
    int64_t row_range_batch = 0;
    Tensor allowed;  // bool

    // What is added to the scores after the soft cap.
    Tensor bias;                           // float32
    const float* offset_bias = nullptr;    // (heads, queries + keys - 1), at j - i + queries - 1
    int64_t offset_bias_head = 0;

    // Shaw's relative positions: tables (heads or 1, 2 clip + 1, depth), float32.
    const float* key_table = nullptr;
    const float* value_table = nullptr;
    int64_t key_table_head = 0, value_table_head = 0;
    int64_t clip = 0;
    int64_t relative_offset = 0;  // the distance from query i to key j is j - i - relative_offset

    const float* sinks = nullptr;  // (heads,): one more logit, without a value

    // Results. Rows are (batch, heads, queries) in this order.
    void* output = nullptr;  // (rows, value_depth), in the type of the inputs
    float* lse = nullptr;      // may be left out where entropy is
    float* entropy = nullptr;  // nullptr where it is not asked for; with it rest and count
    float* rest = nullptr;
    int32_t* count = nullptr;
    int64_t kept = 0;
    int32_t* kept_keys = nullptr;  // (rows, kept)
    float* kept_scores = nullptr;
    float* kept_weights = nullptr;
};

}  // namespace weft
