// Products of float32 matrices on the matrix unit, each number cut into three bfloat16 (pairs.h).
//
//     output (+)= act(left right + bias)
//
// A task is a tile of up to 256 x 256 results, whose terms come in steps of 128. While the products
// of one step are computed, the factors of the next are cut, into a second room, and the 32 x 32
// results that were computed last are added to those of the steps before: a few vectors between
// some products, which the processor computes beside them. (In the registers of the matrix unit, a
// long sum would swallow the small products.)
//
// An infinite or NaN factor leaves NaN in each result that it enters, since what is left of it
// after the first cut is NaN; so it is enough to look at results. What is below 2^-126, of a
// factor's cuts or of a product, is 0, as the matrix unit has it.
//
// Other instruction sets leave these products to torch, whose multiply-adds are quicker than six
// products of bfloat16 in vectors.
#include "kernels.h"
#if defined(__AMX_BF16__)
#include "cut_pieces.h"
#include "multiply_pairs.h"
#include "workspace.h"
#endif

namespace headloom {
namespace HEADLOOM_INSTRUCTION_SET {

extern const ProductKernels product_kernels;

#if defined(__AMX_BF16__)

constexpr int64_t step_chunks = 4;
constexpr int64_t square = stripe_rows * stripe_rows;  // results that are in registers at once
// How long before it is cut a piece is fetched from memory, in pieces.
constexpr int64_t pieces_ahead = 16;
// Places between the products of a chunk where portions are cut.
constexpr int places = 6;

class ProductBlock {
public:
    ProductBlock(const ProductCall& call, const ProductPlan& plan, char* memory)
        : workspace(memory),
          call_(call),
          plan_(plan),
          across_((call.rows + plan.tile_rows - 1) / plan.tile_rows),
          along_((call.columns + plan.tile_columns - 1) / plan.tile_columns),
          steps_((plan.segment_terms / chunk_terms + step_chunks - 1) / step_chunks) {
        const int64_t sides[2] = {plan.tile_rows, plan.tile_columns};
        for (auto& room : rooms_)
            for (int side = 0; side < 2; ++side)
                room[side] = workspace.take<int32_t>(sides[side] / 16 * step_chunks * cuts_cells);
        sums_ = workspace.take<float>(plan.tile_rows * plan.tile_columns);
        for (float*& room : products_) room = workspace.take<float>(square);
    }

    // Tasks first .. end; whether all results are finite.
    bool tasks(int64_t first, int64_t end) {
        int room = 0;
        if (first >= end) return true;
        begin_step(step_of(first * steps_), room);
        while (cut_ < pieces_) cut_portion();
        for (int64_t index = first * steps_; index < end * steps_; ++index, room ^= 1) {
            const Step step = next_;
            const bool more = index + 1 < end * steps_;
            if (more) begin_step(step_of(index + 1), room ^ 1);
            credit_ = 0;
            portions_due_ = more ? pieces_ * portions : 0;
            places_ = step.row_pairs * step.column_pairs * step.chunks * places;
            run_step(step, room);
            while (more && cut_ < pieces_) cut_portion();
        }
        add_rows(stripe_rows);
        const Floats none = bad_;
        return !any(none != none);
    }

private:
    // Some terms of a task: from where on, and how many stripes and chunks.
    struct Step {
        int64_t segment, row, column, term, end_term;
        int64_t row_pairs, column_pairs, chunks;
        bool first, last;
    };

    // 32 x 32 products of a step, of which the rows from `row` on are to be added up and written.
    struct Computed {
        const float* from = nullptr;
        const float* before = nullptr;  // of the steps before; nullptr: there are none
        float* to = nullptr;            // the sums so far, or the output
        int64_t to_row = 0, rows = 0, columns = 0, row = 0;
        bool last = false;
        const float* bias = nullptr;
    };

    // Which terms, of which rows and columns, are in a room.
    struct Held {
        int64_t segment = -1, term = -1, row = -1, column = -1;
    };

