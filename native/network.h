// Sorting networks for the last few candidates of a row.
#pragma once

#include "strongest.h"

namespace headloom {
namespace HEADLOOM_INSTRUCTION_SET {

// sort_few: as order_strongest, by a network that sorts four (eight) vectors of whole numbers: the
// upper bits of a score in its order, and in the lowest six its place, so that of equal ones the
// lower key is ahead. Returns false, with nothing done, where the bits that are left out matter.
//
// The columns of the vectors are sorted first; then neighbours of 1, 2, 4 and 8 (1, 2 and 4)
// columns are merged, the element e of a group being in vector e % 4 (8) of its column e / 4 (8).

#if defined(__AVX512F__)
inline bool sort_few(const float* candidates, const int32_t* candidate_keys, int64_t number,
                     int64_t kept, float* scores, int32_t* keys) {
    constexpr int32_t places = 63;
    const __m512i lane = (__m512i)first_integers();
    __m512i v[4];
    __m512 own[4];
    __mmask16 real[4];
#pragma GCC unroll 4
    for (int n = 0; n < 4; ++n) {
        const int64_t there = number - n * lanes;
        real[n] = (__mmask16)(there >= lanes ? 0xffff : there > 0 ? (1u << there) - 1 : 0);
        own[n] = _mm512_maskz_loadu_ps(real[n], candidates + n * lanes);
        const __m512i bits = _mm512_castps_si512(own[n]);
        const __m512i order = _mm512_mask_sub_epi32(bits, _mm512_movepi32_mask(bits),
                                                    _mm512_set1_epi32(INT32_MIN), bits);
        const __m512i place = _mm512_sub_epi32(_mm512_set1_epi32(places - n * lanes), lane);
        v[n] = _mm512_mask_or_epi32(_mm512_set1_epi32(INT32_MIN), real[n],
                                    _mm512_andnot_si512(_mm512_set1_epi32(places), order), place);
    }
    const auto exchange = [&](int a, int b) {
        const __m512i more = _mm512_max_epi32(v[a], v[b]);
        v[b] = _mm512_min_epi32(v[a], v[b]);
        v[a] = more;
    };
    const auto merge_columns = [&] {
        exchange(0, 2);
        exchange(1, 3);
        exchange(0, 1);
        exchange(2, 3);
    };
    // A vector and what other lanes have: the larger in `first` lanes, the smaller in the others.
    const auto exchange_lanes = [&](int n, __m512i other, __mmask16 first) {
        v[n] = _mm512_mask_max_epi32(_mm512_min_epi32(v[n], other), first, v[n], other);
    };
#define HEADLOOM_MERGE(permuted, first)                                            \
    {                                                                              \
        const __m512i turned[4] = {permuted(v[3]), permuted(v[2]), permuted(v[1]), \
                                   permuted(v[0])};                                \
        for (int n = 0; n < 4; ++n) exchange_lanes(n, turned[n], first);           \
    }
#define HEADLOOM_HALVE(permuted, first) \
    for (int n = 0; n < 4; ++n) exchange_lanes(n, permuted(v[n]), first);
    const __m512i across_4 = _mm512_xor_si512(lane, _mm512_set1_epi32(4));
    const __m512i across_7 = _mm512_xor_si512(lane, _mm512_set1_epi32(7));
    const __m512i across_15 = _mm512_xor_si512(lane, _mm512_set1_epi32(15));
#define HEADLOOM_BY_1(x) _mm512_shuffle_epi32(x, (_MM_PERM_ENUM)0xb1)
#define HEADLOOM_BY_2(x) _mm512_shuffle_epi32(x, (_MM_PERM_ENUM)0x4e)
#define HEADLOOM_BY_3(x) _mm512_shuffle_epi32(x, (_MM_PERM_ENUM)0x1b)
#define HEADLOOM_BY_4(x) _mm512_permutexvar_epi32(across_4, x)
#define HEADLOOM_BY_7(x) _mm512_permutexvar_epi32(across_7, x)
#define HEADLOOM_BY_15(x) _mm512_permutexvar_epi32(across_15, x)
    exchange(0, 1);
    exchange(2, 3);
    exchange(0, 2);
    exchange(1, 3);
    exchange(1, 2);
    HEADLOOM_MERGE(HEADLOOM_BY_1, 0x5555);
    merge_columns();
    HEADLOOM_MERGE(HEADLOOM_BY_3, 0x3333);
    HEADLOOM_HALVE(HEADLOOM_BY_1, 0x5555);
    merge_columns();
    HEADLOOM_MERGE(HEADLOOM_BY_7, 0x0f0f);
    HEADLOOM_HALVE(HEADLOOM_BY_2, 0x3333);
    HEADLOOM_HALVE(HEADLOOM_BY_1, 0x5555);
    merge_columns();
    HEADLOOM_MERGE(HEADLOOM_BY_15, 0xffff);  // of these, the first half alone
    HEADLOOM_HALVE(HEADLOOM_BY_4, 0x0f0f);
    HEADLOOM_HALVE(HEADLOOM_BY_2, 0x3333);
    HEADLOOM_HALVE(HEADLOOM_BY_1, 0x5555);
    merge_columns();
#undef HEADLOOM_MERGE
#undef HEADLOOM_HALVE
#undef HEADLOOM_BY_1
#undef HEADLOOM_BY_2
#undef HEADLOOM_BY_3
#undef HEADLOOM_BY_4
#undef HEADLOOM_BY_7
#undef HEADLOOM_BY_15
    // Columns as rows: the first eight lanes of the four vectors.
    const __m512i a = _mm512_unpacklo_epi32(v[0], v[1]), b = _mm512_unpackhi_epi32(v[0], v[1]);
    const __m512i c = _mm512_unpacklo_epi32(v[2], v[3]), d = _mm512_unpackhi_epi32(v[2], v[3]);
    const __m512i front =
        _mm512_shuffle_i32x4(_mm512_unpacklo_epi64(a, c), _mm512_unpackhi_epi64(a, c), 0x44);
    const __m512i back =
        _mm512_shuffle_i32x4(_mm512_unpacklo_epi64(b, d), _mm512_unpackhi_epi64(b, d), 0x44);
    const __m512i sorted[2] = {_mm512_shuffle_i32x4(front, back, 0x88),
                               _mm512_shuffle_i32x4(front, back, 0xdd)};
    __m512 found[2];
    __m512i place[2];
#pragma GCC unroll 2
    for (int n = 0; n < 2; ++n) {
        place[n] = _mm512_andnot_si512(sorted[n], _mm512_set1_epi32(places));
        const __mmask16 upper = _mm512_test_epi32_mask(place[n], _mm512_set1_epi32(32));
        found[n] = _mm512_mask_blend_ps(upper, _mm512_permutex2var_ps(own[0], place[n], own[1]),
                                        _mm512_permutex2var_ps(own[2], place[n], own[3]));
    }
    // Right if the scores fall, and as many as are kept are no lower than the last of them.
    const __m512i shifted[2] = {
        _mm512_alignr_epi32(_mm512_castps_si512(found[1]), _mm512_castps_si512(found[0]), 1),
        _mm512_alignr_epi32(_mm512_castps_si512(found[1]), _mm512_castps_si512(found[1]), 1)};
    uint32_t falls = 0;
    for (int n = 0; n < 2; ++n)
        falls |= (uint32_t)_mm512_cmp_ps_mask(found[n], _mm512_castsi512_ps(shifted[n]), _CMP_GE_OQ)
                 << (n * lanes);
    const uint32_t pairs = (uint32_t)((1ull << (kept - 1)) - 1);
    const __m512 last = _mm512_permutexvar_ps(_mm512_set1_epi32((int32_t)(kept - 1) & 15),
                                              kept > lanes ? found[1] : found[0]);
    int64_t not_lower = 0;
    for (int n = 0; n < 4; ++n)
        not_lower += __builtin_popcount(_mm512_mask_cmp_ps_mask(real[n], own[n], last, _CMP_GE_OQ));
    if ((falls & pairs) != pairs || not_lower != kept) return false;
#pragma GCC unroll 2
    for (int n = 0; n < 2; ++n) {
        const int64_t there = kept - n * lanes;
        const __mmask16 chosen = (__mmask16)(there >= lanes ? 0xffff
                                             : there > 0    ? (1u << there) - 1
                                                            : 0);
        _mm512_mask_storeu_ps(scores + n * lanes, chosen, found[n]);
        _mm512_mask_storeu_epi32(
            keys + n * lanes, chosen,
            _mm512_mask_i32gather_epi32(place[n], chosen, place[n], candidate_keys, 4));
    }
    return true;
}
#elif defined(__AVX2__)
inline bool sort_few(const float* candidates, const int32_t* candidate_keys, int64_t number,
                     int64_t kept, float* scores, int32_t* keys) {
    const __m256i places = _mm256_set1_epi32(most_sorted - 1), lane = (__m256i)first_integers();
    const __m256 hidden = _mm256_set1_ps(-infinity);
    const int64_t vectors = vectors_of(number);
    __m256i v[8];
    __m256 own[8];
#pragma GCC unroll 8
    for (int n = 0; n < 8; ++n) {
        // What lies past the last candidate comes last: no candidate is minus infinity.
        const __m256i real = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)number - n * lanes), lane);
        own[n] = hidden;
        if (n < vectors)
            own[n] = _mm256_blendv_ps(hidden, (__m256)load(candidates + n * lanes), (__m256)real);
        const __m256i turned =
            _mm256_sub_epi32(_mm256_set1_epi32(INT32_MIN), _mm256_castps_si256(own[n]));
        const __m256i order = (__m256i)_mm256_blendv_ps(own[n], (__m256)turned, own[n]);
        const __m256i place =
            _mm256_sub_epi32(_mm256_set1_epi32(most_sorted - 1 - n * lanes), lane);
        v[n] = _mm256_or_si256(_mm256_andnot_si256(places, order), place);
    }
    const auto exchange = [&](int a, int b) {
        const __m256i more = _mm256_max_epi32(v[a], v[b]);
        v[b] = _mm256_min_epi32(v[a], v[b]);
        v[a] = more;
    };
    const auto merge_columns = [&] {
        exchange(0, 4), exchange(1, 5), exchange(2, 6), exchange(3, 7);
        exchange(0, 2), exchange(1, 3), exchange(4, 6), exchange(5, 7);
        exchange(0, 1), exchange(2, 3), exchange(4, 5), exchange(6, 7);
    };
    // A vector and what other lanes have: the smaller in the lanes of `mask`, the larger in others.
