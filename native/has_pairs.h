// Whether this instruction set multiplies pairs of bfloat16. Sources that need it are empty where
// it does not, and then include nothing else, so that compiling them takes no time.
#pragma once

// On the matrix unit, or in a vector. See pairs.h.
#if defined(__AMX_BF16__) || defined(__AVX512BF16__)
#define HEADLOOM_HAS_PAIRS 1
#endif