    Step step_of(int64_t index) const {
        const int64_t task = index / steps_, step = index % steps_;
        const int64_t tile = task % (across_ * along_);
        Step s;
        s.segment = task / (across_ * along_);
        // The factor of fewer tiles stays the same for longer.
        const bool down = across_ >= along_;
        s.row = (down ? tile % across_ : tile / along_) * plan_.tile_rows;
        s.column = (down ? tile / across_ : tile % along_) * plan_.tile_columns;
        s.end_term = smaller((s.segment + 1) * plan_.segment_terms, call_.terms);
        s.term = s.segment * plan_.segment_terms + step * step_chunks * chunk_terms;
        s.row_pairs = pieces_of(smaller(plan_.tile_rows, call_.rows - s.row), stripe_rows);
        s.column_pairs =
            pieces_of(smaller(plan_.tile_columns, call_.columns - s.column), stripe_rows);
        const int64_t terms = smaller(step_chunks * chunk_terms, s.end_term - s.term);
        s.chunks = terms > 0 ? pieces_of(terms, chunk_terms) : 0;
        s.first = step == 0;
        s.last = step == steps_ - 1;
        return s;
    }

    static int64_t pieces_of(int64_t count, int64_t size) { return (count + size - 1) / size; }

    void begin_step(const Step& step, int room) {
        next_ = step;
        next_room_ = room;
        cut_ = portion_ = 0;
        // What the step before the last has left there may be what this one needs.
        Held& held = held_[room];
        const bool same = held.segment == step.segment && held.term == step.term;
        left_pieces_ = same && held.row == step.row ? 0 : 2 * step.row_pairs * step.chunks;
        const bool keep_right = same && held.column == step.column;
        pieces_ = left_pieces_ + (keep_right ? 0 : 2 * step.column_pairs * step.chunks);
        held = {step.segment, step.term, step.row, step.column};
        if (pieces_) piece_ = piece_of(0);
    }

    Piece piece_of(int64_t number) const {
        const bool right = number >= left_pieces_;
        if (right) number -= left_pieces_;
        const bool along = right ? call_.right_along : call_.left_along;
        // In the order of memory.
        const int64_t blocks = 2 * (right ? next_.column_pairs : next_.row_pairs);
        const int64_t block = along ? number / next_.chunks : number % blocks;
        const int64_t chunk = along ? number % next_.chunks : number / blocks;
        const int64_t first = (right ? next_.column : next_.row) + block * 16;
        const int64_t term = next_.term + chunk * chunk_terms;
        const int64_t count = (right ? call_.columns : call_.rows) - first;
        const int64_t terms = next_.end_term - term;
        Piece piece;
        piece.row = right ? call_.right_row : call_.left_row;
        piece.along = along;
        piece.turned = piece.along == right;
        piece.from = (right ? call_.right : call_.left) +
                     (piece.along ? first * piece.row + term : term * piece.row + first);
        piece.runs = piece.along ? count : terms;
        piece.lanes[0] = first_lanes(piece.along ? terms : count);
        piece.lanes[1] = piece.along ? first_lanes(terms - 16) : piece.lanes[0];
        piece.to = rooms_[next_room_][right] +
                   ((block / 2 * next_.chunks + chunk) * 2 + block % 2) * cuts_cells;
        return piece;
    }

    __attribute__((noinline)) void cut_portion() {
        // A piece that comes later is fetched meanwhile.
        if (portion_ == 0)
            fetched_ = cut_ + pieces_ahead < pieces_ ? piece_of(cut_ + pieces_ahead) : piece_;
        fetched_.fetch(portion_);
        piece_.cut(portion_, half_turned_);
        if (++portion_ < portions) return;
        portion_ = 0;
        if (++cut_ < pieces_) piece_ = piece_of(cut_);
    }

    // What is due between two products: as many portions as are left of them for each place.
    void do_portions() {
        for (credit_ += portions_due_; credit_ >= places_; credit_ -= places_) cut_portion();
    }

