// What is read next is asked for while something else is computed: values while queries meet keys,
// the next keys while values are weighed, so that memory is never idle.
#pragma once

#include "visible.h"

namespace headloom {
namespace HEADLOOM_INSTRUCTION_SET {

constexpr int64_t line_bytes = 64;

// One row waits for memory most of its time: asking is worth its own time only where no cache holds
// the keys and values of a call.
constexpr int64_t bytes_past_caches = int64_t{1} << 26;

inline bool asks_ahead(const Call& call, int rows) {
    const int64_t numbers =
        call.batch * call.kv_heads * call.keys_count * (call.depth + call.value_depth);
    return rows > 1 || numbers * (call.bfloat16 ? 2 : 4) >= bytes_past_caches;
}

// Rows that will be read, and how far they have been asked for: line by line, in the order in which
// they lie, which is what a processor's own prefetching goes on from.
class Ahead {
public:
    Ahead() = default;
    Ahead(const Tensor& tensor, bool bfloat16, int64_t b, int64_t h, int64_t first, int64_t columns)
        : row_(bfloat16 ? (const char*)tensor.at<uint16_t>(b, h, first)
                        : (const char*)tensor.at<float>(b, h, first)),
          step_(tensor.row * (bfloat16 ? 2 : 4)),
          bytes_(columns * (bfloat16 ? 2 : 4)) {}

    // The lines of so many rows, divided among `parts`: for a kernel that does the rest later.
    int lines(int64_t rows, int64_t parts = 1) const {
        return (int)((rows * ((bytes_ + line_bytes - 1) / line_bytes) + parts - 1) / parts);
    }
    // The next lines to the second cache: the first has no room for a tile.
    void fetch(int lines) {
        for (int n = 0; n < lines; ++n) {
            __builtin_prefetch(row_ + at_, 0, 2);
            at_ += line_bytes;
            if (at_ >= bytes_) {
                at_ = 0;
                row_ += step_;
            }
        }
    }

private:
    const char* row_ = nullptr;
    int64_t step_ = 0, bytes_ = 0, at_ = 0;
};

}  // namespace HEADLOOM_INSTRUCTION_SET
}  // namespace headloom
