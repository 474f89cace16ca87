// Passes over memory, compiled once for every instruction set; see kernels.cpp.
#include "kernels.h"
#include "range.h"
#include "vector.h"

namespace headloom {
namespace HEADLOOM_INSTRUCTION_SET {

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
    // With a logit that is NaN, so is the mass, and with it the loss.
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
    // Without smoothing, a logit of minus infinity is no trouble but at the target.
    const float spread = smoothing > 0 ? smoothing * (total / columns) : 0.0f;
    call.losses[row] = lse - (1.0f - smoothing) * target_logit - spread;
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
        const uint32_t high =
            (uint32_t)(call.seed >> 32) + (uint32_t)((uint64_t)i >> 32) * 0x85ebca6bu;
        const Words words = random_words(lane_numbers + (uint32_t)i, low, high);
        const Floats x = load_part(call.input + i, end - i) * call.factor;
        Floats y = words >= call.dropped ? x : Floats{};
        if (call.residual) y += load_part(call.residual + i, end - i);
        store_part(call.output + i, y, end - i);
    }
}

static void rotary(const RotaryCall& call, int64_t first, int64_t end) {
    const int64_t half = call.depth / 2;
    const float sign = call.back ? -1.0f : 1.0f;
    for (int64_t row = first; row < end; ++row) {
        const int64_t b = row / call.positions, m = row % call.positions;
        const float* cosines = call.cosines + m * half;
        const float* sines = call.sines + m * half;
        for (int64_t h = 0; h < call.heads; ++h) {
            const float* from = call.input.at<float>(b, h, m);
            float* to = const_cast<float*>(call.output.at<float>(b, h, m));
            for (int64_t i = 0; i < half; i += lanes) {
                const int64_t rest = half - i;
                const Floats x = load_part(from + i, rest), y = load_part(from + half + i, rest);
                const Floats cosine = load_part(cosines + i, rest);
                const Floats sine = load_part(sines + i, rest) * sign;
                store_part(to + i, x * cosine - y * sine, rest);
                store_part(to + half + i, y * cosine + x * sine, rest);
            }
        }
    }
}

static bool row_terms(const RowTermsCall& call, int64_t first, int64_t end) {
    const SmallNumbersAreZero small_numbers_are_zero{};
    bool near = true;
    for (int64_t at = first; at < end; ++at) {
        const int64_t head = at / call.rows, i = at % call.rows;
        const float* gradient = call.by_output.at<float>(head / call.heads, head % call.heads, i);
        const float* output = call.output + at * call.depth;
        Floats products{};
        for (int64_t d = 0; d < call.depth; d += lanes)
            products +=
                load_part(gradient + d, call.depth - d) * load_part(output + d, call.depth - d);
        const float lse = call.lse[at], magnitude = lse < 0 ? -lse : lse;
        const bool blind = lse == -infinity;
        near &= !(magnitude > call.far && magnitude < infinity);
        call.subtract[at] = blind ? 0.0f : sum(products);
        call.finite_lse[at] = blind ? infinity : lse;
    }
    return near;
}

extern const PassKernels passes_kernels;
const PassKernels passes_kernels = {loss, dropout, rotary, row_terms};

}  // namespace HEADLOOM_INSTRUCTION_SET
}  // namespace headloom
