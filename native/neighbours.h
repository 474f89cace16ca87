// Running the kernels of attention over neighbours on several threads, and sorting edges.
#pragma once

#include <cstdint>

#include "kernels.h"
#include "neighbours_call.h"

namespace headloom {

void neighbours_forward(const Kernels& kernels, const NeighbourCall& call, int threads);
void neighbours_backward(const Kernels& kernels, const NeighbourCall& call,
                         const NeighbourGradients& gradients, int threads);

// A stable sort of edges by one of their ends: `starts`, (nodes + 1), says where each node's edges
// begin in `order`, (count), which holds their numbers. Every node is 0 to nodes - 1.
template <typename Node>
void group_edges(const Node* ends, int64_t count, int64_t nodes, int64_t* starts, int32_t* order) {
    for (int64_t node = 0; node <= nodes; ++node) starts[node] = 0;
    for (int64_t edge = 0; edge < count; ++edge) ++starts[ends[edge] + 1];
    for (int64_t node = 0; node < nodes; ++node) starts[node + 1] += starts[node];
    // Each start moves on to the next one's while its node's edges are dealt out, and back again.
    for (int64_t edge = 0; edge < count; ++edge)
        order[starts[ends[edge]]++] = static_cast<int32_t>(edge);
    for (int64_t node = nodes; node > 0; --node) starts[node] = starts[node - 1];
    starts[0] = 0;
}

}  // namespace headloom
