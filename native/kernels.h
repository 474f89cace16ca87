// The kernels of one instruction set, and the choice among those this processor can run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "call.h"

namespace weft {

// Every kernel works on a workspace of its own and touches no other task's results.
struct Kernels {
    const char* instruction_set;
    int64_t block_queries;  // queries that one forward task streams the keys past

    size_t (*forward_workspace)(const Call& call, bool pack_within);
    // Pack the keys and values of one key/value head, from `first` to `end`, into the shared
    // buffers of the call.
    void (*pack)(const Call& call, int64_t batch, int64_t kv_head, int64_t first, int64_t end);
    // Sizes of the shared buffers for one key/value head, in floats; 0 where none is needed.
    int64_t (*packed_keys_size)(const Call& call);
    int64_t (*packed_values_size)(const Call& call);
    // One block of queries against shared packed keys and values.
    void (*forward_block)(const Call& call, int64_t batch, int64_t head, int64_t first_query,
                          char* workspace);
    // All queries that share one key/value head, packing its keys and values within.
    void (*forward_head)(const Call& call, int64_t batch, int64_t kv_head, char* workspace);
};

// Instruction sets that this build has and this processor runs, widest first.
std::vector<std::string> instruction_sets();

// The kernels of an instruction set by name, of the widest for an empty name; nullptr where this
// machine has none of that name.
const Kernels* find_kernels(const std::string& instruction_set);

}  // namespace weft
