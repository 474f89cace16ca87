// The kernels of attention against the formula in double, without Python: for processors that this
// machine only emulates. scripts/test-aarch64 builds and runs it.
//
//     formula            every instruction set of this build and processor, on every case
//     formula damage     the same with one number changed that the formula reads: it must find that
//
// Exit status 1 where a number is off by more than rounding.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "../../native/attention.h"
#include "../../native/kernels.h"

using namespace headloom;

namespace {

struct Case {
    const char* name;
    int64_t batch, heads, kv_heads, queries, keys, depth, value_depth;
    bool bfloat16 = false, banded = false;
    int64_t left = 0, right = 0;
    float softcap = 0.0f;
    bool bias = false, sinks = false;
    int64_t kept = 0;
};

const Case cases[] = {
    {"one key", 1, 1, 1, 3, 1, 4, 4},
    {"plain", 1, 2, 2, 70, 80, 16, 16, false, false, 0, 0, 0.0f, false, false, 8},
    {"depths of no whole vector", 2, 2, 2, 33, 47, 7, 5, false, false, 0, 0, 0.0f, false, false, 3},
    {"causal, shared heads, cap, bias, sinks", 2, 4, 2, 90, 90, 24, 24, false, true, -1000, 0, 5.0f,
     true, true, 8},
    {"a window: rows without keys", 1, 2, 1, 60, 40, 8, 8, false, true, -5, 2, 0.0f, false, false,
     8},
    {"long rows", 1, 1, 1, 20, 1500, 32, 32, false, false, 0, 0, 0.0f, false, false, 32},
    {"decoding: one query", 1, 8, 2, 1, 700, 64, 64, false, false, 0, 0, 0.0f, false, false, 4},
    {"a last block of two rows", 1, 2, 1, 130, 300, 32, 32, false, false, 0, 0, 0.0f, false, false,
     8},
    {"short rows, output alone", 4, 2, 2, 64, 64, 32, 32},
    {"bfloat16", 1, 2, 1, 130, 300, 32, 32, true, false, 0, 0, 0.0f, false, false, 8},
    {"bfloat16, causal, output alone", 1, 2, 2, 200, 200, 64, 64, true, true, -1000, 0},
};

// Numbers between -1.5 and 1.5 that bfloat16 holds exactly, the same everywhere.
struct Numbers {
    uint64_t state = 1;
    float next() {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        return (static_cast<int>(state >> 40 & 127) - 64) * (1.5f / 64);
    }
    std::vector<float> many(int64_t count) {
        std::vector<float> numbers(static_cast<size_t>(count));
        for (float& number : numbers) number = next();
        return numbers;
    }
};

std::vector<uint16_t> as_bfloat16(const std::vector<float>& numbers) {
    std::vector<uint16_t> halves;
    for (float number : numbers) {
        uint32_t bits;
        std::memcpy(&bits, &number, 4);
        halves.push_back(static_cast<uint16_t>(bits >> 16));
    }
    return halves;
}

float from_bfloat16(uint16_t half) {
    const uint32_t bits = static_cast<uint32_t>(half) << 16;
    float number;
    std::memcpy(&number, &bits, 4);
    return number;
}

struct Inputs {
    explicit Inputs(const Case& c) {
        Numbers numbers;
        queries = numbers.many(c.batch * c.heads * c.queries * c.depth);
        keys = numbers.many(c.batch * c.kv_heads * c.keys * c.depth);
        values = numbers.many(c.batch * c.kv_heads * c.keys * c.value_depth);
        if (c.bias) bias = numbers.many(c.batch * c.heads * c.queries * c.keys);
        if (c.sinks) sinks = numbers.many(c.heads);
        by_output = numbers.many(c.batch * c.heads * c.queries * c.value_depth);
    }
    std::vector<float> queries, keys, values, bias, sinks, by_output;
};

// What a call gives, row by row, and its gradients of sum(output * by_output).
struct Results {
    std::vector<double> output, magnitude, lse, entropy, weights, by_queries, by_keys, by_values,
        by_bias, subtract;
};

// The formula, in the order of the paper's symbols and of no kernel.
Results by_formula(const Case& c, const Inputs& in) {
    Results r;
    const int64_t rows = c.batch * c.heads * c.queries, group = c.heads / c.kv_heads;
    const double scale = 1 / std::sqrt(static_cast<double>(c.depth));
    r.output.assign(rows * c.value_depth, 0), r.magnitude = r.output;
    r.lse.assign(rows, -INFINITY), r.entropy.assign(rows, 0), r.subtract.assign(rows, 0);
    r.weights.assign(rows * c.keys, 0), r.by_bias.assign(c.bias ? rows * c.keys : 0, 0);
    r.by_queries.assign(in.queries.size(), 0), r.by_keys.assign(in.keys.size(), 0);
    r.by_values.assign(in.values.size(), 0);
    for (int64_t row = 0; row < rows; ++row) {
        const int64_t i = row % c.queries, head = row / c.queries % c.heads;
        const int64_t shared = row / c.queries / c.heads * c.kv_heads + head / group;
        const float* q = &in.queries[row * c.depth];
        std::vector<double> scores(c.keys, -INFINITY), slope(c.keys, scale);
        double largest = c.sinks ? in.sinks[head] : -INFINITY;
        for (int64_t j = 0; j < c.keys; ++j) {
            if (c.banded && (j < i + c.left || j > i + c.right)) continue;
            double raw = 0;
            for (int64_t d = 0; d < c.depth; ++d)
                raw += static_cast<double>(q[d]) * in.keys[(shared * c.keys + j) * c.depth + d];
            double score = scale * raw;
            if (c.softcap > 0) {
                const double bent = std::tanh(score / c.softcap);
                score = c.softcap * bent, slope[j] = scale * (1 - bent * bent);
            }
            if (c.bias) score += in.bias[row * c.keys + j];
            scores[j] = score, largest = std::max(largest, score);
        }
        if (largest == -INFINITY) continue;
        double total = c.sinks ? std::exp(in.sinks[head] - largest) : 0;
        for (double score : scores) total += std::exp(score - largest);
        r.lse[row] = largest + std::log(total);
        for (int64_t j = 0; j < c.keys; ++j) {
            const double weight = std::exp(scores[j] - largest) / total;
            r.weights[row * c.keys + j] = weight;
            if (weight > 0) r.entropy[row] -= weight * std::log(weight);
            for (int64_t d = 0; d < c.value_depth; ++d) {
                const double value = in.values[(shared * c.keys + j) * c.value_depth + d];
                r.output[row * c.value_depth + d] += weight * value;
                r.magnitude[row * c.value_depth + d] += weight * std::fabs(value);
            }
        }
        for (int64_t d = 0; d < c.value_depth; ++d)
            r.subtract[row] += r.output[row * c.value_depth + d] *
                               static_cast<double>(in.by_output[row * c.value_depth + d]);
        for (int64_t j = 0; j < c.keys; ++j) {
            const double weight = r.weights[row * c.keys + j];
            double by_weight = 0;
            for (int64_t d = 0; d < c.value_depth; ++d) {
                const int64_t place = (shared * c.keys + j) * c.value_depth + d;
                const double by_output = in.by_output[row * c.value_depth + d];
                by_weight += by_output * in.values[place];
                r.by_values[place] += weight * by_output;
            }
            const double by_score = weight * (by_weight - r.subtract[row]);
            if (c.bias) r.by_bias[row * c.keys + j] = by_score;
            for (int64_t d = 0; d < c.depth; ++d) {
                const int64_t place = (shared * c.keys + j) * c.depth + d;
                r.by_queries[row * c.depth + d] += by_score * slope[j] * in.keys[place];
                r.by_keys[place] += by_score * slope[j] * q[d];
            }
        }
    }
    return r;
}

Tensor tensor(const void* data, int64_t batch, int64_t heads, int64_t rows, int64_t columns) {
    Tensor t;
    t.data = data;
    t.batch = batch > 1 ? heads * rows * columns : 0;
    t.head = heads > 1 ? rows * columns : 0;
    t.row = rows > 1 ? columns : 0;
    return t;
}

// The largest difference, as a share of what rounding may cause.
class Share {
public:
    void add(double got, double exact, double allowed) {
        if (got == exact) return;  // infinities too
        const double share = std::fabs(got - exact) / allowed;
        if (!(share <= largest_)) largest_ = std::isnan(share) ? INFINITY : share;
    }
    double largest() const { return largest_; }

private:
    double largest_ = 0;
};

double size_of(const std::vector<double>& numbers) {
    double largest = 1;
    for (double number : numbers) largest = std::max(largest, std::fabs(number));
    return largest;
}

struct Forward {
    std::vector<float> output, lse, entropy, rest, kept_scores, kept_weights;
    std::vector<uint16_t> halves;
    std::vector<int32_t> count, kept_keys;

