#include "ranking.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace headloom {

void sort_strongest(const float* candidate_scores, const int32_t* candidate_keys, int64_t number,
                    int64_t kept, float* scores, int32_t* keys) {
    // One integer a candidate, smaller for stronger: the score's order, inverted, then the place.
    std::vector<uint64_t> order(static_cast<size_t>(number));
    for (int64_t n = 0; n < number; ++n) {
        uint32_t bits;
        const float score = candidate_scores[n] + 0.0f;  // -0 and +0 are equal
        std::memcpy(&bits, &score, 4);
        const uint32_t rising = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
        order[static_cast<size_t>(n)] = uint64_t{~rising} << 32 | static_cast<uint32_t>(n);
    }
    std::sort(order.begin(), order.end());
    for (int64_t n = 0; n < kept; ++n) {
        const auto place = static_cast<uint32_t>(order[static_cast<size_t>(n)]);
        scores[n] = candidate_scores[place];
        keys[n] = candidate_keys[place];
    }
}

}  // namespace headloom
