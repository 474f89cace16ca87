// Products of linear layers, compiled once for every instruction set; see kernels.cpp. Those that
// do not multiply pairs of bfloat16 leave them to torch.
#include "has_pairs.h"

#if defined(HEADLOOM_HAS_PAIRS)

#include "kernels.h"
#include "linear_block.h"

namespace headloom {
namespace HEADLOOM_INSTRUCTION_SET {

// Calls `run` with the kernel of a call.
template <typename Run>
static auto with_block(const LinearCall& call, bool backward, char* shared, char* worker,
                       const Run& run) {
    const SmallNumbersAreZero small_numbers_are_zero{};
    const MatrixUnit unit(true);
    if (call.splits == 1) return run(LinearBlock<1>(call, backward, shared, worker));
    return run(LinearBlock<3>(call, backward, shared, worker));
}

static LinearSpace space(const LinearCall& call, bool backward) {
    return with_block(call, backward, nullptr, nullptr, [](const auto& block) {
        return LinearSpace{block.shared.used(), block.worker.used()};
    });
}

static bool pack_weights(const LinearCall& call, bool backward, int64_t part, char* shared) {
    return with_block(call, backward, shared, nullptr,
                      [&](const auto& block) { return block.pack_weights(backward, part); });
}

static bool forward_rows(const LinearCall& call, int64_t task, char* shared, char* worker) {
    return with_block(call, false, shared, worker,
                      [&](const auto& block) { return block.forward(task); });
}

static bool backward_rows(const LinearCall& call, int64_t task, char* shared, char* worker) {
    return with_block(call, true, shared, worker,
                      [&](const auto& block) { return block.backward(task); });
}

static void backward_weights(const LinearCall& call, int64_t part, int64_t stripe, char* shared,
                             char* worker) {
    with_block(call, true, shared, worker,
               [&](const auto& block) { block.by_weight(part, stripe); });
}

extern const LinearKernels linear_kernels;
const LinearKernels linear_kernels = {space, pack_weights, forward_rows, backward_rows,
                                      backward_weights};

}  // namespace HEADLOOM_INSTRUCTION_SET
}  // namespace headloom

#endif
