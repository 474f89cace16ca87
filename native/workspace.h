// Scratch memory of one thread, dealt out piece by piece.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace headloom {
namespace HEADLOOM_INSTRUCTION_SET {

// Deals out aligned pieces of a block of memory; without a block it only adds up their sizes, so
// that one function both measures and lays out a workspace.
class Workspace {
public:
    explicit Workspace(char* memory) : memory_(memory) {}

    template <typename Element>
    Element* take(int64_t count) {
        char* piece = memory_ ? memory_ + used_ : nullptr;
        const size_t bytes = static_cast<size_t>(count) * sizeof(Element);
        used_ += (bytes + 63) / 64 * 64;
#if defined(__SANITIZE_ADDRESS__)
        // Room that nobody may touch, so that what runs past one piece is not taken for the next.
        used_ += 1024;
        if (piece) {
            ASAN_UNPOISON_MEMORY_REGION(piece, bytes);
            ASAN_POISON_MEMORY_REGION(piece + bytes, memory_ + used_ - (piece + bytes));
        }
#endif
        return reinterpret_cast<Element*>(piece);
    }

    size_t used() const { return used_; }

private:
    char* memory_;
    size_t used_ = 0;
};

}  // namespace HEADLOOM_INSTRUCTION_SET
}  // namespace headloom
