// One attention call on all its threads.
#pragma once

#include "call.h"
#include "gradients.h"
#include "kernels.h"

namespace headloom {

// Fill the results of a call.
void forward(const Kernels& kernels, const Call& call, int threads);

// Add the gradients of a call to what `gradients` points to.
void backward(const Kernels& kernels, const Call& call, const Gradients& gradients, int threads);

}  // namespace headloom
