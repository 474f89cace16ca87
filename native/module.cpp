// Python bindings of the native kernels.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>

#include "attention.h"
#include "feed_forward.h"
#include "kernels.h"
#include "linear.h"
#include "neighbours.h"
#include "passes.h"
#include "prepared.h"
#include "product.h"
#include "projected.h"
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

#define HEADLOOM_FIELD(name) field(owner, #name, &Owner::name)

void bind_gradients(nb::module_& module) {
    using Owner = Gradients;
    nb::class_<Owner> owner(module, "Gradients", "See native/gradients.h.");
    owner.def(nb::init<>());
    HEADLOOM_FIELD(output);
    HEADLOOM_FIELD(kept);
    HEADLOOM_FIELD(pieces);
    HEADLOOM_FIELD(piece_keys);
    HEADLOOM_FIELD(padded_depth);
    HEADLOOM_FIELD(padded_value_depth);
    HEADLOOM_FIELD(lse);
    HEADLOOM_FIELD(subtract);
    HEADLOOM_FIELD(by_entropy);
    HEADLOOM_FIELD(kept_keys);
    HEADLOOM_FIELD(kept_scores);
    HEADLOOM_FIELD(queries);
    HEADLOOM_FIELD(keys);
    HEADLOOM_FIELD(values);
    HEADLOOM_FIELD(bias);
    HEADLOOM_FIELD(key_bias);
    HEADLOOM_FIELD(offset_bias);
    HEADLOOM_FIELD(key_table);
    HEADLOOM_FIELD(value_table);
}

void bind_neighbours(nb::module_& module) {
    {
        using Owner = NeighbourCall;
        nb::class_<Owner> owner(module, "NeighbourCall", "See native/neighbours_call.h.");
        owner.def(nb::init<>());
        HEADLOOM_FIELD(targets);
        HEADLOOM_FIELD(sources);
        HEADLOOM_FIELD(edges_count);
        HEADLOOM_FIELD(heads);
        HEADLOOM_FIELD(depth);
        HEADLOOM_FIELD(value_depth);
        HEADLOOM_FIELD(row_starts);
        HEADLOOM_FIELD(columns);
        HEADLOOM_FIELD(edges);
        HEADLOOM_FIELD(column_starts);
        HEADLOOM_FIELD(rows);
        HEADLOOM_FIELD(places);
        HEADLOOM_FIELD(score);
        HEADLOOM_FIELD(slope);
        HEADLOOM_FIELD(scale);
        HEADLOOM_FIELD(target_terms);
        HEADLOOM_FIELD(source_terms);
        HEADLOOM_FIELD(queries);
        HEADLOOM_FIELD(keys);
        HEADLOOM_FIELD(values);
        HEADLOOM_FIELD(vector);
        HEADLOOM_FIELD(edge_terms);
        HEADLOOM_FIELD(edge_features);
        HEADLOOM_FIELD(edge_matrix);
        HEADLOOM_FIELD(edge_width);
        HEADLOOM_FIELD(kept);
        HEADLOOM_FIELD(kept_factor);
        HEADLOOM_FIELD(output);
        HEADLOOM_FIELD(shift);
        HEADLOOM_FIELD(inverse);
        HEADLOOM_FIELD(scores);
    }
    using Owner = NeighbourGradients;
    nb::class_<Owner> owner(module, "NeighbourGradients", "See native/neighbours_call.h.");
    owner.def(nb::init<>());
    HEADLOOM_FIELD(by_output);
    HEADLOOM_FIELD(pieces);
    HEADLOOM_FIELD(state);
    HEADLOOM_FIELD(scores);
    HEADLOOM_FIELD(target_terms);
    HEADLOOM_FIELD(source_terms);
    HEADLOOM_FIELD(queries);
    HEADLOOM_FIELD(keys);
    HEADLOOM_FIELD(values);
    HEADLOOM_FIELD(edge_features);
    HEADLOOM_FIELD(vector);
    HEADLOOM_FIELD(edge_matrix);
    module.def(
        "neighbours_forward",
        [](const NeighbourCall& call, int threads, const std::string& instruction_set) {
            const Kernels& kernels = kernels_by_name(instruction_set);
            nb::gil_scoped_release unlocked;
            neighbours_forward(kernels, call, threads);
        },
        nb::arg("call"), nb::arg("threads"), nb::arg("instruction_set") = "",
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
    module.def(
        "group_edges",
        [](uint64_t ends, bool wide, int64_t count, int64_t nodes, uint64_t starts,
           uint64_t order) {
            nb::gil_scoped_release unlocked;
            int64_t* first = address<int64_t>(starts);
            if (wide)
                group_edges(address<int64_t>(ends), count, nodes, first, address<int32_t>(order));
            else
                group_edges(address<int32_t>(ends), count, nodes, first, address<int32_t>(order));
        },
        "A stable sort of edges by one end, 64 or 32 bits wide; see native/neighbours.h.");
}

// `pairs`: of bfloat16 are multiplied, which not every instruction set has kernels for.
template <bool pairs = false, typename Asked, typename Result>
void bind_run(nb::module_& module, const char* name,
              Result (*run)(const Kernels&, const Asked&, int), const char* what) {
    module.def(
        name,
        [run](const Asked& call, int threads, const std::string& instruction_set) {
            const Kernels& kernels = kernels_by_name(instruction_set);
            if (pairs && !kernels.linear)
                throw nb::value_error("native: no kernels for linear layers");
            nb::gil_scoped_release unlocked;
            return run(kernels, call, threads);
        },
        nb::arg("call"), nb::arg("threads"), nb::arg("instruction_set") = "", what);
}

void bind_linear(nb::module_& module) {
    using Owner = LinearCall;
    nb::class_<Owner> owner(module, "LinearCall", "See native/linear_call.h.");
    owner.def(nb::init<>());
    HEADLOOM_FIELD(rows);
    HEADLOOM_FIELD(terms);
    HEADLOOM_FIELD(input);
    HEADLOOM_FIELD(input_row);
    HEADLOOM_FIELD(relu);
    HEADLOOM_FIELD(splits);
    HEADLOOM_FIELD(by_input);
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
            return kernels_by_name(instruction_set).linear != nullptr;
        },
        nb::arg("instruction_set") = "", "Whether there are kernels for linear layers.");
    bind_run<true>(module, "linear_forward", &linear_forward,
                   "Fill the outputs; whether all factors are finite.");
    bind_run<true>(module, "linear_backward", &linear_backward,
                   "Fill the gradients; whether all factors are finite.");
}