    // Which results differ from another's in a bit; "" for none.
    std::string different(const Forward& o) const {
        std::string names;
        auto hold = [&](const char* name, const auto& mine, const auto& theirs) {
            const size_t bytes = mine.size() * sizeof(mine[0]);
            if (mine.size() != theirs.size() || std::memcmp(mine.data(), theirs.data(), bytes) != 0)
                names += std::string(names.empty() ? "" : ", ") + name;
        };
        hold("output", output, o.output), hold("output", halves, o.halves);
        hold("lse", lse, o.lse), hold("entropy", entropy, o.entropy), hold("rest", rest, o.rest);
        hold("count", count, o.count), hold("keys", kept_keys, o.kept_keys);
        hold("scores", kept_scores, o.kept_scores), hold("weights", kept_weights, o.kept_weights);
        return names;
    }
};

class Subject {
public:
    Subject(const Case& c, const Inputs& in)
        : c_(c),
          in_(in),
          queries_(as_bfloat16(in.queries)),
          keys_(as_bfloat16(in.keys)),
          values_(as_bfloat16(in.values)) {
        auto place = [&](const std::vector<float>& full, const std::vector<uint16_t>& half) {
            return c.bfloat16 ? static_cast<const void*>(half.data())
                              : static_cast<const void*>(full.data());
        };
        call_.batch = c.batch, call_.heads = c.heads, call_.kv_heads = c.kv_heads;
        call_.queries_count = c.queries, call_.keys_count = c.keys;
        call_.depth = c.depth, call_.value_depth = c.value_depth, call_.bfloat16 = c.bfloat16;
        call_.queries = tensor(place(in.queries, queries_), c.batch, c.heads, c.queries, c.depth);
        call_.keys = tensor(place(in.keys, keys_), c.batch, c.kv_heads, c.keys, c.depth);
        call_.values =
            tensor(place(in.values, values_), c.batch, c.kv_heads, c.keys, c.value_depth);
        call_.scale = 1 / std::sqrt(static_cast<float>(c.depth)), call_.softcap = c.softcap;
        call_.banded = c.banded, call_.left = c.left, call_.right = c.right;
        if (c.bias) call_.bias = tensor(in.bias.data(), c.batch, c.heads, c.queries, c.keys);
        if (c.sinks) call_.sinks = tensor(in.sinks.data(), 1, 1, 1, c.heads);
    }

