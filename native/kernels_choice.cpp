#include "kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

namespace headloom {

#if defined(HEADLOOM_HAS_AMX)
namespace amx {
extern const Kernels kernels;
}
#endif
#if defined(HEADLOOM_HAS_AVX512_BF16)
namespace avx512_bf16 {
extern const Kernels kernels;
}
#endif
#if defined(HEADLOOM_HAS_AVX512)
namespace avx512 {
extern const Kernels kernels;
}
#endif
#if defined(HEADLOOM_HAS_AVX2)
namespace avx2 {
extern const Kernels kernels;
}
#endif
namespace baseline {
extern const Kernels kernels;
}

namespace {

#if defined(__x86_64__)
constexpr bool all_of(unsigned word, unsigned bits) { return (word & bits) == bits; }
constexpr unsigned bit(int number) { return 1u << number; }

// What the processor has, and the system saves the registers of. Read from the processor: what
// __builtin_cpu_supports reads is in a library that linkers of Windows do not find.
struct Processor {
    bool avx2 = false, avx512 = false, avx512_bf16 = false, tiles = false;

    Processor() {
        unsigned a, b, c, d;
        if (!__get_cpuid(1, &a, &b, &c, &d)) return;
        const bool fma = c & bit(12), says_what_is_saved = c & bit(27);
        if (!fma || !says_what_is_saved) return;
        unsigned saved, unused;
        __asm__ volatile("xgetbv" : "=a"(saved), "=d"(unused) : "c"(0));
        if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return;
        const bool has_more = a >= 1;
        constexpr unsigned f = bit(16), dq = bit(17), bw = bit(30), vl = bit(31);
        avx2 = (b & bit(5)) && all_of(saved, bit(1) | bit(2));
        avx512 = avx2 && all_of(b, f | dq | bw | vl) && all_of(saved, bit(5) | bit(6) | bit(7));
        tiles = all_of(d, bit(22) | bit(24));  // of bfloat16
        if (has_more && __get_cpuid_count(7, 1, &a, &b, &c, &d))
            avx512_bf16 = avx512 && (a & bit(5));
    }
};

// Whether the system lets this process use tiles: their registers are large, so the kernel of Linux
// hands them out on request only.
bool may_use_tiles() {
#if defined(__linux__)
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
    const Processor processor;
#if defined(HEADLOOM_HAS_AMX)
    if (processor.avx512_bf16 && processor.tiles && may_use_tiles()) found.push_back(&amx::kernels);
#endif
#if defined(HEADLOOM_HAS_AVX512_BF16)
    if (processor.avx512_bf16) found.push_back(&avx512_bf16::kernels);
#endif
#if defined(HEADLOOM_HAS_AVX512)
    if (processor.avx512) found.push_back(&avx512::kernels);
#endif
#if defined(HEADLOOM_HAS_AVX2)
    if (processor.avx2) found.push_back(&avx2::kernels);
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

std::vector<std::string> compiled_instruction_sets() {
    return {
#if defined(HEADLOOM_HAS_AMX)
        "amx",
#endif
#if defined(HEADLOOM_HAS_AVX512_BF16)
        "avx512_bf16",
#endif
#if defined(HEADLOOM_HAS_AVX512)
        "avx512",
#endif
#if defined(HEADLOOM_HAS_AVX2)
        "avx2",
#endif
        "baseline",
    };
}

const Kernels* find_kernels(const std::string& instruction_set) {
    for (const Kernels* kernels : available())
        if (instruction_set.empty() || instruction_set == kernels->instruction_set) return kernels;
    return nullptr;
}

}  // namespace headloom
