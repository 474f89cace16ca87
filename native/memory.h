// Scratch memory that is freed with its owner.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>
#if defined(_WIN32)
#include <malloc.h>
#endif

namespace headloom {

struct Free {
#if defined(_WIN32)
    void operator()(void* memory) const { _aligned_free(memory); }
#else
    void operator()(void* memory) const { std::free(memory); }
#endif
};
using Memory = std::unique_ptr<char, Free>;

// So many bytes, from a multiple of 64 on.
inline Memory aligned_memory(size_t bytes) {
    const size_t rounded = (bytes + 63) / 64 * 64;
#if defined(_WIN32)
    void* memory = rounded ? _aligned_malloc(rounded, 64) : nullptr;
#else
    void* memory = rounded ? std::aligned_alloc(64, rounded) : nullptr;
#endif
    if (rounded && !memory) throw std::bad_alloc();
    return Memory(static_cast<char*>(memory));
}

}  // namespace headloom
