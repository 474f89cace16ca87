// Running passes over memory on several threads.
#pragma once

#include "kernels.h"
#include "passes_call.h"

namespace headloom {

void losses(const Kernels& kernels, const LossCall& call, int threads);
void dropout(const Kernels& kernels, const DropoutCall& call, int threads);
void rotary(const Kernels& kernels, const RotaryCall& call, int threads);
void activation(const Kernels& kernels, const ActivationCall& call, int threads);

bool row_terms(const Kernels& kernels, const RowTermsCall& call, int threads);

}  // namespace headloom
