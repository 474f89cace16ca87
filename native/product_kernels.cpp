// Products of float32 matrices on the matrix unit; other instruction sets leave them to torch,
// whose multiply-adds are quicker than six products of bfloat16 in vectors.
#if defined(__AMX_BF16__)

#include "kernels.h"
#include "product_block.h"

namespace headloom {
namespace HEADLOOM_INSTRUCTION_SET {

static size_t space(const ProductCall& call, const ProductPlan& plan) {
    return ProductBlock(call, plan, nullptr).workspace.used();
}

static bool tasks(const ProductCall& call, const ProductPlan& plan, int64_t first, int64_t end,
                  char* memory) {
    const SmallNumbersAreZero small_numbers_are_zero{};
    const MatrixUnit unit(true);
    return ProductBlock(call, plan, memory).tasks(first, end);
}

extern const ProductKernels product_kernels;
const ProductKernels product_kernels = {space, tasks};

}  // namespace HEADLOOM_INSTRUCTION_SET
}  // namespace headloom

#endif
