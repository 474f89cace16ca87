// Calls of few queries, as in a step of decoding: what their kernels do, and one call on all its
// threads. All a call costs is reading its keys and values once, so the keys are cut into pieces
// that threads take; the query heads that share keys meet a piece together.
#pragma once

#include <cstddef>
#include <cstdint>

#include "call.h"

namespace headloom {

struct Kernels;

// How a call is cut, by its shapes alone: results do not depend on the number of threads. A group
// is some query heads that share keys, with all their queries; 0 pieces: not a call of few queries.
struct FewPlan {
    int64_t pieces = 0, piece_keys = 0;
    int64_t heads_of_group = 0, groups = 0;  // groups of the whole call
    size_t workspace = 0, part = 0;          // bytes that a piece works in, and that it leaves
};

struct FewKernels {
    FewPlan (*plan)(const Call& call);
    // One piece of the keys of a group. With one piece in all the rows are finished; else `part`
    // receives what they come to so far.
    void (*piece)(const Call& call, const FewPlan& plan, int64_t group, int64_t piece,
                  char* workspace, char* part);
    // Finish the rows of a group whose parts follow one another.
    void (*join)(const Call& call, const FewPlan& plan, int64_t group, char* workspace,
                 const char* parts);
};

// Fill the results of a call. Returns false, with nothing done, where it is not one of few queries.
bool forward_few(const Kernels& kernels, const Call& call, int threads);

}  // namespace headloom
