// The last few candidates of a row, strongest first.
#pragma once

#include "ranking.h"
#include "strongest.h"

namespace weft {
namespace WEFT_INSTRUCTION_SET {

#if defined(__AVX512F__)
// As order_strongest, for candidates in `vectors` vectors, the last one padded. Each candidate
// meets all others while it is in a register.
template <int vectors>
inline void order_few(const float* candidates, const int32_t* candidate_keys, int64_t number,
                      int64_t kept, float* scores, int32_t* keys) {
    __m512 own[vectors];
    __m512i ranks[vectors];
    const __m512i one = _mm512_set1_epi32(1);
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) {
        own[v] = (__m512)load(candidates + v * lanes);
        ranks[v] = _mm512_setzero_si512();
    }
#pragma GCC unroll 4
    for (int block = 0; block < vectors; ++block) {
        const int64_t end = smaller(lanes, number - block * lanes);
        for (int64_t lane = 0; lane < end; ++lane) {
            const __m512 x = _mm512_set1_ps(candidates[block * lanes + lane]);
            const __mmask16 later = (__mmask16)(0xfffeu << lane);
#pragma GCC unroll 4
            for (int v = 0; v < vectors; ++v) {
                // Of equal scores the one of the lower key, which comes first, is ahead.
                const __mmask16 ahead =
                    v > block ? _mm512_cmp_ps_mask(x, own[v], _CMP_GE_OQ)
                    : v < block
                        ? _mm512_cmp_ps_mask(x, own[v], _CMP_GT_OQ)
                        : (__mmask16)(_mm512_cmp_ps_mask(x, own[v], _CMP_GT_OQ) |
                                      _mm512_mask_cmp_ps_mask(later, x, own[v], _CMP_EQ_OQ));
                ranks[v] = _mm512_mask_add_epi32(ranks[v], ahead, ranks[v], one);
            }
        }
    }
    // Each to its place, those past the last one too: stores of single numbers take fewer cycles
    // than scattering instructions, and need no branch.
    int32_t places[vectors * lanes];
    float ordered_scores[vectors * lanes];
    int32_t ordered_keys[vectors * lanes];
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) store(places + v * lanes, (Integers)ranks[v]);
    for (int64_t n = 0; n < number; ++n) {
        ordered_scores[places[n]] = candidates[n];
        ordered_keys[places[n]] = candidate_keys[n];
    }
    std::memcpy(scores, ordered_scores, kept * sizeof(float));
    std::memcpy(keys, ordered_keys, kept * sizeof(int32_t));
}
#endif

// The network below orders at most so many candidates, and gives at most so many.
constexpr int64_t most_sorted = 64, most_taken = 32;

#if defined(__AVX512F__)
// As order_strongest, by a network that sorts four vectors of whole numbers: the upper bits of a
// score in its order, and in the lowest six its place, so that of equal ones the lower key is
// ahead. Returns false, with nothing done, where the bits that are left out matter.
//
// The columns of the four vectors are sorted first; then neighbours of 1, 2, 4 and 8 columns are
// merged, the element e of a group being in vector e % 4 of its column e / 4.
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
#define WEFT_MERGE(permuted, first)                                                \
    {                                                                              \
        const __m512i turned[4] = {permuted(v[3]), permuted(v[2]), permuted(v[1]), \
                                   permuted(v[0])};                                \
        for (int n = 0; n < 4; ++n) exchange_lanes(n, turned[n], first);           \
    }
#define WEFT_HALVE(permuted, first) \
    for (int n = 0; n < 4; ++n) exchange_lanes(n, permuted(v[n]), first);
    const __m512i across_4 = _mm512_xor_si512(lane, _mm512_set1_epi32(4));
    const __m512i across_7 = _mm512_xor_si512(lane, _mm512_set1_epi32(7));
    const __m512i across_15 = _mm512_xor_si512(lane, _mm512_set1_epi32(15));
#define WEFT_BY_1(x) _mm512_shuffle_epi32(x, (_MM_PERM_ENUM)0xb1)
#define WEFT_BY_2(x) _mm512_shuffle_epi32(x, (_MM_PERM_ENUM)0x4e)
#define WEFT_BY_3(x) _mm512_shuffle_epi32(x, (_MM_PERM_ENUM)0x1b)
#define WEFT_BY_4(x) _mm512_permutexvar_epi32(across_4, x)
#define WEFT_BY_7(x) _mm512_permutexvar_epi32(across_7, x)
#define WEFT_BY_15(x) _mm512_permutexvar_epi32(across_15, x)
    exchange(0, 1);
    exchange(2, 3);
    exchange(0, 2);
    exchange(1, 3);
    exchange(1, 2);
    WEFT_MERGE(WEFT_BY_1, 0x5555);
    merge_columns();
    WEFT_MERGE(WEFT_BY_3, 0x3333);
    WEFT_HALVE(WEFT_BY_1, 0x5555);
    merge_columns();
    WEFT_MERGE(WEFT_BY_7, 0x0f0f);
    WEFT_HALVE(WEFT_BY_2, 0x3333);
    WEFT_HALVE(WEFT_BY_1, 0x5555);
    merge_columns();
    WEFT_MERGE(WEFT_BY_15, 0xffff);  // of these, the first half alone
    WEFT_HALVE(WEFT_BY_4, 0x0f0f);
    WEFT_HALVE(WEFT_BY_2, 0x3333);
    WEFT_HALVE(WEFT_BY_1, 0x5555);
    merge_columns();
