// The non-linearities of feed-forward layers, and their derivatives; see ActivationCall.
#pragma once

#include "passes_call.h"
#include "vector.h"

namespace headloom {
namespace HEADLOOM_INSTRUCTION_SET {

// The distribution of the normal law, Phi(x), within 4e-7 of the true value, relatively, and on the
// other side of 0 within a rounding; and e^(-x^2 / 2), which it is made of:
//
//     1 - Phi(x) = e^(-x^2 / 2) t P(t),  t = 1 / (1 + 0.305 x),  for x >= 0
//
// (the shape of formula 7.1.26 of Abramowitz and Stegun 1964). P is the polynomial of degree 7
// whose largest relative error on x in [0, 14] is smallest.
inline Floats normal_distribution(Floats x, Floats& bell) {
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

// 1 / (1 + e^-x), without cancellation on either side.
inline Floats logistic(Floats x) {
    const Floats e = exponential(x < 0.0f ? x : -x), inverse = 1.0f / (1.0f + e);
    return x < 0.0f ? e * inverse : inverse;
}

// f(x) = x s and f'(x) = s + x s'. What is not asked for, the compiler leaves out.
struct Activated {
    Floats value, slope;
};

template <Activation kind>
inline Activated activated(Floats x) {
    if constexpr (kind == Activation::relu) {
        const Floats none{};
        return {maximum(none, x), x > 0.0f ? broadcast(1.0f) : none};
    } else if constexpr (kind == Activation::gelu) {
        Floats bell;
        const Floats s = normal_distribution(x, bell);
        constexpr float height = 0.398942280401432678f;  // 1 / sqrt(2 pi)
        return {x * s, s + x * bell * height};
    } else if constexpr (kind == Activation::gelu_tanh) {
        constexpr float twice_root = 1.59576912160573071f;  // 2 sqrt(2 / pi)
        const Floats square = x * x;
        const Floats s = logistic(twice_root * x * (1.0f + 0.044715f * square));
        const Floats slope = twice_root * (1.0f + 0.134145f * square);
        return {x * s, s + x * s * (1.0f - s) * slope};
    } else {
        const Floats s = logistic(x);
        return {x * s, s + x * s * (1.0f - s)};
    }
}

}  // namespace HEADLOOM_INSTRUCTION_SET
}  // namespace headloom
