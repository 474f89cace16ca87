// Running the loss of a last linear map on several threads.
#pragma once

#include "kernels.h"
#include "projected_call.h"

namespace headloom {

// Fill the losses and gradients. False where a factor holds a number that is not finite, which
// rounding to bfloat16 would lose: then the results are worth nothing.
bool projected_losses(const Kernels& kernels, const ProjectedCall& call, int threads);

}  // namespace headloom
