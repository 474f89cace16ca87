// Running products by packed matrices on several threads.
#pragma once

#include "kernels.h"
#include "prepared_call.h"

namespace headloom {

// Bytes of a packed matrix; 0 where this instruction set does not multiply such.
size_t prepared_bytes(const Kernels& kernels, const PreparedCall& call);

// Pack a matrix, or fill the output. False where a factor holds a number that is not finite, which
// rounding to bfloat16 would lose: then the results are worth nothing.
bool prepare(const Kernels& kernels, const PreparedCall& call, int threads);
bool prepared_forward(const Kernels& kernels, const PreparedCall& call, int threads);

}  // namespace headloom
