// Python bindings of the native kernels.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>

#include "attention.h"
#include "kernels.h"

namespace nb = nanobind;
using namespace weft;

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
                               "' on this machine. See weft._native.instruction_sets().")
                                  .c_str());
    return *kernels;
}

}  // namespace

#define WEFT_FIELD(owner, name) .def_rw(#name, &owner::name)
#define WEFT_ADDRESS(owner, name, type)                                                    \
    .def_prop_rw(                                                                    \
        #name, [](const owner& it) { return reinterpret_cast<uintptr_t>(it.name); }, \
        [](owner& it, uint64_t pointer) { it.name = address<type>(pointer); })

NB_MODULE(_native, module) {
    module.doc() = "weft's native kernels.";
    module.def("instruction_sets", &instruction_sets,
               "The instruction sets that these kernels and this processor share, widest first.");
    nb::class_<Tensor>(module, "Tensor", "An address and strides, in elements.")
        .def(
            "__init__",
            [](Tensor* self, uint64_t data, int64_t batch, int64_t head, int64_t row) {
                new (self) Tensor{address<void>(data), batch, head, row};
            },
            nb::arg("data"), nb::arg("batch"), nb::arg("head"), nb::arg("row"));
    nb::class_<Call>(module, "Call", "What one attention call is asked; see native/call.h.")
        .def(nb::init<>())
        WEFT_FIELD(Call, batch) WEFT_FIELD(Call, heads) WEFT_FIELD(Call, kv_heads)
        WEFT_FIELD(Call, queries_count) WEFT_FIELD(Call, keys_count) WEFT_FIELD(Call, depth) WEFT_FIELD(Call, value_depth)
        WEFT_FIELD(Call, queries) WEFT_FIELD(Call, keys) WEFT_FIELD(Call, values) WEFT_FIELD(Call, bfloat16)
        WEFT_FIELD(Call, scale) WEFT_FIELD(Call, softcap)
        WEFT_FIELD(Call, banded) WEFT_FIELD(Call, left) WEFT_FIELD(Call, right)
        WEFT_ADDRESS(Call, first_key, const int64_t) WEFT_ADDRESS(Call, end_key, const int64_t)
        WEFT_ADDRESS(Call, row_first, const int64_t) WEFT_ADDRESS(Call, row_end, const int64_t)
        WEFT_FIELD(Call, row_range_batch) WEFT_FIELD(Call, allowed)
        WEFT_FIELD(Call, bias) WEFT_ADDRESS(Call, offset_bias, const float) WEFT_FIELD(Call, offset_bias_head)
        WEFT_ADDRESS(Call, key_table, const float) WEFT_ADDRESS(Call, value_table, const float)
        WEFT_FIELD(Call, key_table_head) WEFT_FIELD(Call, value_table_head)
        WEFT_FIELD(Call, clip) WEFT_FIELD(Call, relative_offset)
        WEFT_ADDRESS(Call, sinks, const float)
        WEFT_ADDRESS(Call, output, void) WEFT_ADDRESS(Call, lse, float) WEFT_ADDRESS(Call, entropy, float)
        WEFT_ADDRESS(Call, rest, float) WEFT_ADDRESS(Call, count, int32_t)
        WEFT_FIELD(Call, kept) WEFT_ADDRESS(Call, kept_keys, int32_t) WEFT_ADDRESS(Call, kept_scores, float)
        WEFT_ADDRESS(Call, kept_weights, float);
    nb::class_<Gradients>(module, "Gradients", "See native/gradients.h.")
        .def(nb::init<>())
        WEFT_FIELD(Gradients, output) WEFT_ADDRESS(Gradients, lse, const float)
        WEFT_ADDRESS(Gradients, subtract, const float)
        WEFT_ADDRESS(Gradients, by_entropy, const float)
        WEFT_FIELD(Gradients, kept) WEFT_ADDRESS(Gradients, kept_keys, const int32_t)
        WEFT_ADDRESS(Gradients, kept_scores, const float)
        WEFT_FIELD(Gradients, pieces) WEFT_FIELD(Gradients, piece_keys)
        WEFT_FIELD(Gradients, padded_depth) WEFT_FIELD(Gradients, padded_value_depth)
        WEFT_ADDRESS(Gradients, queries, float) WEFT_ADDRESS(Gradients, keys, float)
        WEFT_ADDRESS(Gradients, values, float) WEFT_ADDRESS(Gradients, bias, float)
        WEFT_ADDRESS(Gradients, key_bias, float) WEFT_ADDRESS(Gradients, offset_bias, float)
        WEFT_ADDRESS(Gradients, key_table, float) WEFT_ADDRESS(Gradients, value_table, float);
    module.def(
        "forward",
        [](const Call& call, int threads, const std::string& instruction_set) {
            const Kernels& kernels = kernels_by_name(instruction_set);
            nb::gil_scoped_release unlocked;
            forward(kernels, call, threads);
        },
        nb::arg("call"), nb::arg("threads"), nb::arg("instruction_set") = "",
        "Fill the results of a call. instruction_set: the widest there is if empty.");
    module.def(
        "backward",
        [](const Call& call, const Gradients& gradients, int threads,
           const std::string& instruction_set) {
            const Kernels& kernels = kernels_by_name(instruction_set);
            nb::gil_scoped_release unlocked;
            backward(kernels, call, gradients, threads);
        },
        nb::arg("call"), nb::arg("gradients"), nb::arg("threads"), nb::arg("instruction_set") = "",
        "Add the gradients of a call.");
}