    Forward forward(const Kernels& kernels, int threads) {
        const int64_t rows = c_.batch * c_.heads * c_.queries;
        Forward f;
        f.output.resize(c_.bfloat16 ? 0 : rows * c_.value_depth);
        f.halves.resize(c_.bfloat16 ? rows * c_.value_depth : 0);
        f.lse.resize(rows);
        call_.output = c_.bfloat16 ? static_cast<void*>(f.halves.data()) : f.output.data();
        call_.lse = f.lse.data(), call_.kept = c_.kept;
        if (c_.kept) {
            f.entropy.resize(rows), f.rest.resize(rows), f.count.resize(rows);
            f.kept_keys.resize(rows * c_.kept), f.kept_scores.resize(rows * c_.kept);
            f.kept_weights.resize(rows * c_.kept);
            call_.entropy = f.entropy.data(), call_.rest = f.rest.data();
            call_.count = f.count.data(), call_.kept_keys = f.kept_keys.data();
            call_.kept_scores = f.kept_scores.data(), call_.kept_weights = f.kept_weights.data();
        }
        headloom::forward(kernels, call_, threads);
        return f;
    }

    double compare(const Forward& f, const Results& exact) const {
        Share share;
        const double rounding = 3e-5, half = 1.0 / 128;
        for (size_t n = 0; n < exact.output.size(); ++n)
            if (c_.bfloat16)
                share.add(from_bfloat16(f.halves[n]), exact.output[n],
                          half * exact.magnitude[n] + 1e-4);
            else
                share.add(f.output[n], exact.output[n], rounding);
        const double of_totals = c_.bfloat16 ? 2e-2 : rounding;
        for (size_t row = 0; row < exact.lse.size(); ++row) {
            share.add(f.lse[row], exact.lse[row],
                      of_totals * std::max(1.0, std::fabs(exact.lse[row])));
            if (!c_.kept) continue;
            share.add(f.entropy[row], exact.entropy[row], of_totals * 8);
            const double* weights = &exact.weights[row * c_.keys];
            std::vector<double> sorted(weights, weights + c_.keys);
            std::sort(sorted.begin(), sorted.end(), std::greater<double>());
            const int64_t seen = std::count_if(sorted.begin(), sorted.end(),
                                               [](double weight) { return weight > 0; });
            share.add(f.count[row], static_cast<double>(seen), 0.5);
            double rest = seen ? 1 : 0;
            for (int64_t n = 0; n < c_.kept; ++n) {
                const int32_t key = f.kept_keys[row * c_.kept + n];
                const double weight = f.kept_weights[row * c_.kept + n];
                const double wanted = n < seen ? sorted[n] : 0;
                share.add(weight, wanted, of_totals);
                share.add(key < 0 ? 0 : weights[key], wanted, of_totals);
                share.add(key < 0, n >= seen, 0.5);
                rest -= wanted;
            }
            share.add(f.rest[row], rest, of_totals);
        }
        return share.largest();
    }