#undef WEFT_MERGE
#undef WEFT_HALVE
#undef WEFT_BY_1
#undef WEFT_BY_2
#undef WEFT_BY_3
#undef WEFT_BY_4
#undef WEFT_BY_7
#undef WEFT_BY_15
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
#endif

// More candidates than these are sorted, fewer ranked each against all.
constexpr int64_t most_ranked = 192;

// The ranks of candidates `first` to first + lanes: for each the number of candidates ahead of it,
// those with a higher score, and those before it with an equal one. The last vector is padded.
inline Integers ranks_of(const Candidates& row, int64_t first) {
    const Floats own = load(row.scores + first);
    int64_t other = 0;
#if defined(__AVX512F__)
    const __m512i one = _mm512_set1_epi32(1);
    __m512i ranks = _mm512_setzero_si512();
    const auto count = [&](__mmask16 ahead) {
        ranks = _mm512_mask_add_epi32(ranks, ahead, ranks, one);
    };
    for (; other < first; ++other)
        count(_mm512_cmp_ps_mask(_mm512_set1_ps(row.scores[other]), (__m512)own, _CMP_GE_OQ));
    for (; other < row.number && other < first + lanes; ++other) {
        const __m512 x = _mm512_set1_ps(row.scores[other]);
        const __mmask16 later = (__mmask16)(0xfffeu << (other - first));
        count(_mm512_cmp_ps_mask(x, (__m512)own, _CMP_GT_OQ) |
              (_mm512_cmp_ps_mask(x, (__m512)own, _CMP_EQ_OQ) & later));
    }
    for (; other < row.number; ++other)
        count(_mm512_cmp_ps_mask(_mm512_set1_ps(row.scores[other]), (__m512)own, _CMP_GT_OQ));
    return (Integers)ranks;
#else
    Integers ranks{};
    for (; other < first; ++other) ranks -= (Integers)(broadcast(row.scores[other]) >= own);
    for (; other < row.number && other < first + lanes; ++other) {
        const Floats x = broadcast(row.scores[other]);
        const Integers later = first_integers() > (int32_t)(other - first);
        ranks -= (Integers)(x > own) | ((Integers)(x == own) & later);
    }
    for (; other < row.number; ++other) ranks -= (Integers)(broadcast(row.scores[other]) > own);
    return ranks;
#endif
}

// Order the row's candidates: its strongest k, strongest first, ties by key, to `scores` and
// `keys`. Returns how many there are, at most k.
inline int64_t order_strongest(Candidates& row, int64_t k, float* scores, int32_t* keys) {
#if defined(__AVX512F__)
    const bool few = k <= most_taken;
#else
    const bool few = false;
#endif
    // To what is ordered together: cutting closer costs more than ordering a few more.
    const int64_t slack = (few ? most_sorted : round_up(k + 4, lanes)) - k;
    if (row.number > k + slack && k > 0) cut_candidates(row, k, slack);
    const int64_t number = row.number;
    const int64_t kept = smaller(number, k);
#if defined(__AVX512F__)
    if (few && kept > 0 && number <= most_sorted &&
        sort_few(row.scores, row.keys, number, kept, scores, keys))
        return kept;
#endif
    if (number > most_ranked) {
        sort_strongest(row.scores, row.keys, number, kept, scores, keys);
        return kept;
    }
    pad_last_vector(row);
#if defined(__AVX512F__)
#define WEFT_VECTORS(n)                                                 \
    case n:                                                             \
        order_few<n>(row.scores, row.keys, number, kept, scores, keys); \
        return kept
    switch (vectors_of(number)) {
        WEFT_VECTORS(1);
        WEFT_VECTORS(2);
        WEFT_VECTORS(3);
        WEFT_VECTORS(4);
    }
#undef WEFT_VECTORS
#endif
    for (int64_t first = 0; first < number; first += lanes) {
        const int64_t end = smaller(lanes, number - first);
        int32_t places[lanes];
        store(places, ranks_of(row, first));
        for (int64_t lane = 0; lane < end; ++lane) {
            if (places[lane] >= kept) continue;
            scores[places[lane]] = row.scores[first + lane];
            keys[places[lane]] = row.keys[first + lane];
        }
    }
    return kept;
}

}  // namespace WEFT_INSTRUCTION_SET
}  // namespace weft
