// What the backward pass of one attention call is given and asked for, as plain data.
#pragma once

#include <cstdint>

#include "call.h"

namespace headloom {

// With S the scores, P = e^(S - lse) the weights and dP = dO V^T, the gradient of a score is
//
//     dS = P (dP - subtract - by_entropy (S - lse)) + (what comes through kept scores)
//
// where `subtract` holds, for each row, sum_j P dP less what comes through lse, and what comes
// through the entropy besides its factor. Rows that see no key have lse = +infinity here.
//
// Results have rows of `padded` columns: depths rounded up to 16, so that every kernel can add
// whole vectors. Those of queries, keys and values are written whenever there are queries and keys;
// the others are added to, and must begin as zeros.
struct Gradients {
    Tensor output;                      // dO, float32 (batch, heads, queries, value_depth)
    const float* lse = nullptr;         // (batch, heads, queries)
    const float* subtract = nullptr;    // (batch, heads, queries)
    const float* by_entropy = nullptr;  // (batch, heads, queries), or nullptr

    int64_t kept = 0;  // 0: nothing comes through kept scores
    const int32_t* kept_keys = nullptr;
    const float* kept_scores = nullptr;  // their gradients, (batch, heads, queries, kept)

    // The keys of each key/value head are cut into `pieces` ranges of `piece_keys` keys, each a
    // task of its own. What several tasks add to has a copy for each piece; the caller sums them.
    int64_t pieces = 1, piece_keys = 0;
    int64_t padded_depth = 0, padded_value_depth = 0;
    float* queries = nullptr;      // (pieces, batch, heads, queries, padded_depth)
    float* keys = nullptr;         // (batch, kv_heads, keys, padded_depth)
    float* values = nullptr;       // (batch, kv_heads, keys, padded_value_depth)
    float* bias = nullptr;         // (batch, heads, queries, keys), or nullptr
    float* key_bias = nullptr;     // (batch, heads, keys): for a bias that is equal for all queries
    float* offset_bias = nullptr;  // (pieces, batch, heads, queries + keys - 1)
    float* key_table = nullptr;    // (pieces, batch, heads, 2 clip + 1, padded_depth)
    float* value_table = nullptr;  // (pieces, batch, heads, 2 clip + 1, padded_value_depth)
};

}  // namespace headloom
