// The loss of a last linear map, compiled once for every instruction set; see kernels.cpp. Those
// that do not multiply pairs of bfloat16 leave it to torch.
#include "has_pairs.h"

#if defined(HEADLOOM_HAS_PAIRS)

#include "kernels.h"
#include "projected_block.h"

namespace headloom {
namespace HEADLOOM_INSTRUCTION_SET {

static ProjectedSpace space(const ProjectedCall& call) {
    const ProjectedBlock block(call, nullptr, nullptr);
    return {block.shared.used(), block.worker.used()};
}

static ProjectedTasks tasks(const ProjectedCall& call) {
    return ProjectedBlock(call, nullptr, nullptr).tasks();
}

static bool pack(const ProjectedCall& call, int64_t task, char* shared) {
    const SmallNumbersAreZero small_numbers_are_zero{};
    return ProjectedBlock(call, shared, nullptr).pack(task);
}

static void rows(const ProjectedCall& call, int64_t task, char* shared, char* worker) {
    const SmallNumbersAreZero small_numbers_are_zero{};
    const MatrixUnit unit(true);
    ProjectedBlock(call, shared, worker).rows(task);
}

static void choices(const ProjectedCall& call, int64_t task, char* shared, char* worker) {
    const SmallNumbersAreZero small_numbers_are_zero{};
    const MatrixUnit unit(true);
    ProjectedBlock(call, shared, worker).choices(task);
}

extern const ProjectedKernels projected_kernels;
const ProjectedKernels projected_kernels = {space, tasks, pack, rows, choices};

}  // namespace HEADLOOM_INSTRUCTION_SET
}  // namespace headloom

#endif