void bind_feed_forward(nb::module_& module) {
    using Owner = FeedForwardCall;
    nb::class_<Owner> owner(module, "FeedForwardCall", "See native/feed_forward_call.h.");
    owner.def(nb::init<>());
    HEADLOOM_FIELD(rows), HEADLOOM_FIELD(width), HEADLOOM_FIELD(inner), HEADLOOM_FIELD(outer);
    HEADLOOM_FIELD(kind), HEADLOOM_FIELD(input), HEADLOOM_FIELD(input_row);
    HEADLOOM_FIELD(rise), HEADLOOM_FIELD(rise_biases);
    HEADLOOM_FIELD(fall), HEADLOOM_FIELD(fall_biases);
    HEADLOOM_FIELD(hidden), HEADLOOM_FIELD(output);
    HEADLOOM_FIELD(by_output), HEADLOOM_FIELD(by_output_row);
    HEADLOOM_FIELD(by_input), HEADLOOM_FIELD(by_rise);
    HEADLOOM_FIELD(by_rise_biases);
    HEADLOOM_FIELD(by_fall), HEADLOOM_FIELD(by_fall_biases);
    bind_run<true>(module, "feed_forward", &feed_forward,
                   "Fill the output and what is hidden; whether all factors are finite.");
    bind_run<true>(module, "feed_forward_backward", &feed_forward_backward,
                   "Fill the gradients; whether all factors are finite.");
}

void bind_prepared(nb::module_& module) {
    using Owner = PreparedCall;
    nb::class_<Owner> owner(module, "PreparedCall", "See native/prepared_call.h.");
    owner.def(nb::init<>());
    HEADLOOM_FIELD(rows), HEADLOOM_FIELD(terms), HEADLOOM_FIELD(columns), HEADLOOM_FIELD(pairs), HEADLOOM_FIELD(weight);
    HEADLOOM_FIELD(matrix), HEADLOOM_FIELD(input), HEADLOOM_FIELD(input_row), HEADLOOM_FIELD(bias);
    HEADLOOM_FIELD(relu), HEADLOOM_FIELD(output);
    module.def(
        "prepared_bytes",
        [](const PreparedCall& call, const std::string& instruction_set) {
            return prepared_bytes(kernels_by_name(instruction_set), call);
        },
        nb::arg("call"), nb::arg("instruction_set") = "",
        "Bytes of a packed matrix; 0 where this instruction set multiplies no such numbers.");
    bind_run(module, "prepare", &prepare, "Pack a matrix; whether all its numbers are finite.");
    bind_run(module, "prepared_forward", &prepared_forward,
             "Fill the output; whether all factors are finite.");
}

