// Products by packed matrices, compiled once for every instruction set; see kernels.cpp.
//
// A panel of columns of the matrix, a piece of its terms at a time, stays in the nearest cache
// while the rows of a task stream past it. Sums run over the terms of a piece in order, then over
// the pieces: a number of the output does not depend on the rows and columns beside it.
#include "kernels.h"
#include "multiply_pairs.h"
#include "packing.h"

namespace headloom {
namespace HEADLOOM_INSTRUCTION_SET {
namespace {

// Terms of a panel that are multiplied at a time: 16 KiB of floats on the widest vectors.
constexpr int64_t piece_terms = 128;
// Columns of a panel: as pairs, two tiles.
constexpr int64_t pair_columns = 32;

int64_t chunks_of(const PreparedCall& call) { return (call.terms + 31) / 32; }

// Sums of a panel, with bias and activation, to their places in the output.
void write_panel(const PreparedCall& call, const float* sums, int64_t width, int64_t row,
                 int64_t rows, int64_t column) {
    const int64_t columns = smaller(width, call.columns - column);
    for (int64_t r = 0; r < rows; ++r) {
        float* to = call.output + (row + r) * call.columns + column;
        for (int64_t n = 0; n < columns; n += lanes) {
            Floats x = load(sums + r * width + n);
            if (call.bias) x += load_part(call.bias + column + n, columns - n);
            if (call.relu) x = maximum(Floats{}, x);
            store_part(to + n, x, columns - n);
        }
    }
}

template <bool accumulate>
void multiply_piece(const PreparedCall& call, int64_t row, int64_t rows, int64_t term,
                    int64_t terms, const float* panel, float* sums) {
    for (int64_t r = 0; r < rows; r += group_rows)
        multiply_rows<2, accumulate>((int)smaller(group_rows, rows - r),
                                     call.input + (row + r) * call.input_row + term, call.input_row,
                                     1, panel, panel_columns, sums + r * panel_columns,
                                     panel_columns, terms);
}

void multiply_floats(const PreparedCall& call, int64_t row, int64_t rows, int64_t column,
                     int64_t end) {
    alignas(64) float sums[prepared_rows * panel_columns];
    const float* matrix = reinterpret_cast<const float*>(call.matrix);
    for (; column < end; column += panel_columns) {
        const float* panel = matrix + column * call.terms;
        for (int64_t term = 0; term < larger(call.terms, 1); term += piece_terms) {
            const int64_t terms = smaller(piece_terms, call.terms - term);
            if (term)
                multiply_piece<true>(call, row, rows, term, terms, panel + term * panel_columns,
                                     sums);
            else
                multiply_piece<false>(call, row, rows, term, terms, panel, sums);
        }
        write_panel(call, sums, panel_columns, row, rows, column);
    }
}

#if defined(HEADLOOM_HAS_PAIRS)
void multiply_as_pairs(const PreparedCall& call, const int32_t* left, int64_t row, int64_t rows,
                       int64_t column, int64_t end) {
    alignas(64) float sums[stripe_rows * pair_columns];
    const MatrixUnit unit(true);
    const int64_t block = chunks_of(call) * tile_cells;
    const int32_t* matrix = reinterpret_cast<const int32_t*>(call.matrix);
    for (; column < end; column += pair_columns) {
        const Tiles right{matrix + column / 16 * block, tile_cells, block, 16};
        for (int64_t r = 0; r < rows; r += stripe_rows) {
            const Tiles stripe{left + (row + r) / 16 * block, tile_cells, block, 16};
            multiply_tiles<1>(rows - r > 16, call.columns - column > 16, stripe, right, sums,
                              pair_columns, chunks_of(call), false);
            write_panel(call, sums, pair_columns, row + r, smaller(stripe_rows, rows - r), column);
        }
    }
}
#endif

size_t bytes(const PreparedCall& call) {
    if (!call.pairs)
        return (size_t)(round_up(call.columns, panel_columns) * call.terms) * sizeof(float);
#if defined(HEADLOOM_HAS_PAIRS)
    return (size_t)((call.columns + 15) / 16 * chunks_of(call) * tile_cells) * sizeof(int32_t);
#else
    return 0;
#endif
}

bool prepare(const PreparedCall& call, int64_t task) {
    const int64_t first = task * prepared_columns;
    const int64_t end = smaller(first + prepared_columns, call.columns);
    const Tensor weight{call.weight, 0, 0, call.terms};
    if (!call.pairs) {
        float* matrix = reinterpret_cast<float*>(call.matrix) + first * call.terms;
        pack_panels(weight, false, 0, 0, first, end, call.terms, matrix);
        return true;
    }
#if defined(HEADLOOM_HAS_PAIRS)
    int32_t* matrix =
        reinterpret_cast<int32_t*>(call.matrix) + first / 16 * chunks_of(call) * tile_cells;
    return pack_right_turned<1>(weight, false, 0, 0, first, round_up(end, 16), end, call.terms,
                                matrix);
#else
    return false;
#endif
}

size_t left_bytes(const PreparedCall& call) {
#if defined(HEADLOOM_HAS_PAIRS)
    if (call.pairs)
        return (size_t)(round_up(call.rows, 16) / 16 * chunks_of(call) * tile_cells) *
               sizeof(int32_t);
#endif
    (void)call;
    return 0;
}

bool prepare_rows(const PreparedCall& call, int64_t task, char* left) {
#if defined(HEADLOOM_HAS_PAIRS)
    const int64_t first = task * prepared_rows;
    const int64_t rows = smaller(prepared_rows, call.rows - first);
    const Tensor input{call.input, 0, 0, call.input_row};
    int32_t* tiles = reinterpret_cast<int32_t*>(left) + first / 16 * chunks_of(call) * tile_cells;
    return pack_left<1>(input, false, 0, 0, first, rows, round_up(rows, 16), call.terms, 1.0f,
                        tiles);
#else
    (void)call, (void)task, (void)left;
    return false;
#endif
}

void multiply(const PreparedCall& call, int64_t rows_task, int64_t columns_task, const char* left) {
    const SmallNumbersAreZero small_numbers_are_zero{};
    const int64_t row = rows_task * prepared_rows, column = columns_task * prepared_columns;
    const int64_t rows = smaller(prepared_rows, call.rows - row);
    const int64_t end = smaller(column + prepared_columns, call.columns);
#if defined(HEADLOOM_HAS_PAIRS)
    if (call.pairs) {
        multiply_as_pairs(call, reinterpret_cast<const int32_t*>(left), row, rows, column, end);
        return;
    }
#endif
    (void)left;
    multiply_floats(call, row, rows, column, end);
}

}  // namespace

extern const PreparedKernels prepared_kernels;
const PreparedKernels prepared_kernels = {bytes, prepare, left_bytes, prepare_rows, multiply};

}  // namespace HEADLOOM_INSTRUCTION_SET
}  // namespace headloom
