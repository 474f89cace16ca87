// Running the two maps of a feed-forward layer on several threads.
#pragma once

#include "feed_forward_call.h"
#include "kernels.h"

namespace headloom {

// Fill the output and what lies between, or the gradients. False where a factor is not finite,
// which rounding to bfloat16 would lose: then the results are worth nothing.
bool feed_forward(const Kernels& kernels, const FeedForwardCall& call, int threads);
bool feed_forward_backward(const Kernels& kernels, const FeedForwardCall& call, int threads);

}  // namespace headloom