    void run_step(const Step& step, int room) {
        const int64_t pair = 2 * step.chunks * cuts_cells;
        const bool in_segments = plan_.segments > 1;
        const int64_t to_row = in_segments ? call_.columns : call_.output_row;
        float* output =
            in_segments ? plan_.partial + step.segment * call_.rows * call_.columns : call_.output;
        float* sums = sums_;
        for (int64_t n = 0; n < step.column_pairs; ++n)
            for (int64_t m = 0; m < step.row_pairs; ++m, sums += square) {
                const int64_t row = step.row + m * stripe_rows;
                const int64_t column = step.column + n * stripe_rows;
                float* to = output + row * to_row + column;
                fetched_to_ = step.last ? to : nullptr;
                fetched_row_ = to_row;
                multiply_square(step.chunks, rooms_[room][0] + m * pair,
                                rooms_[room][1] + n * pair);
                add_rows(stripe_rows);
                Computed& next = computed_;
                next.from = products_[products_room_];
                next.before = step.first ? nullptr : sums;
                next.last = step.last;
                next.to = step.last ? to : sums;
                next.to_row = step.last ? to_row : stripe_rows;
                next.bias = call_.bias && !in_segments ? call_.bias + column : nullptr;
                next.rows = step.last ? smaller(stripe_rows, call_.rows - row) : stripe_rows;
                next.columns = step.last ? call_.columns - column : stripe_rows;
                next.row = 0;
                products_room_ ^= 1;
            }
    }

    // The products of a step for 32 x 32 results.
    void multiply_square(int64_t chunks, const int32_t* left, const int32_t* right) {
        HEADLOOM_TILE_ZERO(0);
        HEADLOOM_TILE_ZERO(1);
        HEADLOOM_TILE_ZERO(2);
        HEADLOOM_TILE_ZERO(3);
        // Each multiplies what is loaded, and loads the next cut as soon as its register is free.
        const auto then_load_left = [&](const int32_t* cut) {
            HEADLOOM_TILE_MULTIPLY(0, 4, 6);
            HEADLOOM_TILE_MULTIPLY(1, 4, 7);
            HEADLOOM_TILE_LOAD(4, cut, 64);
            HEADLOOM_TILE_MULTIPLY(2, 5, 6);
            HEADLOOM_TILE_MULTIPLY(3, 5, 7);
            HEADLOOM_TILE_LOAD(5, cut + cuts_cells, 64);
            do_portions();
        };
        const auto then_load_right = [&](const int32_t* cut) {
            HEADLOOM_TILE_MULTIPLY(0, 4, 6);
            HEADLOOM_TILE_MULTIPLY(2, 5, 6);
            HEADLOOM_TILE_LOAD(6, cut, 64);
            HEADLOOM_TILE_MULTIPLY(1, 4, 7);
            HEADLOOM_TILE_MULTIPLY(3, 5, 7);
            HEADLOOM_TILE_LOAD(7, cut + cuts_cells, 64);
            do_portions();
        };
        for (int64_t chunk = 0; chunk < chunks; ++chunk) {
            const int32_t* a = left + chunk * 2 * cuts_cells;
            const int32_t* b = right + chunk * 2 * cuts_cells;
            HEADLOOM_TILE_LOAD(4, a, 64);
            HEADLOOM_TILE_LOAD(6, b + 2 * tile_cells, 64);
            HEADLOOM_TILE_LOAD(7, b + 2 * tile_cells + cuts_cells, 64);
            HEADLOOM_TILE_LOAD(5, a + cuts_cells, 64);
            do_portions();
            // Small products first, in an order that changes one factor at a time.
            then_load_right(b + tile_cells);
            then_load_left(a + tile_cells);
            then_load_right(b);
            add_rows(stripe_rows / step_chunks);
            if (fetched_to_)
                for (int64_t r = chunk * 8; r < chunk * 8 + 8; ++r) {
                    __builtin_prefetch(fetched_to_ + r * fetched_row_, 1);
                    __builtin_prefetch(fetched_to_ + r * fetched_row_ + 16, 1);
                }
            then_load_left(a + 2 * tile_cells);
            then_load_left(a);
            HEADLOOM_TILE_MULTIPLY(0, 4, 6);
            HEADLOOM_TILE_MULTIPLY(1, 4, 7);
            HEADLOOM_TILE_MULTIPLY(2, 5, 6);
            HEADLOOM_TILE_MULTIPLY(3, 5, 7);
        }
        float* room = products_[products_room_];
        HEADLOOM_TILE_STORE(0, room, 128);
        HEADLOOM_TILE_STORE(1, room + 16, 128);
        HEADLOOM_TILE_STORE(2, room + 16 * stripe_rows, 128);
        HEADLOOM_TILE_STORE(3, room + 16 * stripe_rows + 16, 128);
    }

