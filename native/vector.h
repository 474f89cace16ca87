// One vector of floats, as wide as the instruction set that this file is compiled for.
//
// Arithmetic is written with the compiler's vector extensions, so the kernels read as
// formulas and run on any processor. Only what the extensions cannot say (maximum,
// exponent arithmetic, compaction) has an AVX-512 form beside the plain one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "has_pairs.h"

namespace headloom {
namespace HEADLOOM_INSTRUCTION_SET {

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

// The first `count` of a vector's lanes from memory, the others 0.
inline Floats load_part(const float* from, int64_t count) {
    if (count >= lanes) return load(from);
#if defined(__AVX512F__)
    return (Floats)_mm512_maskz_loadu_ps((__mmask16)((1u << count) - 1), from);
#else
    float part[lanes] = {};
    for (int64_t lane = 0; lane < count; ++lane) part[lane] = from[lane];
    return load(part);
#endif
}

// The first `count` of a vector's lanes to memory.
inline void store_part(float* to, Floats x, int64_t count) {
    if (count >= lanes) return store(to, x);
    for (int64_t lane = 0; lane < count; ++lane) to[lane] = x[lane];
}
inline void store_part(int32_t* to, Integers x, int64_t count) {
    if (count >= lanes) return store(to, x);
    for (int64_t lane = 0; lane < count; ++lane) to[lane] = x[lane];
}

// Vectors that hold so many numbers, the last one perhaps in part.
inline int64_t vectors_of(int64_t number) { return (number + lanes - 1) / lanes; }

inline float larger_of(float a, float b) { return a > b ? a : b; }

inline Integers first_integers() {
    Integers x;
    for (int lane = 0; lane < lanes; ++lane) x[lane] = lane;
    return x;
}

// Elementwise maximum, and minimum; where either is NaN, the second.
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

inline Floats minimum(Floats a, Floats b) {
#if defined(__AVX512F__)
    return (Floats)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (Floats)_mm256_min_ps((__m256)a, (__m256)b);
#elif defined(__SSE2__)
    return (Floats)_mm_min_ps((__m128)a, (__m128)b);
#else
    return a < b ? a : b;
#endif
}

inline Integers maximum(Integers a, Integers b) {
#if defined(__AVX512F__)
    return (Integers)_mm512_max_epi32((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
    return (Integers)_mm256_max_epi32((__m256i)a, (__m256i)b);
#else
    return a > b ? a : b;
#endif
}
inline Integers minimum(Integers a, Integers b) {
#if defined(__AVX512F__)
    return (Integers)_mm512_min_epi32((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
    return (Integers)_mm256_min_epi32((__m256i)a, (__m256i)b);
#else
    return a < b ? a : b;
#endif
}

// from[places[lane]].
inline Floats gather(const float* from, Integers places) {
#if defined(__AVX512F__)
    return (Floats)_mm512_i32gather_ps((__m512i)places, from, 4);
#elif defined(__AVX2__)
    return (Floats)_mm256_i32gather_ps(from, (__m256i)places, 4);
#else
    Floats x;
    for (int lane = 0; lane < lanes; ++lane) x[lane] = from[places[lane]];
    return x;
#endif
}

// Bit `lane` is set where scores[lane] > bound.
inline unsigned lanes_above(Floats scores, Floats bound) {
#if defined(__AVX512F__)
    return _mm512_cmp_ps_mask((__m512)scores, (__m512)bound, _CMP_GT_OQ);
#elif defined(__AVX2__)
    return (unsigned)_mm256_movemask_ps((__m256)(scores > bound));
#elif defined(__SSE2__)
    return (unsigned)_mm_movemask_ps((__m128)(scores > bound));
#else
    const Integers above = scores > bound;
    unsigned bits = 0;
    for (int lane = 0; lane < lanes; ++lane) bits |= (unsigned)(above[lane] & 1) << lane;
    return bits;
#endif
}

// The largest of a vector of numbers.
inline float largest(Floats x) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps((__m512)x);
#elif defined(__AVX2__)
    const __m128 half =
        _mm_max_ps(_mm256_castps256_ps128((__m256)x), _mm256_extractf128_ps((__m256)x, 1));
    const __m128 two = _mm_max_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
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

// A sum of many vectors, in parts of 16: numbers that are alike are rounded alike, and thousands of
// them added one by one leave the sum in its sixth digit.
class LongSum {
public:
    void add(Floats x) {
        part_ += x;
        if (++added_ % 16) return;
        whole_ += part_;
        part_ = Floats{};
    }
    Floats total() const { return whole_ + part_; }

private:
    Floats whole_{}, part_{};
    int64_t added_ = 0;
};

#if defined(__FMA__) || defined(__aarch64__)
constexpr bool fused_multiply_add = true;
#else
constexpr bool fused_multiply_add = false;
#endif

// a * factor - b, rounded once where the processor can.
inline Floats multiply_subtract(Floats a, float factor, float b) {
#if defined(__AVX512F__)
    return (Floats)_mm512_fmsub_ps((__m512)a, _mm512_set1_ps(factor), _mm512_set1_ps(b));
#elif defined(__FMA__)
    return (Floats)_mm256_fmsub_ps((__m256)a, _mm256_set1_ps(factor), _mm256_set1_ps(b));
#elif defined(__aarch64__)
    return (Floats)vfmaq_n_f32(vdupq_n_f32(-b), (float32x4_t)a, factor);
#else
    return a * factor - b;
#endif
}

inline Floats multiply_subtract(Floats a, float factor, Floats b) {
#if defined(__AVX512F__)
    return (Floats)_mm512_fmsub_ps((__m512)a, _mm512_set1_ps(factor), (__m512)b);
#elif defined(__FMA__)
    return (Floats)_mm256_fmsub_ps((__m256)a, _mm256_set1_ps(factor), (__m256)b);
#elif defined(__aarch64__)
    return (Floats)vfmaq_n_f32((float32x4_t)-b, (float32x4_t)a, factor);
#else
    return a * factor - b;
#endif
}

constexpr float log2_of_e = 1.44269504088896341f;
constexpr float log_of_2 = 0.693147180559945309f;

// While it lives, numbers too small for a float are 0 on this thread: a weight below 2^-126 is
// none, and computing such numbers exactly takes a processor a hundred times as long.
struct SmallNumbersAreZero {
#if defined(__SSE2__)
    SmallNumbersAreZero() : before(_mm_getcsr()) { _mm_setcsr(before | 0x8000); }
    ~SmallNumbersAreZero() { _mm_setcsr(before); }
    const unsigned before;
#endif
};

// 2^x for x < 128; 0 below -126 (and for -infinity), NaN for NaN. Within 2e-7 of the true value
// for degree 5, 3e-6 for degree 4.
//
// 2^x = 2^n 2^f with a whole number n; 2^f is the polynomial with constant 1 whose largest relative
// error is smallest: for f in [0, 1) where the processor splits x that way, in [-1/2, 1/2]
// elsewhere.
template <int degree>
inline Floats power_of_2(Floats x) {
    static_assert(degree == 4 || degree == 5, "the polynomials there are");
#if defined(__AVX512F__)
    const Floats f = (Floats)_mm512_reduce_ps((__m512)x, _MM_FROUND_TO_NEG_INF);
    Floats p = degree == 5 ? broadcast(0.00186713605f) : broadcast(0.0134266844f);
    if (degree == 5) p = p * f + 0.00901701708f;
    p = p * f + (degree == 5 ? 0.0557999244f : 0.0522424746f);
    p = p * f + (degree == 5 ? 0.240164445f : 0.241280204f);
    p = p * f + (degree == 5 ? 0.693151313f : 0.693044845f);
    p = p * f + 1.0f;
    return (Floats)_mm512_scalef_ps((__m512)p, (__m512)x);
#else
    // Adding 1.5 * 2^23 leaves no bits for the fraction.
    const Floats shift = broadcast(12582912.0f);
    const Floats whole = (x + shift) - shift, f = x - whole;
    Floats p = degree == 5 ? broadcast(0.00132647272f) : broadcast(0.00958285371f);
    if (degree == 5) p = p * f + 0.00967151264f;
    p = p * f + (degree == 5 ? 0.0555073374f : 0.0559064246f);
    p = p * f + (degree == 5 ? 0.240222421f : 0.240240986f);
    p = p * f + (degree == 5 ? 0.693146978f : 0.693124193f);
    p = p * f + 1.0f;
    const Floats bounded = maximum(whole, broadcast(-126.0f));
    const Integers exponent = __builtin_convertvector(bounded, Integers);
    const Floats scaled = p * (Floats)((exponent + 127) << 23);  // NaN where x is: p is
    return x < -126.0f ? Floats{} : scaled;
#endif
}

// e^x for x <= 88, within 2e-7 of the true value.
inline Floats exponential(Floats x) { return power_of_2<5>(x * log2_of_e); }

// tanh, within 2e-7 of the true value, relatively: an odd polynomial near 0, where the formula by
// exponentials cancels, and 1 - 2 / (e^2y + 1) elsewhere.
inline Floats hyperbolic_tangent(Floats y) {
    const Floats square = y * y;
    Floats p = broadcast(-0.00570498677f);
    p = p * square + 0.020639087f;
    p = p * square + -0.053739715f;
    p = p * square + 0.133314422f;
    p = p * square + -0.333332819f;
    const Floats near = y + y * square * p;
    const Floats magnitude = y < 0.0f ? -y : y;
    const Floats bounded = magnitude > 20.0f ? broadcast(20.0f) : magnitude;
    const Floats far = 1.0f - 2.0f / (exponential(bounded + bounded) + 1.0f);
    const Floats signed_far = y < 0.0f ? -far : far;
    return magnitude < 0.625f ? near : signed_far;
}

// The natural logarithm of positive numbers, to two units of the last place, and of infinity and
// NaN: x = 2^e m with m between sqrt 1/2 and sqrt 2, and log m = 2 artanh((m - 1) / (m + 1)).
inline Floats natural_log(Floats x) {
    constexpr int32_t root_of_half = 0x3f3504f3;
    const Integers e = ((Integers)x - root_of_half) >> 23;
    const Floats m = (Floats)((Integers)x - (e << 23));
    const Floats t = (m - 1.0f) / (m + 1.0f), u = t * t;
    const Floats series = 2.0f / 3 + u * (2.0f / 5 + u * (2.0f / 7 + u * (2.0f / 9)));
    const Floats exponent = __builtin_convertvector(e, Floats);
    const Floats found = exponent * log_of_2 + (2.0f * t + t * u * series);
    return x < infinity ? found : x;
}

// Lanes of two vectors, in lane n that of number Source::of(n); those of the second are counted
// from `lanes` on. The numbers are part of the type: computed in a loop, they are now and then left
// to run time by the compiler.
template <typename Source, int... lane>
inline Floats chosen_lanes(Floats a, Floats b, std::integer_sequence<int, lane...>) {
#if defined(__clang__)
    return __builtin_shufflevector(a, b, Source::of(lane)...);
#else
    return __builtin_shuffle(a, b, Integers{Source::of(lane)...});
#endif
}
template <typename Source>
inline Floats chosen_lanes(Floats a, Floats b) {
    return chosen_lanes<Source>(a, b, std::make_integer_sequence<int, lanes>());
}

// Of two rows of a square the first halves of groups of lanes, or the second halves.
template <int width, bool second>
struct HalvesOfGroups {
    static constexpr int of(int lane) {
        const bool upper = lane & width;
        return second ? (upper ? lanes + lane : lane + width)
                      : (upper ? lanes + lane - width : lane);
    }
};

// Turn `lanes` vectors, as rows of a square, into its columns. Four (three, two) rounds; each
// exchanges halves of ever wider groups between two rows.
template <int width = 1>
inline void transpose(Floats (&rows)[lanes]) {
#pragma GCC unroll 16
    for (int row = 0; row < lanes; ++row) {
        if (row & width) continue;
        const Floats a = rows[row], b = rows[row + width];
        rows[row] = chosen_lanes<HalvesOfGroups<width, false>>(a, b);
        rows[row + width] = chosen_lanes<HalvesOfGroups<width, true>>(a, b);
    }
    if constexpr (2 * width < lanes) transpose<2 * width>(rows);
}

}  // namespace HEADLOOM_INSTRUCTION_SET
}  // namespace headloom
