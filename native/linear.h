// Running the products of linear layers on several threads.
#pragma once

#include "kernels.h"
#include "linear_call.h"

namespace headloom {

// Fill the outputs, or the gradients. False where a factor holds a number that is not finite, which
// cutting into bfloat16 would lose: then the results are worth nothing.
bool linear_forward(const Kernels& kernels, const LinearCall& call, int threads);
bool linear_backward(const Kernels& kernels, const LinearCall& call, int threads);

}  // namespace headloom
