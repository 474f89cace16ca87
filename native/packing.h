// Laying queries, keys and values out as the products read them.
#pragma once

#include "choose.h"
#include "multiply.h"
#include "workspace.h"

namespace headloom {
namespace HEADLOOM_INSTRUCTION_SET {

inline float from_bfloat16(uint16_t bits) {
    const uint32_t wide = (uint32_t)bits << 16;
    float x;
    std::memcpy(&x, &wide, 4);
    return x;
}

// To the nearest bfloat16, ties to even.
inline uint16_t to_bfloat16(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    if (x != x) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Copy a row of `columns` elements as float32, times a factor.
inline void copy_row(const Tensor& tensor, bool bfloat16, int64_t b, int64_t h, int64_t i,
                     int64_t columns, float factor, float* to) {
    if (bfloat16) {
        const uint16_t* from = tensor.at<uint16_t>(b, h, i);
        for (int64_t d = 0; d < columns; ++d) to[d] = from_bfloat16(from[d]) * factor;
    } else {
        const float* from = tensor.at<float>(b, h, i);
        int64_t d = 0;
        for (; d + lanes <= columns; d += lanes) store(to + d, load(from + d) * factor);
        for (; d < columns; ++d) to[d] = from[d] * factor;
    }
}

// `lanes` numbers from column `first` of a row on.
inline Floats load_row(const Tensor& tensor, bool bfloat16, int64_t b, int64_t h, int64_t i,
                       int64_t first) {
    if (!bfloat16) return load(tensor.at<float>(b, h, i) + first);
    const uint16_t* from = tensor.at<uint16_t>(b, h, i) + first;
    Integers wide;
    for (int lane = 0; lane < lanes; ++lane) wide[lane] = (int32_t)((uint32_t)from[lane] << 16);
    return (Floats)wide;
}

inline float element(const Tensor& tensor, bool bfloat16, int64_t b, int64_t h, int64_t i,
                     int64_t column) {
    return bfloat16 ? from_bfloat16(tensor.at<uint16_t>(b, h, i)[column])
                    : tensor.at<float>(b, h, i)[column];
}

// The length of a row as a vector, but for what is left of its last vector of lanes; 1 where that
// is no number to scale by.
inline float rough_norm(const Tensor& tensor, bool bfloat16, int64_t b, int64_t h, int64_t i,
                        int64_t columns) {
    Floats squares{};
    for (int64_t d = 0; d + lanes <= columns; d += lanes) {
        const Floats x = load_row(tensor, bfloat16, b, h, i, d);
        squares += x * x;
    }
    const float norm = __builtin_sqrtf(sum(squares));
    return norm > 0 && norm < infinity ? norm : 1.0f;
}

// Rows first .. first + panel_columns of a tensor, turned: panel[d * panel_columns + j] is
// element d of row first + j; rows from `count` on are zero.
inline void pack_panel(const Tensor& tensor, bool bfloat16, int64_t b, int64_t h, int64_t first,
                       int64_t count, int64_t depth, float* panel) {
    for (int64_t half = 0; half < panel_columns; half += lanes) {
        const int64_t start = first + half;
        const int64_t rows = smaller(larger(count - start, 0), lanes);
        int64_t d = 0;
        for (; d + lanes <= depth; d += lanes) {
            Floats square[lanes];
#pragma GCC unroll 16
            for (int row = 0; row < lanes; ++row)
                square[row] =
                    row < rows ? load_row(tensor, bfloat16, b, h, start + row, d) : Floats{};
            transpose(square);
#pragma GCC unroll 16
            for (int row = 0; row < lanes; ++row)
                store(panel + (d + row) * panel_columns + half, square[row]);
        }
        for (int64_t rest = d; rest < depth; ++rest)
            store(panel + rest * panel_columns + half, Floats{});
        for (int64_t row = 0; row < rows; ++row) {
            float* to = panel + half + row;
            if (bfloat16) {
                const uint16_t* from = tensor.at<uint16_t>(b, h, start + row);
                for (int64_t rest = d; rest < depth; ++rest)
                    to[rest * panel_columns] = from_bfloat16(from[rest]);
            } else {
                const float* from = tensor.at<float>(b, h, start + row);
                for (int64_t rest = d; rest < depth; ++rest) to[rest * panel_columns] = from[rest];
            }
        }
    }
}

// Rows `first` to `end` of one head in panels; `first` is a multiple of panel_columns. Element d of
// row first + j lies at (j / panel_columns * depth + d) * panel_columns + j % panel_columns.
inline void pack_panels(const Tensor& tensor, bool bfloat16, int64_t b, int64_t h, int64_t first,
                        int64_t end, int64_t depth, float* packed) {
    for (int64_t j = first; j < end; j += panel_columns)
        pack_panel(tensor, bfloat16, b, h, j, end, depth, packed + (j - first) * depth);
}

// Values in rows of whole vectors, the columns past value_depth zero.
inline void pack_rows(const Tensor& tensor, bool bfloat16, int64_t b, int64_t h, int64_t first,
                      int64_t end, int64_t columns, float* packed) {
    const int64_t width = round_up(columns, lanes);
    for (int64_t j = first; j < end; ++j) {
        float* row = packed + (j - first) * width;
        copy_row(tensor, bfloat16, b, h, j, columns, 1.0f, row);
        for (int64_t d = columns; d < width; ++d) row[d] = 0;
    }
}

// The keys and values of one head as the products read them, from key `first` on.
struct PackedKeys {
    float* panels;
    float* value_space;   // for values that cannot be read in place
    const float* values;  // row of key `first`
    int64_t value_row;
    int64_t first;
    bool as_pairs;               // packed for products of pairs instead
    const int32_t* key_tiles;    // (keys / 16, depth / 32, splits)
    const int32_t* value_tiles;  // (keys / 32, value_depth / 16, splits)

    const float* panel(int64_t key, int64_t depth) const { return panels + (key - first) * depth; }
    const float* value(int64_t key) const { return values + (key - first) * value_row; }
};

inline PackedKeys lay_out_keys(const Call& call, Workspace& space) {
    PackedKeys keys{};
    keys.panels =
        space.take<float>((round_up(call.keys_count, panel_columns) + panel_columns) * call.depth);
    if (!values_in_place(call))
        keys.value_space = space.take<float>((call.keys_count + panel_columns) *
                                             round_up(call.value_depth, lanes));
    return keys;
}

// Pack the values of a range, or find them where they are.
inline void pack_values(const Call& call, int64_t b, int64_t kv_head, Range range,
                        PackedKeys& keys) {
    keys.first = range.first / panel_columns * panel_columns;
    if (values_in_place(call)) {
        keys.value_row = call.values.row;
        keys.values = call.values.at<float>(b, kv_head, keys.first);
    } else {
        keys.value_row = round_up(call.value_depth, lanes);
        keys.values = keys.value_space;
        pack_rows(call.values, call.bfloat16, b, kv_head, keys.first, range.end, call.value_depth,
                  keys.value_space);
    }
}

// Pack the keys and values of a range.
inline void pack_keys(const Call& call, int64_t b, int64_t kv_head, Range range, PackedKeys& keys) {
    pack_values(call, b, kv_head, range, keys);
    pack_panels(call.keys, call.bfloat16, b, kv_head, keys.first, range.end, call.depth,
                keys.panels);
}

}  // namespace HEADLOOM_INSTRUCTION_SET
}  // namespace headloom