#define HEADLOOM_EXCHANGE(own, other, mask) \
    own = _mm256_blend_epi32(_mm256_max_epi32(own, other), _mm256_min_epi32(own, other), mask)
#define HEADLOOM_MERGE(permuted, mask)                                             \
    for (int n = 0; n < 4; ++n) {                                                  \
        const __m256i from_last = permuted(v[7 - n]), from_first = permuted(v[n]); \
        HEADLOOM_EXCHANGE(v[n], from_last, mask);                                  \
        HEADLOOM_EXCHANGE(v[7 - n], from_first, mask);                             \
    }
#define HEADLOOM_HALVE(count, permuted, mask) \
    for (int n = 0; n < count; ++n) {         \
        const __m256i other = permuted(v[n]); \
        HEADLOOM_EXCHANGE(v[n], other, mask); \
    }
#define HEADLOOM_BY_1(x) _mm256_shuffle_epi32(x, 0xb1)
#define HEADLOOM_BY_2(x) _mm256_shuffle_epi32(x, 0x4e)
#define HEADLOOM_BY_3(x) _mm256_shuffle_epi32(x, 0x1b)
#define HEADLOOM_BY_4(x) _mm256_permute2x128_si256(x, x, 0x01)
    exchange(0, 2), exchange(1, 3), exchange(4, 6), exchange(5, 7);
    exchange(0, 4), exchange(1, 5), exchange(2, 6), exchange(3, 7);
    exchange(0, 1), exchange(2, 3), exchange(4, 5), exchange(6, 7);
    exchange(2, 4), exchange(3, 5);
    exchange(1, 4), exchange(3, 6);
    exchange(1, 2), exchange(3, 4), exchange(5, 6);
    HEADLOOM_MERGE(HEADLOOM_BY_1, 0xaa);
    merge_columns();
    HEADLOOM_MERGE(HEADLOOM_BY_3, 0xcc);
    HEADLOOM_HALVE(8, HEADLOOM_BY_1, 0xaa);
    merge_columns();
    // Of what is left only the first four columns matter: those of vectors n and n + 4 share one.
    __m256i first[4];
    for (int n = 0; n < 4; ++n) {
        const __m256i other = _mm256_permute2x128_si256(v[7 - n], v[3 - n], 0x31);
        first[n] =
            _mm256_max_epi32(_mm256_permute2x128_si256(v[n], v[n + 4], 0x20), HEADLOOM_BY_3(other));
    }
    for (int n = 0; n < 4; ++n) v[n] = first[n];
    HEADLOOM_HALVE(4, HEADLOOM_BY_2, 0xcc);
    HEADLOOM_HALVE(4, HEADLOOM_BY_1, 0xaa);
    HEADLOOM_HALVE(4, HEADLOOM_BY_4, 0xf0);
    exchange(0, 2), exchange(1, 3);
    exchange(0, 1), exchange(2, 3);
