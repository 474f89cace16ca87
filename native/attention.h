// One attention call on all its threads.
#pragma once

#include "call.h"
#include "kernels.h"

namespace weft {

void forward(const Kernels& kernels, const Call& call, int threads);

}  // namespace weft
