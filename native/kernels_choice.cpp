#include "kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

namespace weft {

#if defined(WEFT_HAS_AMX)
namespace amx {
extern const Kernels kernels;
}
#endif
#if defined(WEFT_HAS_AVX512_BF16)
namespace avx512_bf16 {
extern const Kernels kernels;
}
#endif
#if defined(WEFT_HAS_AVX512)
namespace avx512 {
extern const Kernels kernels;
}
#endif
#if defined(WEFT_HAS_AVX2)
namespace avx2 {
extern const Kernels kernels;
}
#endif
namespace baseline {
extern const Kernels kernels;
}

namespace {

#if defined(__x86_64__)
bool has_avx512() {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("fma");
}

// Whether the processor has tiles of bfloat16 and the system lets this process use them: their
// registers are large, so the kernel hands them out on request only.
bool may_use_matrix_unit() {
#if defined(__linux__)
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
    const bool tiles = d & (1u << 24), bfloat16 = d & (1u << 22);
    if (!tiles || !bfloat16) return false;
    constexpr int request_permission = 0x1023, tile_data = 18;  // asm/prctl.h
    return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
#else
    return false;
#endif
}
#endif

// The kernels of this build that this processor runs, widest first.
std::vector<const Kernels*> find_available() {
    std::vector<const Kernels*> found;
#if defined(__x86_64__)
    __builtin_cpu_init();
#if defined(WEFT_HAS_AMX)
    if (has_avx512() && __builtin_cpu_supports("avx512bf16") && may_use_matrix_unit())
        found.push_back(&amx::kernels);
#endif
#if defined(WEFT_HAS_AVX512_BF16)
    if (has_avx512() && __builtin_cpu_supports("avx512bf16"))
        found.push_back(&avx512_bf16::kernels);
#endif
#if defined(WEFT_HAS_AVX512)
    if (has_avx512()) found.push_back(&avx512::kernels);
#endif
#if defined(WEFT_HAS_AVX2)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        found.push_back(&avx2::kernels);
#endif
#endif
    found.push_back(&baseline::kernels);
    return found;
}

const std::vector<const Kernels*>& available() {
    static const std::vector<const Kernels*> found = find_available();
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