#undef HEADLOOM_EXCHANGE
#undef HEADLOOM_MERGE
#undef HEADLOOM_HALVE
#undef HEADLOOM_BY_1
#undef HEADLOOM_BY_2
#undef HEADLOOM_BY_3
#undef HEADLOOM_BY_4
    // Columns as rows.
    const __m256i a = _mm256_unpacklo_epi32(v[0], v[1]), b = _mm256_unpackhi_epi32(v[0], v[1]);
    const __m256i c = _mm256_unpacklo_epi32(v[2], v[3]), d = _mm256_unpackhi_epi32(v[2], v[3]);
    const __m256i sorted[4] = {_mm256_unpacklo_epi64(a, c), _mm256_unpackhi_epi64(a, c),
                               _mm256_unpacklo_epi64(b, d), _mm256_unpackhi_epi64(b, d)};
    __m256i place[4];
    __m256 found[4];
    for (int n = 0; n < 4; ++n) {
        place[n] = _mm256_min_epi32(_mm256_andnot_si256(sorted[n], places),
                                    _mm256_set1_epi32((int)number - 1));
        found[n] = _mm256_i32gather_ps(candidates, place[n], 4);
    }
    // Right if the scores fall, and as many as are kept are no lower than the last of them.
    const __m256i next = _mm256_and_si256(_mm256_add_epi32(lane, _mm256_set1_epi32(1)),
                                          _mm256_set1_epi32(lanes - 1));
    const auto not_below = [](__m256 x, __m256 bound) {
        return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(x, bound, _CMP_GE_OQ));
    };
    uint32_t falls = 0;
    float by_place[most_taken];
    for (int n = 0; n < 4; ++n) {
        const __m256 joined = _mm256_blend_ps(found[n], found[n < 3 ? n + 1 : n], 1);
        falls |= not_below(found[n], _mm256_permutevar8x32_ps(joined, next)) << (n * lanes);
        store(by_place + n * lanes, (Floats)found[n]);
    }
    const uint32_t pairs = (uint32_t)((1ull << (kept - 1)) - 1);
    const __m256 last = _mm256_set1_ps(by_place[kept - 1]);
    int64_t not_lower = 0;
    for (int n = 0; n < 8; ++n) not_lower += __builtin_popcount(not_below(own[n], last));
    if ((falls & pairs) != pairs || not_lower != kept) return false;
    for (int n = 0; n < 4; ++n) {
        const int64_t there = kept - n * lanes;
        if (there <= 0) break;
        const Integers its_keys = (Integers)_mm256_i32gather_epi32(candidate_keys, place[n], 4);
        store_part(scores + n * lanes, (Floats)found[n], there);
        store_part(keys + n * lanes, its_keys, there);
    }
    return true;
}
#endif

}  // namespace HEADLOOM_INSTRUCTION_SET
}  // namespace headloom