    double backward(const Kernels& kernels, const Results& exact, int threads) {
        const int64_t rows = c_.batch * c_.heads * c_.queries, copies = c_.batch * c_.heads;
        const int64_t depth = (c_.depth + 15) / 16 * 16, wide = (c_.value_depth + 15) / 16 * 16;
        std::vector<float> lse, subtract(exact.subtract.begin(), exact.subtract.end());
        for (double number : exact.lse)
            lse.push_back(number == -INFINITY ? INFINITY : static_cast<float>(number));
        Gradients to;
        to.output = tensor(in_.by_output.data(), c_.batch, c_.heads, c_.queries, c_.value_depth);
        to.lse = lse.data(), to.subtract = subtract.data();
        to.piece_keys = 256, to.pieces = (c_.keys + 255) / 256;
        to.padded_depth = depth, to.padded_value_depth = wide;
        std::vector<float> queries(to.pieces * rows * depth), bias(c_.bias ? rows * c_.keys : 0);
        std::vector<float> keys(c_.batch * c_.kv_heads * c_.keys * depth);
        std::vector<float> values(c_.batch * c_.kv_heads * c_.keys * wide);
        to.queries = queries.data(), to.keys = keys.data(), to.values = values.data();
        if (c_.bias) to.bias = bias.data();
        headloom::backward(kernels, call_, to, threads);

        Share share;
        const double rounding = 5e-5;  // of bfloat16 too: gradients are float32 here
        for (int64_t row = 0; row < copies * c_.queries; ++row)
            for (int64_t d = 0; d < c_.depth; ++d) {
                double sum = 0;
                for (int64_t piece = 0; piece < to.pieces; ++piece)
                    sum += queries[(piece * rows + row) * depth + d];
                share.add(sum, exact.by_queries[row * c_.depth + d],
                          rounding * size_of(exact.by_queries));
            }
        auto hold = [&](const std::vector<float>& got, const std::vector<double>& wanted,
                        int64_t padded, int64_t columns) {
            const double allowed = rounding * size_of(wanted);
            for (size_t n = 0; n < wanted.size(); ++n)
                share.add(got[n / columns * padded + n % columns], wanted[n], allowed);
        };
        hold(keys, exact.by_keys, depth, c_.depth);
        hold(values, exact.by_values, wide, c_.value_depth);
        hold(bias, exact.by_bias, 1, 1);
        return share.largest();
    }

private:
    Case c_;
    const Inputs& in_;
    std::vector<uint16_t> queries_, keys_, values_;
    Call call_;
};

}  // namespace

int main(int count, char** words) {
    const bool damage = count > 1 && std::string(words[1]) == "damage";
    int wrong = 0, calls = 0;
    for (const std::string& name : instruction_sets()) {
        const Kernels& kernels = *find_kernels(name);
        for (const Case& c : cases) {
            const Inputs in(c);
            Inputs read = in;
            // In bfloat16 a change must be larger than rounding.
            if (damage) read.values[0] += c.bfloat16 ? 4.0f : 0.05f;
            const Results exact = by_formula(c, read);
            Subject subject(c, in);
            const Forward once = subject.forward(kernels, 1);
            const double forward = subject.compare(once, exact);
            const double backward = subject.backward(kernels, exact, 2);
            const std::string other = once.different(subject.forward(kernels, 3));
            const bool right = forward <= 1 && backward <= 1 && other.empty();
            std::printf("%-12s %-40s forward %.3f backward %.3f%s%s\n", name.c_str(), c.name,
                        forward, backward,
                        other.empty() ? "" : (", with three threads other " + other).c_str(),
                        right ? "" : "  WRONG");
            ++calls, wrong += !right;
        }
    }
    std::printf("%d of %d calls right; numbers are shares of what rounding may cause\n",
                calls - wrong, calls);
    return wrong ? 1 : 0;
}
