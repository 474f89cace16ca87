// Attention over neighbours, compiled once for every instruction set; see kernels.cpp.
#include "kernels.h"
#include "neighbours_backward.h"
#include "neighbours_forward.h"

namespace headloom {
namespace HEADLOOM_INSTRUCTION_SET {

// Calls `run` with the score and the depth as types: the depths that graph models use are known to
// the compiler, any other is a number; without AVX2 (before 2013) all are, which compiles sooner.
template <NeighbourScore kind>
struct ScoreKind {
    static constexpr NeighbourScore score = kind;
};
template <int number>
struct Depth {
    static constexpr int depth = number;
};

template <typename Kind, typename Run>
static void for_depth([[maybe_unused]] const NeighbourCall& call, const Run& run) {
#if !defined(__x86_64__) || defined(__AVX2__)
    const bool same = Kind::score == NeighbourScore::additive || call.depth == call.value_depth;
    const int64_t depth = same ? call.value_depth : 0;
    if (depth == 8) return run(Kind{}, Depth<8>{});
    if (depth == 16) return run(Kind{}, Depth<16>{});
    if (depth == 32) return run(Kind{}, Depth<32>{});
    if (depth == 64) return run(Kind{}, Depth<64>{});
#endif
    run(Kind{}, Depth<0>{});
}

template <typename Run>
static void for_kind(const NeighbourCall& call, const Run& run) {
    switch (static_cast<NeighbourScore>(call.score)) {
        case NeighbourScore::additive:
            return for_depth<ScoreKind<NeighbourScore::additive>>(call, run);
        case NeighbourScore::vector:
            return for_depth<ScoreKind<NeighbourScore::vector>>(call, run);
        case NeighbourScore::dot:
            return for_depth<ScoreKind<NeighbourScore::dot>>(call, run);
    }
}

static size_t workspace(const NeighbourCall& call) {
    size_t bytes = 0;
    for_kind(call, [&](auto kind, auto depth) {
        bytes = Neighbourhood<kind.score, depth.depth>(call, nullptr).space.used();
    });
    return bytes;
}

static void forward(const NeighbourCall& call, int64_t piece, int64_t pieces, char* memory) {
    const SmallNumbersAreZero small_numbers_are_zero{};
    const Range range = nodes_of_piece(call.row_starts, call.targets, piece, pieces);
    for_kind(call, [&](auto kind, auto depth) {
        NeighboursForward<kind.score, depth.depth> rows(call, memory);
        for (int64_t target = range.first; target < range.end; ++target) rows.row(target);
    });
}

static void gather(const NeighbourCall& call, const NeighbourGradients& to, int64_t piece,
                   int64_t pieces) {
    const SmallNumbersAreZero small_numbers_are_zero{};
    const Range range = nodes_of_piece(call.row_starts, call.targets, piece, pieces);
    for (int64_t target = range.first; target < range.end; ++target) gather_state(call, to, target);
}

static void backward_sources(const NeighbourCall& call, const NeighbourGradients& to, int64_t piece,
                             char* memory) {
    const SmallNumbersAreZero small_numbers_are_zero{};
    for_kind(call, [&](auto kind, auto depth) {
        NeighboursBackward<kind.score, depth.depth>(call, to, memory).columns(piece);
    });
}

static void backward_targets(const NeighbourCall& call, const NeighbourGradients& to, int64_t piece,
                             int64_t pieces, char* memory) {
    const SmallNumbersAreZero small_numbers_are_zero{};
    const Range range = nodes_of_piece(call.row_starts, call.targets, piece, pieces);
    for_kind(call, [&](auto kind, auto depth) {
        NeighboursBackward<kind.score, depth.depth> rows(call, to, memory);
        for (int64_t target = range.first; target < range.end; ++target) rows.row(target);
    });
}

extern const NeighbourKernels neighbour_kernels;
const NeighbourKernels neighbour_kernels = {
    workspace, forward, gather, backward_sources, backward_targets,
};

}  // namespace HEADLOOM_INSTRUCTION_SET
}  // namespace headloom
