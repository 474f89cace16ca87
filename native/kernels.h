// The kernels of one instruction set, and the choice among those this processor can run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "call.h"
#include "few.h"
#include "gradients.h"
#include "linear.h"
#include "neighbours.h"
#include "passes.h"
#include "product.h"

namespace headloom {

// Other kernels: the types of their tables, and names; NAME_kernels.cpp defines NAME_kernels for
// each instruction set, without functions where it has none of them.
#define HEADLOOM_FAMILIES(family)                                                     \
    family(FewKernels, few) family(PassKernels, passes) family(LinearKernels, linear) \
        family(ProductKernels, product)

// Every kernel works on a workspace of its own and touches no other task's results.
struct Kernels {
    const char* instruction_set;
    // Queries that the keys stream past together.
    int64_t (*block_queries)(const Call& call);

    size_t (*forward_workspace)(const Call& call);
    // Some blocks of the queries that share one key/value head, counted head by head. Packs the
    // keys and values they see within its workspace.
    void (*forward)(const Call& call, int64_t batch, int64_t kv_head, int64_t first_block,
                    int64_t end_block, char* workspace);

    size_t (*backward_workspace)(const Call& call, const Gradients& gradients);
    // All queries of a group of heads against one piece of their keys.
    void (*backward)(const Call& call, const Gradients& gradients, int64_t batch, int64_t kv_head,
                     int64_t piece, char* workspace);

    const NeighbourKernels* neighbours;  // attention over the neighbours of a graph
#define HEADLOOM_TABLE(Type, name) const Type* name;
    HEADLOOM_FAMILIES(HEADLOOM_TABLE)
#undef HEADLOOM_TABLE
};

// Instruction sets that this build has and this processor runs, widest first.
std::vector<std::string> instruction_sets();

// Those that this build has, widest first.
std::vector<std::string> compiled_instruction_sets();

// The kernels of an instruction set by name, of the widest for an empty name; nullptr where this
// machine has none of that name.
const Kernels* find_kernels(const std::string& instruction_set);

}  // namespace headloom
