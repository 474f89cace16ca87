// Which keys a query may look at, as far as that is one range of keys.
#pragma once

#include "call.h"
#include "range.h"

namespace headloom {
namespace HEADLOOM_INSTRUCTION_SET {

// Band, padding and packed sequences; a mask given cell by cell is read later, in the tile.
inline Range visible_keys(const Call& call, int64_t batch, int64_t query) {
    Range keys{0, call.keys_count};
    if (call.banded) keys = intersection(keys, {query + call.left, query + call.right + 1});
    if (call.key_range.data)
        keys = intersection(keys, {call.key_range.at<int64_t>(0, 0, 0)[batch],
                                   call.key_range.at<int64_t>(0, 0, 1)[batch]});
    if (call.row_range.data)
        keys = intersection(keys, {call.row_range.at<int64_t>(0, 0, batch)[query],
                                   call.row_range.at<int64_t>(0, 1, batch)[query]});
    if (keys.empty()) return {};
    return keys;
}

// Whether all queries of a sequence see the same range.
inline bool one_range_for_all(const Call& call) { return !call.banded && !call.row_range.data; }

}  // namespace HEADLOOM_INSTRUCTION_SET
}  // namespace headloom
