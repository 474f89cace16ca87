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

#define WEFT_FIELD(name) .def_rw(#name, &Call::name)
#define WEFT_ADDRESS(name, type)                                                     \
    .def_prop_rw(                                                                    \
        #name, [](const Call& call) { return reinterpret_cast<uintptr_t>(call.name); }, \
        [](Call& call, uint64_t pointer) { call.name = address<type>(pointer); })

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
        WEFT_FIELD(batch) WEFT_FIELD(heads) WEFT_FIELD(kv_heads)
        WEFT_FIELD(queries_count) WEFT_FIELD(keys_count) WEFT_FIELD(depth) WEFT_FIELD(value_depth)
        WEFT_FIELD(queries) WEFT_FIELD(keys) WEFT_FIELD(values) WEFT_FIELD(bfloat16)
        WEFT_FIELD(scale) WEFT_FIELD(softcap)
        WEFT_FIELD(banded) WEFT_FIELD(left) WEFT_FIELD(right)
        WEFT_ADDRESS(first_key, const int64_t) WEFT_ADDRESS(end_key, const int64_t)
        WEFT_ADDRESS(row_first, const int64_t) WEFT_ADDRESS(row_end, const int64_t)
        WEFT_FIELD(row_range_batch) WEFT_FIELD(allowed)
        WEFT_FIELD(bias) WEFT_ADDRESS(offset_bias, const float) WEFT_FIELD(offset_bias_head)
        WEFT_ADDRESS(key_table, const float) WEFT_ADDRESS(value_table, const float)
        WEFT_FIELD(key_table_head) WEFT_FIELD(value_table_head)
        WEFT_FIELD(clip) WEFT_FIELD(relative_offset)
        WEFT_ADDRESS(sinks, const float)
        WEFT_ADDRESS(output, void) WEFT_ADDRESS(lse, float) WEFT_ADDRESS(entropy, float)
        WEFT_ADDRESS(rest, float) WEFT_ADDRESS(count, int32_t)
        WEFT_FIELD(kept) WEFT_ADDRESS(kept_keys, int32_t) WEFT_ADDRESS(kept_scores, float)
        WEFT_ADDRESS(kept_weights, float);
    module.def(
        "forward",
        [](const Call& call, int threads, const std::string& instruction_set) {
            const Kernels& kernels = kernels_by_name(instruction_set);
            nb::gil_scoped_release unlocked;
            forward(kernels, call, threads);
        },
        nb::arg("call"), nb::arg("threads"), nb::arg("instruction_set") = "",
        "Fill the results of a call. instruction_set: the widest there is if empty.");
}
