// Python bindings of the native kernels.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>

namespace nb = nanobind;

// The widest instruction set of this processor that the kernels can use.
static std::string instruction_set() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f")) return "avx512";
    if (__builtin_cpu_supports("avx2")) return "avx2";
    return "baseline";
#elif defined(__aarch64__)
    return "neon";
#else
    return "baseline";
#endif
}

NB_MODULE(_native, module) {
    module.doc() = "weft's native kernels.";
    module.def("instruction_set", &instruction_set,
               "The widest instruction set of this processor: avx512, avx2, neon or baseline.");
}
