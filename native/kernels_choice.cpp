#include "kernels.h"

namespace weft {

#if defined(WEFT_HAS_AVX512)
namespace avx512 { extern const Kernels kernels; }
#endif
#if defined(WEFT_HAS_AVX2)
namespace avx2 { extern const Kernels kernels; }
#endif
namespace baseline { extern const Kernels kernels; }

namespace {

// The kernels of this build that this processor runs, widest first.
std::vector<const Kernels*> available() {
    std::vector<const Kernels*> found;
#if defined(__x86_64__)
    __builtin_cpu_init();
#if defined(WEFT_HAS_AVX512)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
        found.push_back(&avx512::kernels);
#endif
#if defined(WEFT_HAS_AVX2)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        found.push_back(&avx2::kernels);
#endif
#endif
    found.push_back(&baseline::kernels);
    return found;
}

}  // namespace

std::vector<std::string> instruction_sets() {
    std::vector<std::string> names;
    for (const Kernels* kernels : available()) names.emplace_back(kernels->instruction_set);
    return names;
}

const Kernels* find_kernels(const std::string& instruction_set) {
    for (const Kernels* kernels : available())
        if (instruction_set.empty() || instruction_set == kernels->instruction_set) return kernels;
    return nullptr;
}

}  // namespace weft
