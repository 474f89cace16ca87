// Which keys a query may look at, as far as that is one range of keys.
#pragma once

#include "call.h"
#include "vector.h"

namespace weft {
namespace WEFT_INSTRUCTION_SET {

struct Range {
    int64_t first = 0, end = 0;  // first <= key < end; empty where end <= first
    bool empty() const { return end <= first; }
};

inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

inline Range intersection(Range a, Range b) {
    return {larger(a.first, b.first), smaller(a.end, b.end)};
}

// The smallest range that holds both.
inline Range hull(Range a, Range b) {
    if (a.empty()) return b;
    if (b.empty()) return a;
    return {smaller(a.first, b.first), larger(a.end, b.end)};
}

// Band, padding and packed sequences; a mask given cell by cell is read later, in the tile.
inline Range visible_keys(const Call& call, int64_t batch, int64_t query) {
    Range keys{0, call.keys_count};
    if (call.banded) keys = intersection(keys, {query + call.left, query + call.right + 1});
    if (call.end_key) keys = intersection(keys, {call.first_key[batch], call.end_key[batch]});
    if (call.row_end) {
        const int64_t row = batch * call.row_range_batch + query;
        keys = intersection(keys, {call.row_first[row], call.row_end[row]});
    }
    if (keys.empty()) return {};
    return keys;
}

// Whether all queries of a sequence see the same range.
inline bool one_range_for_all(const Call& call) { return !call.banded && !call.row_end; }

}  // namespace WEFT_INSTRUCTION_SET
}  // namespace weft
