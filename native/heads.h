// A node's heads: vectors of the columns of each, and numbers of all heads of several edges.
#pragma once

#include "range.h"
#include "vector.h"

namespace headloom {
namespace HEADLOOM_INSTRUCTION_SET {

template <int width>
struct VectorOf;
template <>
struct VectorOf<4> {
    typedef float Type __attribute__((vector_size(16)));
    typedef float Unaligned __attribute__((vector_size(16), aligned(4), may_alias));
};
template <>
struct VectorOf<8> {
    typedef float Type __attribute__((vector_size(32)));
    typedef float Unaligned __attribute__((vector_size(32), aligned(4), may_alias));
};
template <>
struct VectorOf<16> {
    typedef float Type __attribute__((vector_size(64)));
    typedef float Unaligned __attribute__((vector_size(64), aligned(4), may_alias));
};

// The columns of one head in whole vectors: `depth` of them, known when this is compiled.
template <int depth>
struct Columns {
    static constexpr int width = depth < lanes ? depth : lanes;
    using Vector = typename VectorOf<width>::Type;
    using Unaligned = typename VectorOf<width>::Unaligned;
    static_assert(depth % width == 0, "whole vectors");

    static int64_t vectors(int64_t) { return depth / width; }
    // Columns of a head in scratch memory.
    static int64_t padded(int64_t) { return depth; }
    static Vector load(const float* head, int64_t vector, int64_t) {
        return (Vector) * (const Unaligned*)(head + vector * width);
    }
    static void store(float* head, int64_t vector, Vector x, int64_t) {
        *(Unaligned*)(head + vector * width) = (Unaligned)x;
    }
    static float total(Vector x) {
#if defined(__AVX512F__)
        if constexpr (width == 16) return _mm512_reduce_add_ps((__m512)x);
#endif
#if defined(__AVX2__)
        if constexpr (width == 8) {
            const __m128 half =
                _mm_add_ps(_mm256_castps256_ps128((__m256)x), _mm256_extractf128_ps((__m256)x, 1));
            const __m128 two = _mm_add_ps(half, _mm_movehl_ps(half, half));
            return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
        }
#endif
        float result = x[0];
        for (int lane = 1; lane < width; ++lane) result += x[lane];
        return result;
    }
};

// Of any number, the last vector perhaps in part.
template <>
struct Columns<0> {
    using Vector = Floats;
    static int64_t vectors(int64_t depth) { return vectors_of(depth); }
    static int64_t padded(int64_t depth) { return round_up(depth, lanes); }
    static Vector load(const float* head, int64_t vector, int64_t depth) {
        return load_part(head + vector * lanes, depth - vector * lanes);
    }
    static void store(float* head, int64_t vector, Vector x, int64_t depth) {
        store_part(head + vector * lanes, x, depth - vector * lanes);
    }
    static float total(Vector x) { return sum(x); }
};

// Numbers of every head of several edges stand edge by edge, each edge's heads padded so that a
// vector holds whole edges, or an edge whole vectors. What is one number a head is then a pattern
// of vectors that repeats.
struct HeadLayout {
    explicit HeadLayout(int64_t heads) : heads(heads), padded(1) {
        while (padded < heads && padded < lanes) padded *= 2;
        if (padded < heads) padded = round_up(heads, lanes);
        vectors = larger(padded, lanes) / lanes;
    }

    // Vectors that the numbers of so many edges fill.
    int64_t filled(int64_t edges) const { return vectors_of(edges * padded); }

    // One number a head, repeated.
    void repeat(const float* by_head, float* pattern) const {
        for (int64_t place = 0; place < vectors * lanes; ++place) {
            const int64_t head = place % padded;
            pattern[place] = head < heads ? by_head[head] : 0.0f;
        }
    }

    // Each head's numbers of a pattern combined, into one.
    template <typename Combine>
    float fold(const float* pattern, int64_t head, Combine combine) const {
        float result = pattern[head];
        for (int64_t place = head + padded; place < vectors * lanes; place += padded)
            result = combine(result, pattern[place]);
        return result;
    }

    int64_t heads, padded, vectors;
};

// The numbers of one edge or node, from its heads; what follows in `to` is written over, up to a
// vector.
inline void copy_heads(const float* from, int64_t heads, float* to) {
    for (int64_t head = 0; head < heads; head += lanes)
        store(to + head, load_part(from + head, heads - head));
}

// LeakyReLU.
template <typename Vector>
inline Vector leaky(Vector x, float slope) {
    return x > 0.0f ? x : x * slope;
}

// The derivative of `leaky`.
template <typename Vector>
inline Vector leaky_slope(Vector x, float slope) {
    const Vector one = Vector{} + 1.0f, other = Vector{} + slope;
    return x > 0.0f ? one : other;
}

}  // namespace HEADLOOM_INSTRUCTION_SET
}  // namespace headloom
