// Pieces of float32 matrices, cut into three bfloat16 (pairs.h) a few vectors at a time, so that
// the matrix unit can multiply in between.
#pragma once

#include "pairs.h"

#if defined(HEADLOOM_HAS_PAIRS)

namespace headloom {
namespace HEADLOOM_INSTRUCTION_SET {

constexpr int64_t cuts_cells = 3 * tile_cells;  // of a tile and its three cuts
// A piece is cut in so many portions.
constexpr int portions = 8;

// What the first half of the portions leave for the second.
struct alignas(64) HalfTurned {
    float low[16][16], high[16][16];
};

inline __mmask16 first_lanes(int64_t count) {
    return count >= 16 ? 0xffff : count <= 0 ? 0 : (__mmask16)((1u << count) - 1);
}

inline Floats load_lanes(const float* from, __mmask16 lanes_wanted) {
    return (Floats)_mm512_maskz_loadu_ps(lanes_wanted, from);
}

// Four vectors as the columns of 4 x 4 squares: within each 128 bits, or of these.
template <bool within>
inline void transpose_four(Floats (&x)[4]) {
    const __m512 a = (__m512)x[0], b = (__m512)x[1], c = (__m512)x[2], d = (__m512)x[3];
    if (within) {
        const __m512d low = _mm512_castps_pd(_mm512_unpacklo_ps(a, b));
        const __m512d high = _mm512_castps_pd(_mm512_unpackhi_ps(a, b));
        const __m512d next_low = _mm512_castps_pd(_mm512_unpacklo_ps(c, d));
        const __m512d next_high = _mm512_castps_pd(_mm512_unpackhi_ps(c, d));
        x[0] = (Floats)_mm512_unpacklo_pd(low, next_low);
        x[1] = (Floats)_mm512_unpackhi_pd(low, next_low);
        x[2] = (Floats)_mm512_unpacklo_pd(high, next_high);
        x[3] = (Floats)_mm512_unpackhi_pd(high, next_high);
        return;
    }
    const __m512 even = _mm512_shuffle_f32x4(a, b, 0x88), odd = _mm512_shuffle_f32x4(a, b, 0xdd);
    const __m512 next_even = _mm512_shuffle_f32x4(c, d, 0x88);
    const __m512 next_odd = _mm512_shuffle_f32x4(c, d, 0xdd);
    x[0] = (Floats)_mm512_shuffle_f32x4(even, next_even, 0x88);
    x[1] = (Floats)_mm512_shuffle_f32x4(odd, next_odd, 0x88);
    x[2] = (Floats)_mm512_shuffle_f32x4(even, next_even, 0xdd);
    x[3] = (Floats)_mm512_shuffle_f32x4(odd, next_odd, 0xdd);
}

// Sixteen rows or columns of a factor by a chunk of 32 terms.
struct Piece {
    const float* from;
    int64_t row;         // from one run of numbers to the next
    int64_t runs;        // that there are, from here on
    bool along, turned;  // runs are of successive terms; and they are to be columns
    __mmask16 lanes[2];  // of runs along: of the chunk's halves; else of a run
    int32_t* to;

    // Vectors r of the lower and of the upper half; 0 past the end.
    void load_halves(int r, Floats& low, Floats& high) const {
        const float* start = from + r * row;
        low = load_lanes(start, r < runs ? lanes[0] : 0);
        high = along ? load_lanes(start + 16, r < runs ? lanes[1] : 0)
                     : load_lanes(start + 16 * row, r + 16 < runs ? lanes[1] : 0);
    }

    void cut(int portion, HalfTurned& half) const {
        if (turned) return turn(portion, half);
        for (int r = 2 * portion; r < 2 * portion + 2; ++r) {
            Floats low, high;
            load_halves(r, low, high);
            store_pairs<3>(low, high, to + r * 16);
        }
    }

    // Where runs are to be columns: four portions turn squares of 4 x 4, four what they make.
    void turn(int portion, HalfTurned& half) const {
        Floats low[4], high[4];
        if (portion < 4) {
            for (int r = 0; r < 4; ++r) load_halves(portion * 4 + r, low[r], high[r]);
            transpose_four<true>(low);
            transpose_four<true>(high);
            for (int r = 0; r < 4; ++r) {
                store(half.low[r * 4 + portion], low[r]);
                store(half.high[r * 4 + portion], high[r]);
            }
            return;
        }
        portion -= 4;
        for (int r = 0; r < 4; ++r) {
            low[r] = load(half.low[portion * 4 + r]);
            high[r] = load(half.high[portion * 4 + r]);
        }
        transpose_four<false>(low);
        transpose_four<false>(high);
        for (int r = 0; r < 4; ++r) store_pairs<3>(low[r], high[r], to + (r * 4 + portion) * 16);
    }

    // Asks for what a portion's share of the memory holds.
    void fetch(int portion) const {
        const int count = along ? 2 : 4;
        for (int r = portion * count; r < portion * count + count; ++r) {
            __builtin_prefetch(from + r * row);
            if (along) __builtin_prefetch(from + r * row + 16);
        }
    }
};

}  // namespace HEADLOOM_INSTRUCTION_SET
}  // namespace headloom

#endif
