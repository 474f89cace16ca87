// The last few candidates of a row, strongest first.
#pragma once

#include "network.h"
#include "ranking.h"
#include "strongest.h"

namespace headloom {
namespace HEADLOOM_INSTRUCTION_SET {

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
    const bool few = has_network(k);
    // To what is ordered together: cutting closer costs more than ordering a few more.
    const int64_t slack = (few ? most_sorted : round_up(k + 4, lanes)) - k;
    if (row.number > k + slack && k > 0) cut_candidates(row, k, slack);
    const int64_t number = row.number;
    const int64_t kept = smaller(number, k);
#if defined(__AVX512F__) || defined(__AVX2__)
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
#define HEADLOOM_VECTORS(n)                                                 \
    case n:                                                             \
        order_few<n>(row.scores, row.keys, number, kept, scores, keys); \
        return kept
    switch (vectors_of(number)) {
        HEADLOOM_VECTORS(1);
        HEADLOOM_VECTORS(2);
        HEADLOOM_VECTORS(3);
        HEADLOOM_VECTORS(4);
    }
#undef HEADLOOM_VECTORS
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

}  // namespace HEADLOOM_INSTRUCTION_SET
}  // namespace headloom
