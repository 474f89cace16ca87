// Edges of one node, some at a time, and their scores.
#pragma once

#include "heads.h"
#include "neighbours.h"
#include "workspace.h"

namespace headloom {
namespace HEADLOOM_INSTRUCTION_SET {

// Edges that are worked on together: what is read of them stays in the cache.
constexpr int64_t block_edges = 64;
// Neighbours are read this many edges ahead, since nobody can foresee where they lie in memory.
constexpr int64_t edges_ahead = 6;
constexpr int64_t most_lines_ahead = 16;

struct EdgeBlock {
    int64_t count = 0;
    int64_t targets[block_edges], sources[block_edges], places[block_edges];
};

inline void prefetch_row(const float* row, int64_t columns) {
    const int64_t lines = smaller((columns + 15) / 16, most_lines_ahead);
    for (int64_t line = 0; line < lines; ++line) __builtin_prefetch(row + 16 * line);
}

// The nodes of one piece of several, about equal in edges.
inline Range nodes_of_piece(const int64_t* starts, int64_t nodes, int64_t piece, int64_t pieces) {
    const auto first_from = [&](int64_t work) {
        int64_t low = 0, high = nodes;
        while (low < high) {
            const int64_t middle = (low + high) / 2;
            if (starts[middle] + middle < work)
                low = middle + 1;
            else
                high = middle;
        }
        return low;
    };
    const int64_t all = starts[nodes] + nodes;
    return {first_from(all * piece / pieces),
            piece + 1 == pieces ? nodes : first_from(all * (piece + 1) / pieces)};
}

// Scratch memory of one thread, and the scores of a block. Score and depth are known when this is
// compiled; depth 0 stands for any.
template <NeighbourScore score, int depth>
struct Neighbourhood {
    using Score = Columns<depth>;
    using Vector = typename Score::Vector;

    Neighbourhood(const NeighbourCall& call, char* memory)
        : call(call), layout(call.heads), space(memory) {
        const int64_t numbers = block_edges * layout.padded + lanes;
        scores = space.take<float>(numbers);
        weights = space.take<float>(numbers);
        by_weight = space.take<float>(numbers);
        shifts = space.take<float>(numbers);
        inverses = space.take<float>(numbers);
        deltas = space.take<float>(numbers);
        const int64_t pattern = layout.vectors * lanes;
        largest = space.take<float>(pattern);
        sums = space.take<float>(pattern);
        factors = space.take<float>(pattern);
        by_head = space.take<float>(pattern);
        value_stride = Score::padded(call.value_depth);
        stride = Score::padded(call.depth);
        value_row = space.take<float>(call.heads * value_stride);
        key_row = space.take<float>(call.heads * stride);
        vector_row = space.take<float>(call.heads * stride);
    }

    // Whole vectors of the numbers of a block; a last one, past the edges, gets `rest`.
    void fill_rest(float* numbers, int64_t edges, float rest) const {
        const int64_t end = layout.filled(edges) * lanes;
        for (int64_t place = edges * layout.padded; place < end; ++place) numbers[place] = rest;
    }

    int64_t edge_at(int64_t place) const { return call.edges ? call.edges[place] : place; }

    const float* target_row(int64_t target) const {
        return call.queries + target * call.heads * call.depth;
    }

    const float* source_row(int64_t source) const {
        return call.keys + source * call.heads * call.depth;
    }

    // Scores of a block before the LeakyReLU of additive scores. target_terms: where a term of the
    // target stands, so many numbers from one target to the next.
    void raw_scores(const EdgeBlock& block, const float* target_terms, int64_t target_stride) {
        for (int64_t n = 0; n < block.count; ++n) {
            float* to = scores + n * layout.padded;
            const float* terms =
                call.edge_terms ? call.edge_terms + edge_at(block.places[n]) * call.heads : nullptr;
            if constexpr (score == NeighbourScore::additive) {
                const float* a = target_terms + block.targets[n] * target_stride;
                const float* b = call.source_terms + block.sources[n] * call.heads;
                for (int64_t head = 0; head < call.heads; head += lanes) {
                    const int64_t left = call.heads - head;
                    Floats sum = load_part(a + head, left) + load_part(b + head, left);
                    if (terms) sum += load_part(terms + head, left);
                    store(to + head, sum);
                }
            } else {
                const float* target = target_row(block.targets[n]);
                const float* source = source_row(block.sources[n]);
                for (int64_t head = 0; head < call.heads; ++head) {
                    const float product = head_score(target, source, head);
                    to[head] = terms ? product + terms[head] : product;
                }
            }
        }
    }

    float head_score(const float* target, const float* source, int64_t head) const {
        const float* q = target + head * call.depth;
        const float* k = source + head * call.depth;
        Vector products{};
        for (int64_t v = 0; v < Score::vectors(call.depth); ++v) {
            const Vector x = Score::load(q, v, call.depth), y = Score::load(k, v, call.depth);
            if constexpr (score == NeighbourScore::dot)
                products += x * y;
            else
                products += Score::load(call.vector + head * call.depth, v, call.depth) *
                            leaky<Vector>(x + y, call.slope);
        }
        const float result = Score::total(products);
        return score == NeighbourScore::dot ? result * call.scale : result;
    }

    Floats finished(Floats raw) const {
        return score == NeighbourScore::additive ? leaky<Floats>(raw, call.slope) : raw;
    }

    // What dropout leaves of the weights of an edge, or of gradients by them.
    void drop(float* numbers, int64_t place) const {
        const uint8_t* kept = call.kept + place * call.heads;
        for (int64_t head = 0; head < call.heads; ++head)
            numbers[head] = kept[head] ? numbers[head] * call.kept_factor : 0.0f;
    }

    // row += by_head * x, for every head of a node's columns.
    void add_row(float* row, const float* factor, const float* x) const {
        for (int64_t head = 0; head < call.heads; ++head) {
            const float w = factor[head];
            for (int64_t v = 0; v < Score::vectors(call.value_depth); ++v) {
                float* to = row + head * value_stride;
                const Vector y = Score::load(x + head * call.value_depth, v, call.value_depth);
                Score::store(to, v, Score::load(to, v, value_stride) + y * w, value_stride);
            }
        }
    }

    // A row of scratch memory as a node's heads.
    static void write_row(const float* row, int64_t heads, int64_t columns, int64_t stride,
                          float* to) {
        for (int64_t head = 0; head < heads; ++head)
            for (int64_t c = 0; c < columns; ++c) to[head * columns + c] = row[head * stride + c];
    }

    static void clear(float* row, int64_t numbers) {
        for (int64_t n = 0; n < numbers; ++n) row[n] = 0.0f;
    }

    const NeighbourCall& call;
    const HeadLayout layout;
    Workspace space;
    // Numbers of every edge and head of a block.
    float *scores, *weights, *by_weight, *shifts, *inverses, *deltas;
    // Patterns.
    float *largest, *sums, *factors, *by_head;
    // Rows of a node: all heads, each `stride` or `value_stride` long.
    int64_t stride, value_stride;
    float *value_row, *key_row, *vector_row;
};

}  // namespace HEADLOOM_INSTRUCTION_SET
}  // namespace headloom
