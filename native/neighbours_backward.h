// Gradients of attention over neighbours. Scores and weights are computed again.
//
// With P the weights, m what dropout multiplies them by, O the output and dO its gradient:
//
//     dP_ij = m_ij dO_i . v_j       dS_ij = P_ij (dP_ij - dO_i . O_i)       dv_j = sum_i m P dO_i
//
// Column by column, each source reads dO of its targets once, which gives dS, and the gradients of
// all that belongs to the source. Row by row, each target sums what dS gives it.
#pragma once

#include "neighbours_block.h"

namespace headloom {
namespace HEADLOOM_INSTRUCTION_SET {

// Of each target: its term, shift, inverse and dO . O, one after the other.
inline void gather_state(const NeighbourCall& call, const NeighbourGradients& to, int64_t target) {
    const int64_t heads = call.heads, columns = heads * call.value_depth;
    float* state = to.state + target * 4 * heads;
    for (int64_t head = 0; head < heads; ++head) {
        const int64_t row = target * heads + head;
        state[head] = call.target_terms ? call.target_terms[row] : 0.0f;
        state[heads + head] = call.shift[row];
        state[2 * heads + head] = call.inverse[row];
    }
    const float *by_output = to.by_output + target * columns, *output = call.output;
    for (int64_t head = 0; head < heads; ++head) {
        Floats products{};
        for (int64_t c = 0; c < call.value_depth; c += lanes) {
            const int64_t at = head * call.value_depth + c, left = call.value_depth - c;
            products +=
                load_part(by_output + at, left) * load_part(output + target * columns + at, left);
        }
        state[3 * heads + head] = sum(products);
    }
}

template <NeighbourScore score, int depth>
struct NeighboursBackward : Neighbourhood<score, depth> {
    using Base = Neighbourhood<score, depth>;
    using Base::call, Base::layout, Base::scores, Base::weights, Base::by_weight, Base::shifts;
    using Base::inverses, Base::deltas, Base::sums, Base::value_row, Base::value_stride;
    using Base::key_row, Base::stride, Base::vector_row, Base::by_head;
    using Score = Columns<depth>;
    using Vector = typename Score::Vector;

    NeighboursBackward(const NeighbourCall& call, const NeighbourGradients& to, char* memory)
        : Base(call, memory), to(to) {}

    void columns(int64_t piece) {
        Base::clear(vector_row, call.heads * stride);
        const Range range = nodes_of_piece(call.column_starts, call.sources, piece, to.pieces);
        for (int64_t source = range.first; source < range.end; ++source) column(source);
        if (to.vector)
            Base::write_row(vector_row, call.heads, call.depth, stride,
                            to.vector + piece * call.heads * call.depth);
    }

    void column(int64_t source) {
        Base::clear(value_row, call.heads * value_stride);
        Base::clear(key_row, call.heads * stride);
        Base::clear(sums, layout.vectors * lanes);
        const int64_t first = call.column_starts[source], end = call.column_starts[source + 1];
        for (int64_t at = first; at < end; at += block_edges)
            column_block(source, at, smaller(block_edges, end - at));
        if (to.source_terms)
            for (int64_t head = 0; head < call.heads; ++head)
                to.source_terms[source * call.heads + head] =
                    layout.fold(sums, head, [](float a, float b) { return a + b; });
        if (to.keys && to.keys == to.values) {
            for (int64_t n = 0; n < call.heads * stride; ++n) value_row[n] += key_row[n];
        } else if (to.keys) {
            Base::write_row(key_row, call.heads, call.depth, stride,
                            to.keys + source * call.heads * call.depth);
        }
        Base::write_row(value_row, call.heads, call.value_depth, value_stride,
                        to.values + source * call.heads * call.value_depth);
    }

    void column_block(int64_t source, int64_t first, int64_t count) {
        EdgeBlock edges;
        edges.count = count;
        for (int64_t n = 0; n < count; ++n) {
            edges.targets[n] = call.rows[first + n];
            edges.sources[n] = source;
            edges.places[n] = call.places[first + n];
            const float* state = to.state + edges.targets[n] * 4 * call.heads;
            copy_heads(state + call.heads, call.heads, shifts + n * layout.padded);
            copy_heads(state + 2 * call.heads, call.heads, inverses + n * layout.padded);
            copy_heads(state + 3 * call.heads, call.heads, deltas + n * layout.padded);
        }
        Base::raw_scores(edges, to.state, 4 * call.heads);
        Base::fill_rest(scores, count, 0.0f);
        Base::fill_rest(by_weight, count, 0.0f);
        Base::fill_rest(shifts, count, 0.0f);
        Base::fill_rest(inverses, count, 0.0f);
        Base::fill_rest(deltas, count, 0.0f);
        for (int64_t t = 0; t < layout.filled(count) * lanes; t += lanes) {
            const Floats score_now = Base::finished(load(scores + t));
            store(weights + t, exponential(score_now - load(shifts + t)) * load(inverses + t));
        }
        for (int64_t n = 0; n < count; ++n) by_values(edges, n, first + n);
        by_scores(count);
        for (int64_t n = 0; n < count; ++n) {
            float* by_score = by_weight + n * layout.padded;
            float* kept = to.scores + edges.places[n] * call.heads;
            for (int64_t head = 0; head < call.heads; ++head) kept[head] = by_score[head];
            if constexpr (score != NeighbourScore::additive) by_keys(edges, n, by_score);
        }
    }