void bind_product(nb::module_& module) {
    using Owner = ProductCall;
    nb::class_<Owner> owner(module, "ProductCall", "See native/product_call.h.");
    owner.def(nb::init<>());
    HEADLOOM_FIELD(rows), HEADLOOM_FIELD(columns), HEADLOOM_FIELD(terms);
    HEADLOOM_FIELD(left), HEADLOOM_FIELD(left_row), HEADLOOM_FIELD(left_along);
    HEADLOOM_FIELD(right), HEADLOOM_FIELD(right_row), HEADLOOM_FIELD(right_along);
    HEADLOOM_FIELD(bias), HEADLOOM_FIELD(relu), HEADLOOM_FIELD(accumulate), HEADLOOM_FIELD(gate);
    HEADLOOM_FIELD(output), HEADLOOM_FIELD(output_row);
    module.def(
        "has_product",
        [](const std::string& instruction_set) {
            return kernels_by_name(instruction_set).product != nullptr;
        },
        nb::arg("instruction_set") = "", "Whether float32 is multiplied on a matrix unit.");
    module.def(
        "multiply",
        [](const ProductCall& call, int threads, const std::string& instruction_set) {
            const Kernels& kernels = kernels_by_name(instruction_set);
            if (!kernels.product) throw nb::value_error("native: no matrix unit for products");
            nb::gil_scoped_release unlocked;
            return multiply(kernels, call, threads);
        },
        nb::arg("call"), nb::arg("threads"), nb::arg("instruction_set") = "",
        "Fill the output; whether all results are finite.");
}

void bind_projected(nb::module_& module) {
    using Owner = ProjectedCall;
    nb::class_<Owner> owner(module, "ProjectedCall", "See native/projected_call.h.");
    owner.def(nb::init<>());
    HEADLOOM_FIELD(rows), HEADLOOM_FIELD(width), HEADLOOM_FIELD(choices), HEADLOOM_FIELD(inputs);
    HEADLOOM_FIELD(matrix), HEADLOOM_FIELD(targets), HEADLOOM_FIELD(smoothing), HEADLOOM_FIELD(losses);
    HEADLOOM_FIELD(by_inputs), HEADLOOM_FIELD(by_matrix);
    bind_run<true>(module, "projected_losses", &projected_losses,
                   "Fill the losses and gradients; whether all factors are finite.");
}

void bind_passes(nb::module_& module) {
    {
        using Owner = LossCall;
        nb::class_<Owner> owner(module, "LossCall", "See native/passes_call.h.");
        owner.def(nb::init<>());
        HEADLOOM_FIELD(rows), HEADLOOM_FIELD(columns), HEADLOOM_FIELD(logits), HEADLOOM_FIELD(targets);
        HEADLOOM_FIELD(smoothing), HEADLOOM_FIELD(gradient), HEADLOOM_FIELD(losses);
    }
    {
        using Owner = DropoutCall;
        nb::class_<Owner> owner(module, "DropoutCall", "See native/passes_call.h.");
        owner.def(nb::init<>());
        HEADLOOM_FIELD(count), HEADLOOM_FIELD(input), HEADLOOM_FIELD(residual), HEADLOOM_FIELD(output);
        HEADLOOM_FIELD(seed), HEADLOOM_FIELD(dropped), HEADLOOM_FIELD(factor);
    }
    {
        using Owner = ActivationCall;
        nb::class_<Owner> owner(module, "ActivationCall", "See native/passes_call.h.");
        owner.def(nb::init<>());
        HEADLOOM_FIELD(count), HEADLOOM_FIELD(kind), HEADLOOM_FIELD(input), HEADLOOM_FIELD(gradient);
        HEADLOOM_FIELD(output);
    }
    using Owner = RotaryCall;
    nb::class_<Owner> owner(module, "RotaryCall", "See native/passes_call.h.");
    owner.def(nb::init<>());
    HEADLOOM_FIELD(batch), HEADLOOM_FIELD(heads), HEADLOOM_FIELD(positions), HEADLOOM_FIELD(depth);
    HEADLOOM_FIELD(input), HEADLOOM_FIELD(output), HEADLOOM_FIELD(cosines), HEADLOOM_FIELD(sines), HEADLOOM_FIELD(back);
    {
        using Owner = RowTermsCall;
        nb::class_<Owner> owner(module, "RowTermsCall", "See native/passes_call.h.");
        owner.def(nb::init<>());
        HEADLOOM_FIELD(batch), HEADLOOM_FIELD(heads), HEADLOOM_FIELD(rows), HEADLOOM_FIELD(depth);
        HEADLOOM_FIELD(by_output), HEADLOOM_FIELD(output), HEADLOOM_FIELD(lse), HEADLOOM_FIELD(far);
        HEADLOOM_FIELD(subtract), HEADLOOM_FIELD(finite_lse);
    }
    bind_run(module, "row_terms", &row_terms, "Fill both; whether no row is far.");
    bind_run(module, "losses", &losses,
             "Fill the losses, and put gradients in place of the logits if asked.");
    bind_run(module, "dropout", &dropout, "Fill the output.");
    bind_run(module, "rotary", &rotary, "Fill the output.");
    bind_run(module, "activation", &activation, "Fill the output.");
}

#undef HEADLOOM_FIELD

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
    bind_feed_forward(module);
    bind_prepared(module);
    bind_product(module);
    bind_projected(module);
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
