// The product that every kernel is made of, blocked for registers.
#pragma once

#include "vector.h"
#include "visible.h"

namespace headloom {
namespace HEADLOOM_INSTRUCTION_SET {

// Rows of a block that are multiplied together: as many as leave room in the registers for two
// vectors of sums each.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int group_rows = 8;
#else
constexpr int group_rows = 6;
#endif

// Keys whose weighted values are summed before they join the sum of all: pieces are counted from
// key 0, so that a row's result does not depend on where its block or its tile begins.
constexpr int64_t keys_summed = 512;

inline int64_t end_of_piece(int64_t key, int64_t end) {
    return smaller((key / keys_summed + 1) * keys_summed, end);
}

// Columns that are multiplied together.
constexpr int panel_columns = 2 * lanes;

// c[r, :] (+)= sum over t of a[r * a_row + t * a_step] * b[t * b_step + :], for `rows` rows and
// `vectors` vectors of columns. The sum runs over t in order, whatever the blocking: a row's
// result does not depend on the rows beside it.
template <int rows, int vectors, bool accumulate>
inline void multiply_block(const float* a, int64_t a_row, int64_t a_step, const float* b,
                           int64_t b_step, float* c, int64_t c_row, int64_t steps) {
    Floats sums[rows][vectors];
    for (int r = 0; r < rows; ++r)
        for (int v = 0; v < vectors; ++v) sums[r][v] = Floats{};
    for (int64_t t = 0; t < steps; ++t) {
        Floats right[vectors];
#pragma GCC unroll 4
        for (int v = 0; v < vectors; ++v) right[v] = load(b + v * lanes);
#pragma GCC unroll 16
        for (int r = 0; r < rows; ++r) {
            const Floats left = broadcast(a[r * a_row]);
#pragma GCC unroll 4
            for (int v = 0; v < vectors; ++v) sums[r][v] += left * right[v];
        }
        a += a_step;
        b += b_step;
    }
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r)
        for (int v = 0; v < vectors; ++v) {
            float* to = c + r * c_row + v * lanes;
            store(to, accumulate ? load(to) + sums[r][v] : sums[r][v]);
        }
}

// The cases of a switch over the rows of a group: HEADLOOM_ROWS(n) for each number that there may
// be.
#if defined(__AVX512F__) || defined(__aarch64__)
#define HEADLOOM_ROW_COUNTS \
    HEADLOOM_ROWS(1);       \
    HEADLOOM_ROWS(2);       \
    HEADLOOM_ROWS(3);       \
    HEADLOOM_ROWS(4);       \
    HEADLOOM_ROWS(5);       \
    HEADLOOM_ROWS(6);       \
    HEADLOOM_ROWS(7);       \
    HEADLOOM_ROWS(8)
#else
#define HEADLOOM_ROW_COUNTS \
    HEADLOOM_ROWS(1);       \
    HEADLOOM_ROWS(2);       \
    HEADLOOM_ROWS(3);       \
    HEADLOOM_ROWS(4);       \
    HEADLOOM_ROWS(5);       \
    HEADLOOM_ROWS(6)
#endif

template <int vectors, bool accumulate>
inline void multiply_rows(int rows, const float* a, int64_t a_row, int64_t a_step, const float* b,
                          int64_t b_step, float* c, int64_t c_row, int64_t steps) {
#define HEADLOOM_ROWS(n) \
    case n:              \
        return multiply_block<n, vectors, accumulate>(a, a_row, a_step, b, b_step, c, c_row, steps)
    switch (rows) { HEADLOOM_ROW_COUNTS; }
#undef HEADLOOM_ROWS
}

// c (+)= a b for at most `group_rows` rows and any number of whole vectors of columns; b and c
// have `columns` columns, rounded up to vectors, in rows b_step and c_row apart.
template <bool accumulate>
inline void multiply(int rows, int64_t columns, const float* a, int64_t a_row, int64_t a_step,
                     const float* b, int64_t b_step, float* c, int64_t c_row, int64_t steps) {
    int64_t column = 0;
    for (; column + lanes < columns; column += 2 * lanes)
        multiply_rows<2, accumulate>(rows, a, a_row, a_step, b + column, b_step, c + column, c_row,
                                     steps);
    if (column < columns)
        multiply_rows<1, accumulate>(rows, a, a_row, a_step, b + column, b_step, c + column, c_row,
                                     steps);
}

}  // namespace HEADLOOM_INSTRUCTION_SET
}  // namespace headloom
