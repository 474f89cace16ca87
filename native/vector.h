// One vector of floats, as wide as the instruction set that this file is compiled for.
//
// Arithmetic is written with the compiler's vector extensions, so the kernels read as
// formulas and run on any processor. Only what the extensions cannot say (maximum,
// exponent arithmetic, compaction) has an AVX-512 form beside the plain one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace weft {
namespace WEFT_INSTRUCTION_SET {

#if defined(__AVX512F__)
constexpr int lanes = 16;
#elif defined(__AVX2__)
constexpr int lanes = 8;
#else
constexpr int lanes = 4;
#endif

typedef float Floats __attribute__((vector_size(4 * lanes)));
typedef int32_t Integers __attribute__((vector_size(4 * lanes)));
typedef float UnalignedFloats __attribute__((vector_size(4 * lanes), aligned(4), may_alias));
typedef int32_t UnalignedIntegers __attribute__((vector_size(4 * lanes), aligned(4), may_alias));

constexpr float infinity = __builtin_inff();

inline Floats load(const float* from) { return (Floats)(*(const UnalignedFloats*)from); }
inline void store(float* to, Floats x) { *(UnalignedFloats*)to = (UnalignedFloats)x; }
inline Integers load(const int32_t* from) { return (Integers)(*(const UnalignedIntegers*)from); }
inline void store(int32_t* to, Integers x) { *(UnalignedIntegers*)to = (UnalignedIntegers)x; }
// (x - 0 is x for every x, -0 too; the compiler knows, and loads straight into all lanes.)
inline Floats broadcast(float x) { return x - Floats{}; }
inline Integers broadcast(int32_t x) { return Integers{} + x; }

inline Integers first_integers() {
    Integers x;
    for (int lane = 0; lane < lanes; ++lane) x[lane] = lane;
    return x;
}

// Elementwise maximum; where either is NaN, the second.
inline Floats maximum(Floats a, Floats b) {
#if defined(__AVX512F__)
    return (Floats)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (Floats)_mm256_max_ps((__m256)a, (__m256)b);
#elif defined(__SSE2__)
    return (Floats)_mm_max_ps((__m128)a, (__m128)b);
#else
    return a > b ? a : b;
#endif
}

inline float largest(Floats x) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps((__m512)x);
#else
    float result = x[0];
    for (int lane = 1; lane < lanes; ++lane) result = x[lane] > result ? x[lane] : result;
    return result;
#endif
}

inline float sum(Floats x) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_ps((__m512)x);
#else
    float result = x[0];
    for (int lane = 1; lane < lanes; ++lane) result += x[lane];
    return result;
#endif
}

// e^x for x <= 88, within 2e-7 of the true value; 0 below -87.3 (and for -infinity), NaN for NaN.
//
// e^x = 2^n 2^f with n = round(x log2 e), f in [-1/2, 1/2]; 2^f is the polynomial of degree 5
// with constant 1 whose largest relative error is smallest.
inline Floats exponential(Floats x) {
    const Floats powers = x * 1.44269504088896341f;
#if defined(__AVX512F__)
    const Floats whole = (Floats)_mm512_roundscale_ps((__m512)powers, 0);
#else
    // Adding 1.5 * 2^23 leaves no bits for the fraction.
    const Floats shift = broadcast(12582912.0f);
    const Floats whole = (powers + shift) - shift;
#endif
    const Floats f = powers - whole;
    Floats p = broadcast(0.00132647272f);
    p = p * f + 0.00967151264f;
    p = p * f + 0.0555073374f;
    p = p * f + 0.240222421f;
    p = p * f + 0.693146978f;
    p = p * f + 1.0f;
#if defined(__AVX512F__)
    // "Not less than" lets NaN through and keeps -infinity out.
    const __mmask16 visible =
        _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(-87.3f), _CMP_NLT_UQ);
    return (Floats)_mm512_maskz_scalef_ps(visible, (__m512)p, (__m512)whole);
#else
    const Floats bounded = whole > -126.0f ? whole : broadcast(-126.0f);
    const Integers exponent = __builtin_convertvector(bounded, Integers);
    const Floats scaled = p * (Floats)((exponent + 127) << 23);
    const Floats visible = x < -87.3f ? Floats{} : scaled;
    return x == x ? visible : x;
#endif
}

// Turn `lanes` vectors, as rows of a square, into its columns.
inline void transpose(Floats (&rows)[lanes]) {
    // Four (three, two) rounds; each exchanges halves of ever wider groups between two rows.
    for (int width = 1; width < lanes; width *= 2) {
        Integers low, high;
        for (int lane = 0; lane < lanes; ++lane) {
            const bool upper = lane & width;
            low[lane] = upper ? lanes + lane - width : lane;
            high[lane] = upper ? lanes + lane : lane + width;
        }
        for (int row = 0; row < lanes; ++row) {
            if (row & width) continue;
            const Floats a = rows[row], b = rows[row + width];
#if defined(__clang__)
            Floats x, y;
            for (int lane = 0; lane < lanes; ++lane) {
                x[lane] = (lane & width) ? b[lane - width] : a[lane];
                y[lane] = (lane & width) ? b[lane] : a[lane + width];
            }
            rows[row] = x;
            rows[row + width] = y;
#else
            rows[row] = __builtin_shuffle(a, b, low);
            rows[row + width] = __builtin_shuffle(a, b, high);
#endif
        }
    }
}

}  // namespace WEFT_INSTRUCTION_SET
}  // namespace weft
