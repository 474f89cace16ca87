// The last few candidates of a row, strongest first.
#pragma once

#include "network.h"
#include "ranking.h"
#include "strongest.h"

namespace headloom {
namespace HEADLOOM_INSTRUCTION_SET {

// More candidates than these are sorted, fewer ranked each against all.
constexpr int64_t most_ranked = 192;

// The ranks of candidates `first` to first + lanes: for each the number of candidates ahead of it,
// those with a higher score, and those before it with an equal one. The last vector is padded.
inline Integers ranks_of(const Candidates& row, int64_t first) {
    const Floats own = load(row.scores + first);
    int64_t other = 0;
    Integers ranks{};
    for (; other < first; ++other) ranks -= (Integers)(broadcast(row.scores[other]) >= own);
    for (; other < row.number && other < first + lanes; ++other) {
        const Floats x = broadcast(row.scores[other]);
        const Integers later = first_integers() > (int32_t)(other - first);
        ranks -= (Integers)(x > own) | ((Integers)(x == own) & later);
    }
    for (; other < row.number; ++other) ranks -= (Integers)(broadcast(row.scores[other]) > own);
    return ranks;
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
