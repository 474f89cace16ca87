// The strongest scores of many short rows at once: each lane is a row, each vector a key, so that
// sorting them needs neither branches nor exchanges across lanes.
#pragma once

#include "choose.h"
#include "workspace.h"

namespace headloom {
namespace HEADLOOM_INSTRUCTION_SET {

// Keys that are sorted together, and as many edges of a row as there may be.
constexpr int64_t sorted_keys = short_edges;
static_assert(short_keys % sorted_keys == 0, "whole groups");

// A rank: how far a score lies below the highest of its row, as a negative float whose lowest bits
// are its place, so that of equal scores the lower key is ahead. Comparing floats takes AVX-512
// half the time that whole numbers do. All are one exponent further from 0, where small numbers are
// not taken for it, and none is infinite but those of no key.
constexpr int32_t rank_places = (int32_t)short_keys - 1;
static_assert((short_keys & rank_places) == 0, "a power of two");
constexpr float most_rank = 1e38f, most_float = 3.4028234663852886e38f;
constexpr int32_t one_exponent = 1 << 23;

inline Floats rank_of(Floats score, Floats highest, int32_t key) {
    // (Neither minus infinity nor NaN is an edge: they are last, and seen by their scores.)
    const Integers below = (Integers)maximum(score - highest, broadcast(-most_rank));
    return (Floats)(((below & ~rank_places) | (INT32_MIN | key)) + one_exponent);
}
inline Integers place_of(Floats rank) { return (Integers)rank & rank_places; }

struct ColumnSpace {
    float* ranks;  // (keys in whole groups, lanes)
    // The strongest in order, whole vectors of them, (sorted_keys, lanes); past the last of a row
    // minus infinity, -1 and 0.
    float* scores;
    int32_t* keys;  // their places
    float* weights;
};

inline ColumnSpace lay_out_columns(int64_t keys, Workspace& space) {
    const int64_t size = sorted_keys * lanes;
    return {space.take<float>(round_up(keys, sorted_keys) * lanes), space.take<float>(size),
            space.take<int32_t>(size), space.take<float>(size)};
}

// 16 vectors in registers.
struct Sixteen {
    Floats v[16];

