// What one call of attention over the neighbours of a graph is asked, as plain data; and
// one call on all its threads.
//
// Query i, a target, looks at its neighbours j, the sources, along edges j -> i. Tensors of nodes
// hold all heads of a node together, (nodes, heads, depth), so that one read fetches a neighbour.
// Edges stand twice: row by row of the targets (their places), and column by column of the sources.
#pragma once

#include <cstddef>
#include <cstdint>

namespace headloom {

// How a target and a source match.
enum class NeighbourScore : int64_t {
    additive,  // LeakyReLU(a_i + b_j + e_ij): a term of either node; GAT
    vector,    // a . LeakyReLU(q_i + k_j) + e_ij; GATv2
    dot,       // scale * q_i . k_j + e_ij
};

struct NeighbourCall {
    int64_t targets = 0, sources = 0, edges_count = 0, heads = 0, depth = 0, value_depth = 0;
    const int64_t* row_starts = nullptr;     // (targets + 1): where each row's places begin
    const int32_t* columns = nullptr;        // (edges): the source of each place
    const int32_t* edges = nullptr;          // (edges): the caller's number of each place's edge
    const int64_t* column_starts = nullptr;  // (sources + 1)
    const int32_t* rows = nullptr;           // (edges): column by column, the targets
    const int32_t* places = nullptr;         // (edges): column by column, the places

    int64_t score = 0;  // a NeighbourScore
    float slope = 0.2f, scale = 1.0f;
    const float* target_terms = nullptr;  // a, (targets, heads)
    const float* source_terms = nullptr;  // b, (sources, heads)
    const float* queries = nullptr;       // (targets, heads, depth)
    const float* keys = nullptr;          // (sources, heads, depth)
    const float* values = nullptr;        // (sources, heads, value_depth)
    const float* vector = nullptr;        // a of NeighbourScore::vector, (heads, depth)
    const float* edge_terms = nullptr;    // (edges, heads), by the caller's numbers
    const uint8_t* kept = nullptr;        // (edges, heads), by place: weights that dropout leaves
    float kept_factor = 1.0f;             // what those are multiplied by

    // Results. A weight is e^(score - shift) * inverse, which is exact however large scores are.
    float* output = nullptr;   // (targets, heads, value_depth)
    float* shift = nullptr;    // (targets, heads): the largest score; 0 where there is none
    float* inverse = nullptr;  // (targets, heads): 1 / sum of e^(score - shift); 0 where none
    float* scores = nullptr;   // (edges, heads), by place; nullptr where they are not asked for
};

struct NeighbourGradients {
    const float* by_output = nullptr;  // (targets, heads, value_depth)
    int64_t pieces = 1;                // tasks that the sources are cut into
    float* state = nullptr;            // room, (targets, 4, heads)
    // Results, each as the call's; the last is added up over the pieces by the caller.
    float* scores = nullptr;        // (edges, heads), by place: gradients by what edge_terms add to
    float* target_terms = nullptr;  // nullptr: not asked for, or not of this score
    float* source_terms = nullptr;
    float* queries = nullptr;
    float* keys = nullptr;  // where it is `values`, both are added up there
    float* values = nullptr;
    float* vector = nullptr;  // (pieces, heads, depth)
};

// The kernels of one instruction set. Each serves the rows, or columns, of one piece.
struct NeighbourKernels {
    size_t (*workspace)(const NeighbourCall& call);
    void (*forward)(const NeighbourCall& call, int64_t piece, int64_t pieces, char* workspace);
    // What the backward pass reads of each target, together.
    void (*gather_state)(const NeighbourCall& call, const NeighbourGradients& to, int64_t piece,
                         int64_t pieces);
    // Column by column: gradients of sources, and of scores.
    void (*backward_sources)(const NeighbourCall& call, const NeighbourGradients& to, int64_t piece,
                             char* workspace);
    // Row by row: gradients of targets, from those of scores.
    void (*backward_targets)(const NeighbourCall& call, const NeighbourGradients& to, int64_t piece,
                             int64_t pieces, char* workspace);
};

struct Kernels;

void neighbours_forward(const Kernels& kernels, const NeighbourCall& call, int threads);
void neighbours_backward(const Kernels& kernels, const NeighbourCall& call,
                         const NeighbourGradients& gradients, int threads);

}  // namespace headloom
