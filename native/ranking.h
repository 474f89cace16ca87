// Ordering many edges at once. Compiled once, for every processor.
#pragma once

#include <cstdint>

namespace headloom {

// The `kept` strongest of `number` candidates, strongest first; of equal scores the earlier
// candidate first. Candidates come in the order of their keys.
void sort_strongest(const float* candidate_scores, const int32_t* candidate_keys, int64_t number,
                    int64_t kept, float* scores, int32_t* keys);

}  // namespace headloom