    // dP of an edge's heads, and what its weights give to the source's values.
    void by_values(const EdgeBlock& edges, int64_t n, int64_t at) {
        const int64_t wide = call.heads * call.value_depth;
        if (at + edges_ahead < call.edges_count) {
            const int64_t next = call.rows[at + edges_ahead];
            prefetch_row(to.by_output + next * wide, wide);
            __builtin_prefetch(to.state + next * 4 * call.heads);
        }
        const float* by_output = to.by_output + edges.targets[n] * wide;
        const float* value = call.values + edges.sources[n] * wide;
        float *weight = weights + n * layout.padded, *by = by_weight + n * layout.padded;
        const int64_t vectors = Score::vectors(call.value_depth);
        for (int64_t head = 0; head < call.heads; ++head) {
            const int64_t from = head * call.value_depth;
            Vector products{};
            for (int64_t v = 0; v < vectors; ++v)
                products += Score::load(by_output + from, v, call.value_depth) *
                            Score::load(value + from, v, call.value_depth);
            by[head] = Score::total(products);
        }
        if (!call.kept) return Base::add_row(value_row, weight, by_output);
        float* left = by_head;
        for (int64_t head = 0; head < call.heads; ++head) left[head] = weight[head];
        Base::drop(left, edges.places[n]);
        Base::drop(by, edges.places[n]);
        Base::add_row(value_row, left, by_output);
    }

    // From dP to the gradients by scores: of additive ones, by what their LeakyReLU takes.
    void by_scores(int64_t count) {
        for (int64_t t = 0; t < layout.filled(count); ++t) {
            const int64_t at = t * lanes;
            Floats by = load(weights + at) * (load(by_weight + at) - load(deltas + at));
            if constexpr (score == NeighbourScore::additive) {
                by *= leaky_slope<Floats>(load(scores + at), call.slope);
                float* all = sums + t % layout.vectors * lanes;
                store(all, load(all) + by);
            }
            store(by_weight + at, by);
        }
    }

    // What an edge's scores give to the source's keys and to the vector.
    void by_keys(const EdgeBlock& edges, int64_t n, const float* by_score) {
        const float* target = Base::target_row(edges.targets[n]);
        const float* source = Base::source_row(edges.sources[n]);
        for (int64_t head = 0; head < call.heads; ++head) {
            const int64_t from = head * call.depth;
            const float by =
                score == NeighbourScore::dot ? by_score[head] * call.scale : by_score[head];
            for (int64_t v = 0; v < Score::vectors(call.depth); ++v) {
                const Vector q = Score::load(target + from, v, call.depth);
                if constexpr (score == NeighbourScore::dot) {
                    add(key_row + head * stride, v, q * by);
                } else {
                    const Vector z = q + Score::load(source + from, v, call.depth);
                    const Vector a = Score::load(call.vector + from, v, call.depth);
                    add(key_row + head * stride, v, a * leaky_slope<Vector>(z, call.slope) * by);
                    add(vector_row + head * stride, v, leaky<Vector>(z, call.slope) * by);
                }
            }
        }
    }

    void row(int64_t target) {
        const int64_t first = call.row_starts[target], end = call.row_starts[target + 1];
        if constexpr (score == NeighbourScore::additive) {
            for (int64_t head = 0; head < call.heads; head += lanes) {
                const int64_t left = call.heads - head;
                Floats all{};
                for (int64_t place = first; place < end; ++place)
                    all += load_part(to.scores + place * call.heads + head, left);
                store_part(to.target_terms + target * call.heads + head, all, left);
            }
        } else {
            Base::clear(key_row, call.heads * stride);
            for (int64_t place = first; place < end; ++place) by_query(target, place);
            Base::write_row(key_row, call.heads, call.depth, stride,
                            to.queries + target * call.heads * call.depth);
        }
    }

    void by_query(int64_t target, int64_t place) {
        const int64_t wide = call.heads * call.depth;
        if (place + edges_ahead < call.edges_count)
            prefetch_row(Base::source_row(call.columns[place + edges_ahead]), wide);
        const float* source = Base::source_row(call.columns[place]);
        const float* query = score == NeighbourScore::dot ? nullptr : Base::target_row(target);
        for (int64_t head = 0; head < call.heads; ++head) {
            const int64_t from = head * call.depth;
            const float by = to.scores[place * call.heads + head];
            for (int64_t v = 0; v < Score::vectors(call.depth); ++v) {
                const Vector k = Score::load(source + from, v, call.depth);
                if constexpr (score == NeighbourScore::dot) {
                    add(key_row + head * stride, v, k * (by * call.scale));
                } else {
                    const Vector z = k + Score::load(query + from, v, call.depth);
                    const Vector a = Score::load(call.vector + from, v, call.depth);
                    add(key_row + head * stride, v, a * leaky_slope<Vector>(z, call.slope) * by);
                }
            }
        }
    }

    void add(float* row, int64_t vector, Vector x) const {
        Score::store(row, vector, Score::load(row, vector, stride) + x, stride);
    }

    const NeighbourGradients& to;
};

}  // namespace HEADLOOM_INSTRUCTION_SET
}  // namespace headloom
