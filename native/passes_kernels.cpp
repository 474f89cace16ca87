// Passes over memory, compiled once for every instruction set; see kernels.cpp.
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

// The distribution of the normal law, Phi(x), within 4e-7 of the true value, relatively, and on the
// other side of 0 within a rounding; and e^(-x^2 / 2), which it is made of:
//
//     1 - Phi(x) = e^(-x^2 / 2) t P(t),  t = 1 / (1 + 0.305 x),  for x >= 0
//
// (the shape of formula 7.1.26 of Abramowitz and Stegun 1964). P is the polynomial of degree 7
// whose largest relative error on x in [0, 14] is smallest.
static Floats normal_distribution(Floats x, Floats& bell) {
    bell = exponential(x * x * -0.5f);
    const Floats magnitude = x < 0.0f ? -x : x;
    const Floats t = 1.0f / (1.0f + 0.305f * magnitude);
    Floats p = broadcast(0.0366389044f);
    p = p * t + -0.152746245f;
    p = p * t + 0.185315207f;
    p = p * t + -0.037620943f;
    p = p * t + 0.120840542f;
    p = p * t + 0.103473648f;
    p = p * t + 0.122458689f;
    p = p * t + 0.121640243f;
    const Floats tail = bell * (p * t);
    return x < 0.0f ? tail : 1.0f - tail;
}

// 1 / (1 + e^-x), relatively exact on both sides.
static Floats logistic(Floats x) {
    const Floats e = exponential(x < 0.0f ? x : -x), inverse = 1.0f / (1.0f + e);
    return x < 0.0f ? e * inverse : inverse;
}

// f(x) = x s and f'(x) = s + x s', of one kind; see ActivationCall.
template <Activation kind, bool by_gradient>
static Floats activated(Floats x) {
    if constexpr (kind == Activation::gelu) {
        Floats bell;
        const Floats s = normal_distribution(x, bell);
        constexpr float height = 0.398942280401432678f;  // 1 / sqrt(2 pi)
        return by_gradient ? s + x * bell * height : x * s;
    } else if constexpr (kind == Activation::gelu_tanh) {
        constexpr float twice_root = 1.59576912160573071f;  // 2 sqrt(2 / pi)
        const Floats square = x * x;
        const Floats s = logistic(twice_root * x * (1.0f + 0.044715f * square));
        const Floats slope = twice_root * (1.0f + 0.134145f * square);
        return by_gradient ? s + x * s * (1.0f - s) * slope : x * s;
    } else {
        const Floats s = logistic(x);
        return by_gradient ? s + x * s * (1.0f - s) : x * s;
    }
}

template <Activation kind>
static void activation_of(const ActivationCall& call, int64_t first, int64_t end) {
    for (int64_t i = first; i < end; i += lanes) {
        const int64_t rest = end - i;
        const Floats x = load_part(call.input + i, rest);
        const Floats y = call.gradient
                             ? activated<kind, true>(x) * load_part(call.gradient + i, rest)
                             : activated<kind, false>(x);
        store_part(call.output + i, y, rest);
    }
}

static void activation(const ActivationCall& call, int64_t first, int64_t end) {
    const SmallNumbersAreZero small_numbers_are_zero{};
    switch ((Activation)call.kind) {
        case Activation::gelu:
            return activation_of<Activation::gelu>(call, first, end);
        case Activation::gelu_tanh:
            return activation_of<Activation::gelu_tanh>(call, first, end);
        case Activation::silu:
            return activation_of<Activation::silu>(call, first, end);
    }
}

extern const PassKernels pass_kernels;
const PassKernels pass_kernels = {loss, dropout, rotary, activation};

}  // namespace WEFT_INSTRUCTION_SET
}  // namespace weft