    explicit Sixteen(const float* from) {
#pragma GCC unroll 16
        for (int n = 0; n < 16; ++n) v[n] = load(from + n * lanes);
    }
    void write(float* to) const {
#pragma GCC unroll 16
        for (int n = 0; n < 16; ++n) store(to + n * lanes, v[n]);
    }
    // The larger of two to the first place.
    void order(int a, int b) {
        const Floats more = maximum(v[a], v[b]);
        v[b] = minimum(v[a], v[b]);
        v[a] = more;
    }
};

// Sort 16 vectors lane by lane, the largest first: Green's network of 60 comparisons (Knuth, The
// Art of Computer Programming, volume 3, section 5.3.4).
inline void sort_sixteen(float* ranks) {
    Sixteen s(ranks);
#pragma GCC unroll 4
    for (int distance = 1; distance < 16; distance *= 2)
#pragma GCC unroll 16
        for (int n = 0; n < 16; ++n)
            if (!(n & distance)) s.order(n, n + distance);
    s.order(5, 10), s.order(6, 9), s.order(3, 12), s.order(13, 14), s.order(4, 8);
    s.order(7, 11), s.order(1, 2);
    s.order(1, 4), s.order(7, 13), s.order(2, 8), s.order(11, 14), s.order(5, 6), s.order(9, 10);
    s.order(2, 4), s.order(11, 13), s.order(3, 8), s.order(7, 12);
    s.order(6, 8), s.order(10, 12), s.order(3, 5), s.order(7, 9);
    s.order(3, 4), s.order(5, 6), s.order(7, 8), s.order(9, 10), s.order(11, 12);
    s.order(6, 7), s.order(8, 9);
    s.write(ranks);
}

// Sort 16 vectors that rise to one place and fall after it, or fall and rise.
inline void sort_bitonic_sixteen(float* ranks) {
    Sixteen s(ranks);
#pragma GCC unroll 4
    for (int distance = 8; distance > 0; distance /= 2)
#pragma GCC unroll 16
        for (int n = 0; n < 16; ++n)
            if (!(n & distance)) s.order(n, n + distance);
    s.write(ranks);
}

inline void order_vectors(float* first, float* second) {
    const Floats a = load(first), b = load(second);
    store(first, maximum(a, b));
    store(second, minimum(a, b));
}

// Sort a group of 32 vectors.
inline void sort_group(float* ranks) {
    sort_sixteen(ranks);
    sort_sixteen(ranks + 16 * lanes);
    // The second half backwards: what stays in it is then in no order, but still rises and falls.
    for (int n = 0; n < 8; ++n) {
        float *a = ranks + n * lanes, *b = ranks + (15 - n) * lanes;
        const Floats c = load(a + 16 * lanes), d = load(b + 16 * lanes);
        const Floats one = load(a), other = load(b);
        store(a, maximum(one, d));
        store(b + 16 * lanes, minimum(one, d));
        store(b, maximum(other, c));
        store(a + 16 * lanes, minimum(other, c));
    }
    sort_bitonic_sixteen(ranks);
    sort_bitonic_sixteen(ranks + 16 * lanes);
}

// The first 32 of two sorted groups, in place of the first group.
inline void merge_groups(float* ranks, const float* more) {
    for (int n = 0; n < sorted_keys; ++n)
        store(ranks + n * lanes,
              maximum(load(ranks + n * lanes), load(more + (sorted_keys - 1 - n) * lanes)));
    for (int n = 0; n < 16; ++n) order_vectors(ranks + n * lanes, ranks + (16 + n) * lanes);
    sort_bitonic_sixteen(ranks);
    sort_bitonic_sixteen(ranks + 16 * lanes);
}

// Sort the ranks of so many keys, as far as `sorted_keys` of them matter, and what pads them.
inline void sort_ranks(float* ranks, int64_t keys) {
    const int64_t end = round_up(keys, keys <= 16 ? 16 : sorted_keys);
    for (int64_t j = keys; j < end; ++j) store(ranks + j * lanes, broadcast(-infinity));
    if (keys <= 16) return sort_sixteen(ranks);
    for (int64_t j = 0; j < end; j += sorted_keys) {
        sort_group(ranks + j * lanes);
        if (j > 0) merge_groups(ranks, ranks + j * lanes);
    }
}

// The `edges` strongest scores of a vector of rows, in order, and their places, to `space`; no more
// than there are keys. Element [key * panel_columns + lane] is a score. Returns the lanes, one bit
// each, where the bits that ranks leave out matter: what they have is wrong.
inline unsigned strongest_of_columns(const float* scores, int64_t keys, Floats highest,
                                     int64_t edges, const ColumnSpace& space) {
    for (int64_t j = 0; j < keys; ++j)
        store(space.ranks + j * lanes,
              rank_of(load(scores + j * panel_columns), highest, (int32_t)j));
    sort_ranks(space.ranks, keys);
    Integers right = broadcast(-1), found_edges{}, not_lower{};
    Floats last = broadcast(infinity);
    for (int64_t r = 0; r < edges; ++r) {
        const Integers place = place_of(load(space.ranks + r * lanes));
        const Floats score = gather(scores, place * panel_columns + first_integers());
        const Integers real = score > -infinity;
        const Floats found = real ? score : broadcast(-infinity);
        right &= last >= found;
        last = found;
        found_edges -= real;
        store(space.scores + r * lanes, found);
        store(space.keys + r * lanes, place | ~real);
    }
    for (int64_t r = edges; r < round_up(edges, lanes); ++r) {
        store(space.scores + r * lanes, broadcast(-infinity));
        store(space.keys + r * lanes, broadcast(-1));
    }
    // Right if the scores fall, and as many as were found are no lower than the last of them.
    const Floats least = maximum(last, broadcast(-most_float));
    for (int64_t j = 0; j < keys; ++j)
        not_lower -= (Integers)(load(scores + j * panel_columns) >= least);
    right &= not_lower == found_edges;
    return lanes_above(right ? Floats{} : broadcast(1.0f), Floats{});
}

// Element [place * lanes + lane] of some columns to `kept` numbers of each row; past `edges` of
// them, in whole vectors, `empty`.
inline void write_columns(const float* columns, int64_t edges, int64_t kept, int64_t rows,
                          Floats empty, float* to) {
    for (int64_t first = 0; first < kept; first += lanes) {
        Floats square[lanes];
#pragma GCC unroll 16
        for (int n = 0; n < lanes; ++n) square[n] = empty;
        if (first < edges) {
#pragma GCC unroll 16
            for (int n = 0; n < lanes; ++n) square[n] = load(columns + (first + n) * lanes);
            transpose(square);
        }
        if (rows == lanes && kept - first >= lanes) {
#pragma GCC unroll 16
            for (int n = 0; n < lanes; ++n) store(to + n * kept + first, square[n]);
            continue;
        }
        for (int64_t row = 0; row < rows; ++row)
            store_part(to + row * kept + first, square[row], kept - first);
    }
}

}  // namespace HEADLOOM_INSTRUCTION_SET
}  // namespace headloom
