// Ranges of keys, and whole numbers.
#pragma once

#include <cstdint>

namespace headloom {
namespace HEADLOOM_INSTRUCTION_SET {

struct Range {
    int64_t first = 0, end = 0;  // first <= key < end; empty where end <= first
    bool empty() const { return end <= first; }
};

inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

inline int64_t round_up(int64_t x, int64_t unit) { return (x + unit - 1) / unit * unit; }

inline Range intersection(Range a, Range b) {
    return {larger(a.first, b.first), smaller(a.end, b.end)};
}

// The smallest range that holds both.
inline Range hull(Range a, Range b) {
    if (a.empty()) return b;
    if (b.empty()) return a;
    return {smaller(a.first, b.first), larger(a.end, b.end)};
}

}  // namespace HEADLOOM_INSTRUCTION_SET
}  // namespace headloom
