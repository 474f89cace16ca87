// Scratch memory that is freed with its owner.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

namespace weft {

struct Free {
    void operator()(void* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<char, Free>;

// So many bytes, from a multiple of 64 on.
inline Memory aligned_memory(size_t bytes) {
    const size_t rounded = (bytes + 63) / 64 * 64;
    void* memory = rounded ? std::aligned_alloc(64, rounded) : nullptr;
    if (rounded && !memory) throw std::bad_alloc();
    return Memory(static_cast<char*>(memory));
}

}  // namespace weft