    // Some more rows of what was computed last.
    void add_rows(int64_t count) {
        Computed& c = computed_;
        const int64_t end = smaller(c.row + count, c.rows);
        if (c.row >= end) return;
        if (c.last) {
            write_rows(c, end);
        } else {
            for (int64_t r = c.row * stripe_rows; r < end * stripe_rows; r += 16) {
                const Floats x = load(c.from + r);
                store(c.to + r, c.before ? x + load(c.before + r) : x);
            }
        }
        c.row = end;
    }

    void write_rows(const Computed& c, int64_t end) {
        const __mmask16 lanes_left = first_lanes(c.columns);
        const __mmask16 lanes_right = first_lanes(c.columns - 16);
        const bool in_segments = plan_.segments > 1;
        Floats bias_left{}, bias_right{}, bad = bad_;
        if (c.bias) {
            bias_left = load_lanes(c.bias, lanes_left);
            bias_right = load_lanes(c.bias + 16, lanes_right);
        }
        for (int64_t r = c.row; r < end; ++r) {
            float* to = c.to + r * c.to_row;
            Floats x = load(c.from + r * stripe_rows), y = load(c.from + r * stripe_rows + 16);
            if (c.before) {
                x += load(c.before + r * stripe_rows);
                y += load(c.before + r * stripe_rows + 16);
            }
            x += bias_left;
            y += bias_right;
            if (call_.accumulate && !in_segments) {
                x += load_lanes(to, lanes_left);
                y += load_lanes(to + 16, lanes_right);
            }
            bad += x * 0.0f + y * 0.0f;
            if (call_.relu && !in_segments) {
                x = maximum(Floats{}, x);
                y = maximum(Floats{}, y);
            }
            _mm512_mask_storeu_ps(to, lanes_left, (__m512)x);
            _mm512_mask_storeu_ps(to + 16, lanes_right, (__m512)y);
        }
        bad_ = bad;
    }

public:
    Workspace workspace;

private:
    const ProductCall& call_;
    const ProductPlan& plan_;
    const int64_t across_, along_, steps_;  // tiles; steps of a task
    // The cuts of left and right factor, of this step and the next: (stripes, chunks, 2, 3) tiles.
    int32_t* rooms_[2][2] = {};
    Held held_[2];
    float* sums_ = nullptr;    // of a task, squares
    float* products_[2] = {};  // squares: one being computed, one being added
    int products_room_ = 0;
    const float* fetched_to_ = nullptr;  // where the square that is being computed will be written
    int64_t fetched_row_ = 0;

    Computed computed_;
    Floats bad_{};  // 0, or NaN where a result is not finite
    // What is being cut.
    Step next_{};
    int next_room_ = 0, portion_ = 0;
    Piece piece_{}, fetched_{};
    int64_t cut_ = 0, pieces_ = 0, left_pieces_ = 0;
    int64_t credit_ = 0, portions_due_ = 0, places_ = 1;
    HalfTurned half_turned_;
};

static size_t space(const ProductCall& call, const ProductPlan& plan) {
    return ProductBlock(call, plan, nullptr).workspace.used();
}

static bool tasks(const ProductCall& call, const ProductPlan& plan, int64_t first, int64_t end,
                  char* memory) {
    const SmallNumbersAreZero small_numbers_are_zero{};
    const MatrixUnit unit(true);
    return ProductBlock(call, plan, memory).tasks(first, end);
}

const ProductKernels product_kernels = {space, tasks};

#else
const ProductKernels product_kernels = {};
#endif

}  // namespace HEADLOOM_INSTRUCTION_SET
}  // namespace headloom
