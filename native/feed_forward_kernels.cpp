// The two maps of a feed-forward layer, compiled once for every instruction set; see kernels.cpp.
// Those that do not multiply pairs of bfloat16 leave them to torch.
#include "has_pairs.h"

#if defined(HEADLOOM_HAS_PAIRS)

#include "feed_forward_block.h"
#include "kernels.h"

namespace headloom {
namespace HEADLOOM_INSTRUCTION_SET {

static FeedForwardSpace space(const FeedForwardCall& call, bool backward) {
    const FeedForwardBlock block(call, backward, nullptr, nullptr);
    return {block.shared.used(), block.worker.used()};
}

static bool pack_weights(const FeedForwardCall& call, bool backward, int64_t which, char* shared) {
    const SmallNumbersAreZero small_numbers_are_zero{};
    return FeedForwardBlock(call, backward, shared, nullptr).pack_weights(backward, which);
}

template <Activation kind>
static bool rows_of(const FeedForwardBlock& block, int64_t task, bool backward) {
    return backward ? block.backward<kind>(task) : block.forward<kind>(task);
}

static bool rows(const FeedForwardCall& call, int64_t task, bool backward, char* shared,
                 char* worker) {
    const SmallNumbersAreZero small_numbers_are_zero{};
    const MatrixUnit unit(true);
    const FeedForwardBlock block(call, backward, shared, worker);
    switch ((Activation)call.kind) {
        case Activation::gelu:
            return rows_of<Activation::gelu>(block, task, backward);
        case Activation::gelu_tanh:
            return rows_of<Activation::gelu_tanh>(block, task, backward);
        case Activation::silu:
            return rows_of<Activation::silu>(block, task, backward);
        case Activation::relu:
            return rows_of<Activation::relu>(block, task, backward);
    }
    return false;
}

static bool forward_rows(const FeedForwardCall& call, int64_t task, char* shared, char* worker) {
    return rows(call, task, false, shared, worker);
}

static bool backward_rows(const FeedForwardCall& call, int64_t task, char* shared, char* worker) {
    return rows(call, task, true, shared, worker);
}

static void backward_weights(const FeedForwardCall& call, int64_t stripe, char* shared,
                             char* worker) {
    const SmallNumbersAreZero small_numbers_are_zero{};
    const MatrixUnit unit(true);
    FeedForwardBlock(call, true, shared, worker).by_weights(stripe);
}

extern const FeedForwardKernels feed_forward_kernels;
const FeedForwardKernels feed_forward_kernels = {space, pack_weights, forward_rows, backward_rows,
                                                 backward_weights};

}  // namespace HEADLOOM_INSTRUCTION_SET
}  // namespace headloom

#endif
