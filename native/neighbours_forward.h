// Attention over the neighbours of each target: scores, softmax and weighted sum, block by block.
#pragma once

#include "neighbours_block.h"

namespace headloom {
namespace HEADLOOM_INSTRUCTION_SET {

template <NeighbourScore score, int depth>
struct NeighboursForward : Neighbourhood<score, depth> {
    using Base = Neighbourhood<score, depth>;
    using Base::Base, Base::call, Base::layout, Base::scores, Base::weights, Base::largest;
    using Base::sums, Base::factors, Base::by_head, Base::value_row, Base::value_stride;
    using Score = Columns<depth>;

    void row(int64_t target) {
        const int64_t pattern = layout.vectors * lanes;
        Base::clear(value_row, call.heads * value_stride);
        Base::clear(sums, pattern);
        for (int64_t n = 0; n < pattern; ++n) largest[n] = -infinity;
        const int64_t first = call.row_starts[target], end = call.row_starts[target + 1];
        for (int64_t place = first; place < end; place += block_edges)
            block(target, place, smaller(block_edges, end - place), place != first);
        finish(target);
    }

    void block(int64_t target, int64_t first, int64_t count, bool again) {
        EdgeBlock edges;
        edges.count = count;
        for (int64_t n = 0; n < count; ++n) {
            edges.targets[n] = target;
            edges.sources[n] = call.columns[first + n];
            edges.places[n] = first + n;
        }
        if constexpr (score != NeighbourScore::additive)
            prefetch_row(Base::source_row(edges.sources[0]), call.heads * call.depth);
        Base::raw_scores(edges, call.target_terms, call.heads);
        raise_largest(count, again);
        exponentials(count);
        for (int64_t n = 0; n < count; ++n) {
            const int64_t place = first + n;
            if (place + edges_ahead < call.edges_count) {
                const int64_t next = call.columns[place + edges_ahead];
                prefetch_row(call.values + next * call.heads * call.value_depth,
                             call.heads * call.value_depth);
            }
            float* weight = weights + n * layout.padded;
            if (call.scores)
                for (int64_t head = 0; head < call.heads; ++head)
                    call.scores[place * call.heads + head] = scores[n * layout.padded + head];
            if (call.kept) Base::drop(weight, place);
            Base::add_row(value_row, weight,
                          call.values + edges.sources[n] * call.heads * call.value_depth);
        }
    }

    // The largest scores, finished here, with those of another block, and what was summed before
    // made less.
    void raise_largest(int64_t count, bool again) {
        float* before = factors;
        for (int64_t head = 0; again && head < call.heads; ++head) before[head] = largest[head];
        const int64_t filled = layout.filled(count);
        for (int64_t t = 0; t < filled; ++t) {
            store(scores + t * lanes, Base::finished(load(scores + t * lanes)));
            // Past the edges minus infinity, of which a slope of 0 would make NaN: not before.
            if (t + 1 == filled) Base::fill_rest(scores, count, -infinity);
            float* to = largest + t % layout.vectors * lanes;
            store(to, maximum(load(to), load(scores + t * lanes)));
        }
        for (int64_t head = 0; head < call.heads; ++head)
            by_head[head] = layout.fold(largest, head, larger_of);
        if (again) {
            for (int64_t head = 0; head < call.heads; ++head) {
                // (Where both are minus infinity nothing was summed.)
                const float most = by_head[head] == -infinity ? 0.0f : by_head[head];
                before[head] = exponential(broadcast(before[head] - most))[0];
                for (int64_t c = 0; c < value_stride; ++c)
                    value_row[head * value_stride + c] *= before[head];
            }
            for (int64_t n = 0; n < layout.vectors * lanes; ++n)
                if (n % layout.padded < call.heads) sums[n] *= before[n % layout.padded];
        }
        layout.repeat(by_head, largest);
    }

    void exponentials(int64_t count) {
        for (int64_t t = 0; t < layout.filled(count); ++t) {
            const int64_t repeat = t % layout.vectors * lanes;
            const Floats most = load(largest + repeat);
            const Floats shift = most == -infinity ? Floats{} : most;
            const Floats weight = exponential(load(scores + t * lanes) - shift);
            store(weights + t * lanes, weight);
            store(sums + repeat, load(sums + repeat) + weight);
        }
    }

    void finish(int64_t target) {
        for (int64_t head = 0; head < call.heads; ++head) {
            const float all = layout.fold(sums, head, [](float a, float b) { return a + b; });
            const float inverse = all == 0.0f ? 0.0f : 1.0f / all, most = largest[head];
            call.shift[target * call.heads + head] = most == -infinity ? 0.0f : most;
            call.inverse[target * call.heads + head] = inverse;
            float* to = call.output + (target * call.heads + head) * call.value_depth;
            for (int64_t c = 0; c < call.value_depth; ++c)
                to[c] = value_row[head * value_stride + c] * inverse;
        }
    }
};

}  // namespace HEADLOOM_INSTRUCTION_SET
}  // namespace headloom
