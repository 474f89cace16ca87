// The few rows that meet a piece of the keys, every query of some heads that share them: where they
// lie, how they begin, what a piece leaves of them and how pieces are joined. few_pass.h lets the
// keys pass.
#pragma once

#include "few.h"
#include "few_products.h"
#include "few_spread.h"
#include "few_tiles.h"
#include "finish.h"
#include "forward.h"
#include "stripe_pairs.h"

namespace headloom {
namespace HEADLOOM_INSTRUCTION_SET {

// Queries of a head, and rows of a group, at most.
constexpr int64_t most_few_queries = 8;
constexpr int most_few_rows = 32;
// A piece has at least so many keys, and there are no more pieces than so many tasks need.
constexpr int64_t few_piece_keys = 2048;
constexpr int64_t few_tasks = 32;
// Keys of a tile; a row's scores lie a little more than that apart.
constexpr int64_t few_tile = usual_tile;
constexpr int64_t few_score_row = few_tile + row_padding;
static_assert(few_piece_keys % few_tile == 0 && few_tile % keys_summed == 0, "whole tiles");

inline bool is_few(const Call& call) {
    return call.queries_count <= most_few_queries && !call.key_table.data &&
           !call.value_table.data && !call.received && !is_short(call);
}

// Whether bfloat16 is multiplied as pairs where it lies; its weights are then of 8 bits.
inline bool weighs_pairs(const Call& call) {
#if defined(HEADLOOM_HAS_PAIRS)
    return call.bfloat16 && call.value_depth % 32 == 0 && call.value_depth > 0;
#else
    (void)call;
    return false;
#endif
}

// What is known of a row so far.
struct FewRow {
    Running running;
    Candidates candidates;
    int32_t count;
};

// Where the rows of a piece lie: what it works in, and what it leaves for `join`.
struct FewRows {
    FewRow* rows;
    float* sums;  // (rows, sums_row): weighted values so far
    int64_t sums_row;
};

struct FewBlock : FewRows {
    Range visible[most_few_rows];
    float norms[most_few_rows];  // of the queries
    void* queries;               // (rows, query_row), scaled where they are floats
    int64_t query_row;
    float* scores;   // (rows, few_score_row)
    float* panel;    // turned keys
    float* spread;   // queries as few_spread.h reads them, or nullptr
    int32_t* tiles;  // and as few_tiles.h does
    float* values;   // of a tile, in whole vectors, where they cannot be read in place
    int64_t capacity;
    float guess;  // of the threshold of the next row whose query has length 1
    float factor;
    int64_t batch, kv_head, first_head;
    int count;
};

inline int64_t few_rows(const Call& call, const FewPlan& plan) {
    return plan.heads_of_group * call.queries_count;
}

// Candidates that a piece leaves of a row.
inline int64_t few_candidates(const Call& call, const FewPlan& plan) {
    return round_up(smaller(call.kept + cut_slack(call.kept), plan.piece_keys), lanes);
}

inline FewRows lay_out_few_rows(const Call& call, const FewPlan& plan, int64_t capacity,
                                Workspace& space) {
    const int64_t rows = few_rows(call, plan);
    FewRows few;
    few.rows = space.take<FewRow>(rows);
    few.sums_row = round_up(call.value_depth, lanes);
    few.sums = space.take<float>(rows * few.sums_row);
    if (!keeps_edges(call)) return few;
    float* scores = space.take<float>(rows * (capacity + lanes));
    int32_t* keys = space.take<int32_t>(rows * (capacity + lanes));
    for (int64_t row = 0; row < rows && few.rows; ++row) {
        few.rows[row].candidates.scores = scores + row * (capacity + lanes);
        few.rows[row].candidates.keys = keys + row * (capacity + lanes);
    }
    return few;
}

// Whether so many rows meet keys and weigh values on the matrix unit.
inline bool uses_tiles(const Call& call, int rows) {
#if defined(HEADLOOM_HAS_PAIRS) && defined(__AMX_BF16__)
    return weighs_pairs(call) && call.depth > 0 && call.depth % chunk_terms == 0 &&
           rows >= least_tile_rows;
#else
    (void)call, (void)rows;
    return false;
#endif
}

// Whether so many rows meet keys as few_spread.h has it.
inline bool spreads_queries(const Call& call, int rows) {
#if defined(__AVX512F__)
#if defined(HEADLOOM_HAS_PAIRS)
    if (call.bfloat16)
        return !uses_tiles(call, rows) && call.depth % 2 == 0 && can_spread(call.depth / 2) &&
               rows >= least_spread_rows && rows <= most_spread_pairs;
#endif
    return !call.bfloat16 && can_spread(call.depth) && rows >= least_spread_rows;
#else
    (void)call, (void)rows;
    return false;
#endif
}

inline FewBlock lay_out_few(const Call& call, const FewPlan& plan, Workspace& space) {
    FewBlock block;
    const int64_t rows = few_rows(call, plan);
    block.capacity = candidate_capacity(smaller(call.kept, plan.piece_keys), few_tile);
    static_cast<FewRows&>(block) = lay_out_few_rows(call, plan, block.capacity, space);
    block.query_row = round_up(call.depth, 2 * lanes);
    block.queries = space.take<float>(rows * block.query_row);
    const bool tiles = uses_tiles(call, (int)rows), spread = spreads_queries(call, (int)rows);
    // Of more than 16 rows the matrix unit reads 32.
    block.scores = space.take<float>((tiles && rows > 16 ? 32 : rows) * few_score_row + lanes);
    block.panel = space.take<float>(panel_columns * block.query_row);
    block.spread = spread ? space.take<float>(round_up(rows, 8) * block.query_row) : nullptr;
    block.tiles = tiles ? space.take<int32_t>(round_up(rows, 16) * block.query_row / 2) : nullptr;
    block.values = weighs_pairs(call) || values_in_place(call)
                       ? nullptr
                       : space.take<float>(few_tile * block.sums_row);
    return block;
}

inline FewPlan plan_few(const Call& call) {
    FewPlan plan;
    if (!is_few(call) || call.batch * call.kv_heads == 0 || call.queries_count == 0) return plan;
    const int64_t group = call.heads / call.kv_heads;
    plan.heads_of_group = smaller(group, most_few_rows / call.queries_count);
    plan.groups =
        call.batch * call.kv_heads * ((group + plan.heads_of_group - 1) / plan.heads_of_group);
    const int64_t wanted = (few_tasks + plan.groups - 1) / plan.groups;
    const int64_t each = (call.keys_count + wanted - 1) / wanted;
    plan.piece_keys = round_up(larger(each, few_piece_keys), few_tile);
    plan.pieces = larger((call.keys_count + plan.piece_keys - 1) / plan.piece_keys, 1);
    Workspace part(nullptr), whole(nullptr);
    lay_out_few_rows(call, plan, few_candidates(call, plan), part);
    plan.part = part.used();
    lay_out_few(call, plan, whole);
    // `join` takes every part's candidates in the same place.
    Workspace joined(nullptr);
    lay_out_few_rows(call, plan, plan.pieces * few_candidates(call, plan), joined);
    plan.workspace = whole.used() > joined.used() ? whole.used() : joined.used();
    return plan;
}

// Of a group's rows, the heads in turn, and the queries of each.
inline int64_t head_of(const Call& call, const FewBlock& block, int row) {
    return block.first_head + row / call.queries_count;
}

// Which rows a group has.
inline void find_group(const Call& call, const FewPlan& plan, int64_t group, FewBlock& block) {
    const int64_t heads = call.heads / call.kv_heads;
    const int64_t groups = (heads + plan.heads_of_group - 1) / plan.heads_of_group;
    const int64_t kv_head = group / groups, first = group % groups * plan.heads_of_group;
    block.batch = kv_head / call.kv_heads;
    block.kv_head = kv_head % call.kv_heads;
    block.first_head = block.kv_head * heads + first;
    block.count = (int)(smaller(plan.heads_of_group, heads - first) * call.queries_count);
}

inline void begin_few(const Call& call, FewBlock& block, Range piece) {
    block.guess = infinity;
    block.factor = 1.0f;
    for (int row = 0; row < block.count; ++row) {
        const int64_t head = head_of(call, block, row), query = row % call.queries_count;
        FewRow& state = block.rows[row];
        state.running = Running{};
        state.count = 0;
        state.candidates.clear();
        block.visible[row] = intersection(visible_keys(call, block.batch, query), piece);
        if (keeps_edges(call))
            block.norms[row] =
                rough_norm(call.queries, call.bfloat16, block.batch, head, query, call.depth);
#if defined(HEADLOOM_HAS_PAIRS)
        if (call.bfloat16) {
            block.factor = call.scale;
            uint16_t* to = (uint16_t*)block.queries + row * block.query_row;
            std::memcpy(to, call.queries.at<uint16_t>(block.batch, head, query),
                        call.depth * sizeof(uint16_t));
            std::memset(to + call.depth, 0, (block.query_row - call.depth) * sizeof(uint16_t));
            continue;
        }
#endif
        float* to = (float*)block.queries + row * block.query_row;
        copy_row(call.queries, call.bfloat16, block.batch, head, query, call.depth, call.scale, to);
        for (int64_t d = call.depth; d < block.query_row; ++d) to[d] = 0;
    }
#if defined(__AVX512F__)
    const int64_t halves = call.bfloat16 ? 2 : 1;
    if (block.spread)
        spread((const float*)block.queries, block.query_row / halves, block.count,
               call.depth / halves, block.spread);
#endif
#if defined(HEADLOOM_HAS_PAIRS) && defined(__AMX_BF16__)
    if (block.tiles)
        pack_few_queries((const int32_t*)block.queries, block.query_row / 2, block.count,
                         call.depth, block.tiles);
#endif
    std::memset(block.sums, 0, block.count * block.sums_row * sizeof(float));
}

// Results of the rows of a group.
inline void finish_few(const Call& call, FewBlock& block) {
    for (int row = 0; row < block.count; ++row) {
        const int64_t head = head_of(call, block, row);
        const int64_t at =
            (block.batch * call.heads + head) * call.queries_count + row % call.queries_count;
        FewRow& state = block.rows[row];
        finish_row(call, head, at, state.running, block.sums + row * block.sums_row, state.count,
                   state.candidates);
    }
}

// What a piece leaves of its rows: no more candidates than may be among the strongest.
inline void leave_part(const Call& call, FewBlock& block, const FewRows& part) {
    std::memcpy(part.sums, block.sums, block.count * block.sums_row * sizeof(float));
    for (int row = 0; row < block.count; ++row) {
        FewRow &from = block.rows[row], &to = part.rows[row];
        to.running = from.running;
        to.count = from.count;
        if (!keeps_edges(call)) continue;
        Candidates& found = from.candidates;
        const int64_t slack = cut_slack(call.kept);
        if (found.number > call.kept + slack) cut_candidates(found, call.kept, slack);
        to.candidates.number = found.number;
        to.candidates.threshold = found.threshold;
        std::memcpy(to.candidates.scores, found.scores, found.number * sizeof(float));
        std::memcpy(to.candidates.keys, found.keys, found.number * sizeof(int32_t));
    }
}

// Add what a later piece left of a row to what the earlier ones did.
inline void join_row(const Call& call, FewBlock& block, int row, const FewRows& part) {
    FewRow& sum = block.rows[row];
    const FewRow& more = part.rows[row];
    Running other = more.running;
    float own = 1.0f, others = 1.0f;
    // One that saw nothing but minus infinity has no level, and sums of 0 or NaN.
    if (other.level != -infinity) {
        if (sum.running.level == -infinity || other.maximum > sum.running.maximum)
            own = sum.running.follow(other);
        else
            others = other.follow(sum.running);
    }
    sum.running.total += other.total;
    sum.running.moment += other.moment;
    sum.count += more.count;
    float* sums = block.sums + row * block.sums_row;
    const float* added = part.sums + row * block.sums_row;
    for (int64_t d = 0; d < block.sums_row; d += lanes)
        store(sums + d, load(sums + d) * own + load(added + d) * others);
    if (!keeps_edges(call)) return;
    Candidates& candidates = sum.candidates;
    std::memcpy(candidates.scores + candidates.number, more.candidates.scores,
                more.candidates.number * sizeof(float));
    std::memcpy(candidates.keys + candidates.number, more.candidates.keys,
                more.candidates.number * sizeof(int32_t));
    candidates.number += more.candidates.number;
    candidates.all_above = false;  // those of one piece need not exceed what those of another do
    if (more.candidates.threshold > candidates.threshold)
        candidates.threshold = more.candidates.threshold;
}

}  // namespace HEADLOOM_INSTRUCTION_SET
}  // namespace headloom
