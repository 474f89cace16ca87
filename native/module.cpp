// Python bindings of the native kernels.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>

#include "attention.h"
#include "kernels.h"
#include "linear.h"
#include "neighbours.h"
#include "passes.h"
#include "product.h"
#include "reading.h"
#include "threads.h"

namespace nb = nanobind;
using namespace headloom;

namespace {

// Addresses cross as integers: one build serves every torch.
template <typename Element>
Element* address(uint64_t pointer) {
    return reinterpret_cast<Element*>(static_cast<uintptr_t>(pointer));
}

const Kernels& kernels_by_name(const std::string& instruction_set) {
    const Kernels* kernels = find_kernels(instruction_set);
    if (!kernels)
        throw nb::value_error(("native: no kernels for the instruction set '" + instruction_set +
                               "' on this machine. See headloom._native.instruction_sets().")
                                  .c_str());
    return *kernels;
}

// A field as it is; and one that is a pointer, as an address.
template <typename Owner, typename Field>
void field(nb::class_<Owner>& owner, const char* name, Field Owner::* member) {
    owner.def_rw(name, member);
}
template <typename Owner, typename Element>
void field(nb::class_<Owner>& owner, const char* name, Element* Owner::* member) {
    owner.def_prop_rw(
        name, [member](const Owner& it) { return reinterpret_cast<uintptr_t>(it.*member); },
        [member](Owner& it, uint64_t pointer) { it.*member = address<Element>(pointer); });
}

// HEADLOOM_FIELDS(a, b, ...): field(owner, "a", &Owner::a); field(owner, "b", &Owner::b); ...
#define HEADLOOM_EXPAND(...) \
    HEADLOOM_EXPAND4(HEADLOOM_EXPAND4(HEADLOOM_EXPAND4(HEADLOOM_EXPAND4(__VA_ARGS__))))
#define HEADLOOM_EXPAND4(...) \
    HEADLOOM_EXPAND1(HEADLOOM_EXPAND1(HEADLOOM_EXPAND1(HEADLOOM_EXPAND1(__VA_ARGS__))))
#define HEADLOOM_EXPAND1(...) HEADLOOM_EXPAND0(HEADLOOM_EXPAND0(__VA_ARGS__))
#define HEADLOOM_EXPAND0(...) __VA_ARGS__
#define HEADLOOM_NOTHING ()
#define HEADLOOM_NEXT() HEADLOOM_EACH
#define HEADLOOM_EACH(name, ...)       \
    field(owner, #name, &Owner::name); \
    __VA_OPT__(HEADLOOM_NEXT HEADLOOM_NOTHING(__VA_ARGS__))
#define HEADLOOM_FIELDS(...) HEADLOOM_EXPAND(HEADLOOM_EACH(__VA_ARGS__))

// `pairs`: of bfloat16 are multiplied, which not every instruction set has kernels for.
template <bool pairs = false, typename Asked, typename Result>
void bind_run(nb::module_& module, const char* name,
              Result (*run)(const Kernels&, const Asked&, int), const char* what) {
    module.def(
        name,
        [run](const Asked& call, int threads, const std::string& instruction_set) {
            const Kernels& kernels = kernels_by_name(instruction_set);
            if (pairs && !kernels.linear->forward_rows)
                throw nb::value_error("native: no kernels for linear layers");
            nb::gil_scoped_release unlocked;
            return run(kernels, call, threads);
        },
        nb::arg("call"), nb::arg("threads"), nb::arg("instruction_set") = "", what);
}

void bind_gradients(nb::module_& module) {
    using Owner = Gradients;
    nb::class_<Owner> owner(module, "Gradients", "See native/gradients.h.");
    owner.def(nb::init<>());
    HEADLOOM_FIELDS(output, kept, pieces, piece_keys, padded_depth, padded_value_depth, lse,
                    subtract, by_entropy, kept_keys, kept_scores, queries, keys, values, bias,
                    key_bias, offset_bias, key_table, value_table);
}

void bind_neighbours(nb::module_& module) {
    {
        using Owner = NeighbourCall;
        nb::class_<Owner> owner(module, "NeighbourCall", "See native/neighbours.h.");
        owner.def(nb::init<>());
        HEADLOOM_FIELDS(targets, sources, edges_count, heads, depth, value_depth, row_starts,
                        columns, edges, column_starts, rows, places, score, slope, scale,
                        target_terms, source_terms, queries, keys, values, vector, edge_terms, kept,
                        kept_factor, output, shift, inverse, scores);
    }
    using Owner = NeighbourGradients;
    nb::class_<Owner> owner(module, "NeighbourGradients", "See native/neighbours.h.");
    owner.def(nb::init<>());
    HEADLOOM_FIELDS(by_output, pieces, state, scores, target_terms, source_terms, queries, keys,
                    values, vector);
    bind_run(module, "neighbours_forward", &neighbours_forward,
             "Fill the results of a call over the neighbours of a graph.");
    module.def(
        "neighbours_backward",
        [](const NeighbourCall& call, const NeighbourGradients& gradients, int threads,
           const std::string& instruction_set) {
            const Kernels& kernels = kernels_by_name(instruction_set);
            nb::gil_scoped_release unlocked;
            neighbours_backward(kernels, call, gradients, threads);
        },
        nb::arg("call"), nb::arg("gradients"), nb::arg("threads"), nb::arg("instruction_set") = "",
        "Fill the gradients of a call over the neighbours of a graph.");
}

void bind_linear(nb::module_& module) {
    using Owner = LinearCall;
    nb::class_<Owner> owner(module, "LinearCall", "See native/linear.h.");
    owner.def(nb::init<>());
    HEADLOOM_FIELDS(rows, terms, input, input_row, relu, by_input);
    owner.def(
        "add",
        [](Owner& call, int64_t columns, uint64_t weight, uint64_t bias, uint64_t output,
           uint64_t by_output, int64_t by_output_row, uint64_t by_weight, uint64_t by_bias) {
            if (call.parts == Owner::most_parts) throw nb::value_error("LinearCall: too many maps");
            const int64_t part = call.parts++;
            call.columns[part] = columns;
            call.weights[part] = address<float>(weight);
            call.biases[part] = address<float>(bias);
            call.outputs[part] = address<float>(output);
            call.by_outputs[part] = address<float>(by_output);
            call.by_output_rows[part] = by_output_row;
            call.by_weights[part] = address<float>(by_weight);
            call.by_biases[part] = address<float>(by_bias);
        },
        nb::arg("columns"), nb::arg("weight"), nb::arg("bias"), nb::arg("output"),
        nb::arg("by_output") = 0, nb::arg("by_output_row") = 0, nb::arg("by_weight") = 0,
        nb::arg("by_bias") = 0, "One more map of the same input.");
    module.def(
        "has_linear",
        [](const std::string& instruction_set) {
            return kernels_by_name(instruction_set).linear->forward_rows != nullptr;
        },
        nb::arg("instruction_set") = "", "Whether there are kernels for linear layers.");
    bind_run<true>(module, "linear_forward", &linear_forward,
                   "Fill the outputs; whether all factors are finite.");
    bind_run<true>(module, "linear_backward", &linear_backward,
                   "Fill the gradients; whether all factors are finite.");
}

void bind_product(nb::module_& module) {
    using Owner = ProductCall;
    nb::class_<Owner> owner(module, "ProductCall", "See native/product.h.");
    owner.def(nb::init<>());
    HEADLOOM_FIELDS(rows, columns, terms, left, left_row, left_along, right, right_row, right_along,
                    bias, relu, accumulate, output, output_row);
    module.def(
        "has_product",
        [](const std::string& instruction_set) {
            return kernels_by_name(instruction_set).product->tasks != nullptr;
        },
        nb::arg("instruction_set") = "", "Whether float32 is multiplied on a matrix unit.");
    module.def(
        "multiply",
        [](const ProductCall& call, int threads, const std::string& instruction_set) {
            const Kernels& kernels = kernels_by_name(instruction_set);
            if (!kernels.product->tasks)
                throw nb::value_error("native: no matrix unit for products");
            nb::gil_scoped_release unlocked;
            return multiply(kernels, call, threads);
        },
        nb::arg("call"), nb::arg("threads"), nb::arg("instruction_set") = "",
        "Fill the output; whether all results are finite.");
}

void bind_passes(nb::module_& module) {
    {
        using Owner = LossCall;
        nb::class_<Owner> owner(module, "LossCall", "See native/passes.h.");
        owner.def(nb::init<>());
        HEADLOOM_FIELDS(rows, columns, logits, targets, smoothing, gradient, losses);
    }
    {
        using Owner = DropoutCall;
        nb::class_<Owner> owner(module, "DropoutCall", "See native/passes.h.");
        owner.def(nb::init<>());
        HEADLOOM_FIELDS(count, input, residual, output, seed, dropped, factor);
    }
    using Owner = RotaryCall;
    nb::class_<Owner> owner(module, "RotaryCall", "See native/passes.h.");
    owner.def(nb::init<>());
    HEADLOOM_FIELDS(batch, heads, positions, depth, input, output, cosines, sines, back);
    {
        using Owner = RowTermsCall;
        nb::class_<Owner> owner(module, "RowTermsCall", "See native/passes.h.");
        owner.def(nb::init<>());
        HEADLOOM_FIELDS(batch, heads, rows, depth, by_output, output, lse, far, subtract,
                        finite_lse);
    }
    bind_run(module, "row_terms", &row_terms, "Fill both; whether no row is far.");
    bind_run(module, "losses", &losses,
             "Fill the losses, and put gradients in place of the logits if asked.");
    bind_run(module, "dropout", &dropout, "Fill the output.");
    bind_run(module, "rotary", &rotary, "Fill the output.");
}

}  // namespace

NB_MODULE(_native, module) {
    module.doc() = "headloom's native kernels.";
    module.def("instruction_sets", &instruction_sets,
               "The instruction sets that these kernels and this processor share, widest first.");
    module.def("compiled_instruction_sets", &compiled_instruction_sets,
               "The instruction sets that these kernels were compiled for, widest first.");
    module.def("set_own_threads", &set_own_threads, nb::arg("count"), "See native/threads.h.");
    nb::class_<Tensor>(module, "Tensor", "An address and strides, in elements.");
    module.def("strided", &reading::strided, "The kernels' view of a tensor; see native/call.h.");
    module.attr("CALL_FIELDS") = reading::names();
    bind_gradients(module);
    bind_neighbours(module);
    bind_linear(module);
    bind_product(module);
    bind_passes(module);
    module.def(
        "forward",
        [](nb::object native, nb::dict results, int threads) {
            Call call = reading::call_of(native);
            reading::read_results(results, call);
            const Kernels& kernels = kernels_by_name(reading::instruction_set_of(native));
            nb::gil_scoped_release unlocked;
            forward(kernels, call, threads);
        },
        nb::arg("native"), nb::arg("results"), nb::arg("threads"),
        "Fill the results of a NativeCall.");
    module.def(
        "backward",
        [](nb::object native, const Gradients& gradients, int threads) {
            const Call call = reading::call_of(native);
            const Kernels& kernels = kernels_by_name(reading::instruction_set_of(native));
            nb::gil_scoped_release unlocked;
            backward(kernels, call, gradients, threads);
        },
        nb::arg("native"), nb::arg("gradients"), nb::arg("threads"),
        "Add the gradients of a NativeCall.");
}
