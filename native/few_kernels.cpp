// The kernels for few queries, compiled once for every instruction set, as kernels.cpp.
#include "few_pass.h"

namespace headloom {
namespace HEADLOOM_INSTRUCTION_SET {

static void few_piece(const Call& call, const FewPlan& plan, int64_t group, int64_t piece,
                      char* workspace, char* part) {
    const SmallNumbersAreZero small_numbers_are_zero{};
    Workspace space(workspace);
    FewBlock block = lay_out_few(call, plan, space);
    find_group(call, plan, group, block);
#if defined(HEADLOOM_HAS_PAIRS) && defined(__AMX_BF16__)
    const MatrixUnit unit(block.tiles && block.count > 0, block.count);
#endif
    const int64_t first = piece * plan.piece_keys;
    begin_few(call, block, {first, smaller(first + plan.piece_keys, call.keys_count)});
    call.entropy ? pass_piece<true>(call, block) : pass_piece<false>(call, block);
    if (plan.pieces == 1) return finish_few(call, block);
    Workspace own(part);
    leave_part(call, block, lay_out_few_rows(call, plan, few_candidates(call, plan), own));
}

static void few_join(const Call& call, const FewPlan& plan, int64_t group, char* workspace,
                     const char* parts) {
    const SmallNumbersAreZero small_numbers_are_zero{};
    const int64_t room = few_candidates(call, plan);
    Workspace space(workspace);
    FewBlock block;
    static_cast<FewRows&>(block) = lay_out_few_rows(call, plan, plan.pieces * room, space);
    find_group(call, plan, group, block);
    for (int row = 0; row < block.count; ++row) {
        block.rows[row].running = Running{};
        block.rows[row].count = 0;
        block.rows[row].candidates.clear();
    }
    std::memset(block.sums, 0, block.count * block.sums_row * sizeof(float));
    for (int64_t piece = 0; piece < plan.pieces; ++piece) {
        // Laid out once more, in its own place: what is there is only read.
        Workspace own(const_cast<char*>(parts) + plan.part * static_cast<size_t>(piece));
        const FewRows part = lay_out_few_rows(call, plan, room, own);
        for (int row = 0; row < block.count; ++row) join_row(call, block, row, part);
    }
    finish_few(call, block);
}

// Named by the instruction set's namespace, so that every build of this file has its own.
extern const FewKernels few_kernels;
const FewKernels few_kernels = {plan_few, few_piece, few_join};

}  // namespace HEADLOOM_INSTRUCTION_SET
}  // namespace headloom
