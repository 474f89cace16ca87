// The kernels, compiled once for every instruction set: the build defines HEADLOOM_INSTRUCTION_SET
// and gives the compiler the matching flags. Nothing here may use a function that the linker
// could share with code for other processors (no standard library templates).
#include "kernels.h"

#include "backward_piece.h"
#include "forward.h"
#include "forward_pairs.h"
#include "forward_short.h"

namespace headloom {
namespace HEADLOOM_NEIGHBOURS {
extern const NeighbourKernels neighbour_kernels;
}
namespace HEADLOOM_INSTRUCTION_SET {

static int64_t block_size(const Call& call) {
    return is_short(call) ? short_queries : queries_of_block(call);
}

static size_t forward_workspace(const Call& call) {
    Workspace space(nullptr);
    if (is_short(call)) {
        lay_out_short(call, space);
        return space.used();
    }
    lay_out_block(call, space);
    lay_out_keys(call, space);
#if defined(HEADLOOM_HAS_PAIRS)
    if (uses_pairs(call)) lay_out_pairs(call, space);
#endif
    return space.used();
}

static void forward(const Call& call, int64_t b, int64_t kv_head, int64_t first_block,
                    int64_t end_block, char* workspace) {
    const SmallNumbersAreZero small_numbers_are_zero{};
    Workspace space(workspace);
    if (is_short(call)) {
        const ShortSpace columns = lay_out_short(call, space);
        const int64_t heads = call.heads / call.kv_heads;
        const int64_t of_head = (call.queries_count + short_queries - 1) / short_queries;
        for (int64_t n = first_block; n < end_block; ++n) {
            const int64_t first = n % of_head * short_queries;
            forward_short(call, b, kv_head * heads + n / of_head, kv_head, first,
                          smaller(first + short_queries, call.queries_count), columns);
        }
        return;
    }
    Block* block = lay_out_block(call, space);
    PackedKeys keys = lay_out_keys(call, space);
    const int64_t size = queries_of_block(call), group = call.heads / call.kv_heads;
    const int64_t blocks = (call.queries_count + size - 1) / size;
    Range seen = visible_keys(call, b, 0);
    for (int64_t n = first_block; n < end_block && !one_range_for_all(call); ++n) {
        const int64_t first = n % blocks * size;
        const int64_t end = smaller(first + size, call.queries_count);
        if (n == first_block) seen = Range{};
        for (int64_t query = first; query < end; ++query)
            seen = hull(seen, visible_keys(call, b, query));
    }
    const int64_t share_size = 3 * call.share_row,
                  task = first_block / larger(call.blocks_of_task, 1);
    keys.as_pairs = false;
    bool packed_floats = false;
#if defined(HEADLOOM_HAS_PAIRS)
    MatrixUnit unit(uses_pairs(call));
    if (uses_pairs(call)) {
        const PairSpace pairs = lay_out_pairs(call, space);
        keys.as_pairs = call.bfloat16 ? pack_pairs<1>(call, b, kv_head, seen, pairs, keys)
                                      : pack_pairs<3>(call, b, kv_head, seen, pairs, keys);
    }
#endif
    // The last queries first: under a causal mask they see the most keys, and the short blocks
    // at the end even out what the threads have left.
    for (int64_t n = end_block - 1; n >= first_block; --n) {
        const int64_t head = kv_head * group + n / blocks, query = n % blocks * size;
        if (call.received) {
            const int64_t first_task = n / blocks * blocks / call.blocks_of_task;
            block->waiting.share =
                call.shares +
                ((b * call.heads + head) * call.shares_of_head + (task - first_task)) * share_size;
            if (n == end_block - 1 || n % blocks == blocks - 1)
                std::memset(block->waiting.share, 0, share_size * sizeof(float));
        }
#if defined(HEADLOOM_HAS_PAIRS)
        if (keys.as_pairs &&
            (call.bfloat16 ? forward_block_pairs<1>(call, *block, b, head, query, keys)
                           : forward_block_pairs<3>(call, *block, b, head, query, keys)))
            continue;
#endif
        // Where no other block will use them, keys are packed a tile at a time, and never leave the
        // cache.
        const bool by_tile = end_block - first_block == 1;
        if (!by_tile && !packed_floats) pack_keys(call, b, kv_head, seen, keys);
        packed_floats = true;
        forward_block(call, *block, b, head, query, keys, by_tile ? kv_head : -1);
    }
}

static size_t backward_workspace(const Call& call, const Gradients& gradients) {
    Workspace space(nullptr);
    lay_out_backward(call, gradients, space);
#if defined(__AMX_BF16__)
    if (backward_uses_pairs(call)) lay_out_backward_pairs(call, space);
#endif
    return space.used();
}

static void backward(const Call& call, const Gradients& gradients, int64_t b, int64_t kv_head,
                     int64_t piece, char* workspace) {
    const SmallNumbersAreZero small_numbers_are_zero{};
    Workspace space(workspace);
    backward_piece(call, gradients, b, kv_head, piece, space);
}

#define HEADLOOM_STRING(name) #name
#define HEADLOOM_NAME(name) HEADLOOM_STRING(name)

#define HEADLOOM_TABLE(Type, name) extern const Type name##_kernels;
HEADLOOM_FAMILIES(HEADLOOM_TABLE)
#undef HEADLOOM_TABLE

// Named by the instruction set's namespace, so that every build of this file has its own.
extern const Kernels kernels;
const Kernels kernels = {HEADLOOM_NAME(HEADLOOM_INSTRUCTION_SET),
                         block_size,
                         forward_workspace,
                         forward,
                         backward_workspace,
                         backward,
                         &HEADLOOM_NEIGHBOURS::neighbour_kernels,
#define HEADLOOM_TABLE(Type, name) &name##_kernels,
                         HEADLOOM_FAMILIES(HEADLOOM_TABLE)
#undef HEADLOOM_TABLE
};

}  // namespace HEADLOOM_INSTRUCTION_SET
}  // namespace headloom
