// Losses and dropout, compiled once for every instruction set; see kernels.cpp.
#include "kernels.h"
#include "range.h"
#include "vector.h"

namespace weft {
namespace WEFT_INSTRUCTION_SET {

static void loss_of_row(const LossCall& call, int64_t row) {
    const int64_t columns = call.columns, whole = columns / lanes * lanes;
    float* z = call.logits + row * columns;
    const int64_t target = call.targets[row];
    const float target_logit = z[target];
    Floats most = broadcast(-infinity), sums{};
    for (int64_t v = 0; v < whole; v += lanes) {
        const Floats x = load(z + v);
        most = maximum(most, x);
        sums += x;
    }
    float largest_logit = largest(most), total = sum(sums);
    for (int64_t v = whole; v < columns; ++v) {
        largest_logit = larger_of(z[v], largest_logit);
        total += z[v];
    }
    // With a logit that is NaN, so is the total, and with it the loss.
    Floats masses{};
    for (int64_t v = 0; v < columns; v += lanes) {
        const int64_t rest = columns - v;
        Floats e = exponential(load_part(z + v, rest) - largest_logit);
        for (int64_t lane = rest; lane < lanes; ++lane) e[lane] = 0.0f;
        masses += e;
        if (call.gradient) store_part(z + v, e, rest);
    }
    const float mass = sum(masses), smoothing = call.smoothing;
    const float lse = largest_logit + __builtin_logf(mass);
    call.losses[row] = lse - (1.0f - smoothing) * target_logit - smoothing * (total / columns);
    if (!call.gradient) return;
    const float share = smoothing / columns, inverse = 1.0f / mass;
    for (int64_t v = 0; v < columns; v += lanes)
        store_part(z + v, load_part(z + v, columns - v) * inverse - share, columns - v);
    z[target] -= 1.0f - smoothing;
}

static void loss(const LossCall& call, int64_t first, int64_t end) {
    const SmallNumbersAreZero small_numbers_are_zero{};
    for (int64_t row = first; row < end; ++row) loss_of_row(call, row);
}

typedef uint32_t Words __attribute__((vector_size(4 * lanes)));

// A random word for each place. The two multiplications and three shifts are lowbias32, a mixing
// function in which each bit of the result depends evenly on each bit of the word (C. Wellons,
// "Prospecting for hash functions", 2018).
static Words random_words(Words places, uint32_t low_seed, uint32_t high_seed) {
    Words x = places * 0x9e3779b9u + low_seed;
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= (x >> 15) ^ high_seed;
    x *= 0x846ca68bu;
    x ^= x >> 16;
    return x;
}

static void dropout(const DropoutCall& call, int64_t first, int64_t end) {
    const SmallNumbersAreZero small_numbers_are_zero{};
    const Words lane_numbers = (Words)first_integers();
    for (int64_t i = first; i < end; i += lanes) {
        // Places past 2^32 have another seed.
        const uint32_t low = (uint32_t)call.seed;
        const uint32_t high = (uint32_t)(call.seed >> 32) + (uint32_t)((uint64_t)i >> 32) * 0x85ebca6bu;
        const Words words = random_words(lane_numbers + (uint32_t)i, low, high);
        const Floats x = load_part(call.input + i, end - i) * call.factor;
        Floats y = words >= call.dropped ? x : Floats{};
        if (call.residual) y += load_part(call.residual + i, end - i);
        store_part(call.output + i, y, end - i);
    }
}

extern const TrainingKernels training_kernels;
const TrainingKernels training_kernels = {loss, dropout};

}  // namespace WEFT_INSTRUCTION_SET
}  // namespace weft
