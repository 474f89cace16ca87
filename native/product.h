// Running the product of two float32 matrices on several threads.
#pragma once

#include "kernels.h"
#include "product_call.h"

namespace headloom {

// Fill the output. False where a result is not finite: then the output is worth nothing.
bool multiply(const Kernels& kernels, const ProductCall& call, int threads);

}  // namespace headloom
