// What one call of a kernel is asked, as plain data: every kernel, whatever instruction set it
// is compiled for, reads this and nothing else. Strides count elements; the last dimension of
// every tensor is contiguous.
#pragma once

#include <cstdint>

namespace headloom {

// A tensor (batch, heads, rows, columns) with contiguous columns; one of fewer dimensions has 1 in
// front. A dimension of size 1 has stride 0, so that it is the same for every index.
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
    // j is in the key range of b, and in the row range of b and i, and it is allowed.
    bool banded = false;
    int64_t left = 0, right = 0;
    Tensor key_range;  // int64, (2, batch): first keys, ends
    Tensor row_range;  // int64, (2, batch or 1, queries): first keys, ends
    Tensor allowed;    // bool

    // What is added to the scores after the soft cap.
    Tensor bias;         // float32
    Tensor offset_bias;  // float32, (heads, queries + keys - 1), at j - i + queries - 1

    // Shaw's relative positions: tables (heads or 1, 2 clip + 1, depth), float32.
    Tensor key_table, value_table;
    int64_t clip = 0;
    int64_t relative_offset = 0;  // the distance from query i to key j is j - i - relative_offset

    Tensor sinks;  // float32, (heads,): one more logit, without a value

    // Results. Rows are (batch, heads, queries) in this order.
    void* output = nullptr;         // (rows, value_depth), in the type of the inputs
    float* exact_output = nullptr;  // of bfloat16: the same before it is rounded, or nullptr
    float* lse = nullptr;           // may be left out where entropy is
    float* entropy = nullptr;       // nullptr where it is not asked for; with it rest and count
    float* rest = nullptr;
    int32_t* count = nullptr;
    int64_t kept = 0;
    int32_t* kept_keys = nullptr;  // (rows, kept)
    float* kept_scores = nullptr;
    float* kept_weights = nullptr;

    // What each key receives, (batch, heads, keys); `received` and `received_most`, or neither.
    float* received = nullptr;       // the sum of its weights over all queries
    float* received_most = nullptr;  // the largest of them
    float* received_last = nullptr;  // the sum over the last queries, so many, or nullptr
    int64_t last_queries = 0;

    // Of `forward` itself. A task is so many blocks of a key/value head, by the shapes alone where
    // it is asked what keys receive; what it adds to each head it has blocks of is a share: three
    // rows of share_row numbers, as the three results. (batch, heads, shares_of_head).
    int64_t blocks_of_task = 0;
    float* shares = nullptr;
    int64_t shares_of_head = 0, share_row = 0;
};

}  // namespace headloom
