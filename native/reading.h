// What Python says of an attention call, as the kernels read it: see NativeCall in
// mechanism/backends/native_request.py, whose attributes have the names of the fields in call.h.
//
// Attributes are read here, and not set from Python one by one, because calls of a few microseconds
// feel it. Nothing is linked against torch: a tensor is whatever says its shape, its strides and
// its address.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

#include "call.h"

namespace headloom {
namespace reading {

namespace nb = nanobind;

// Whole numbers of a tuple of Python's.
inline int64_t number_of(nb::handle number) {
    const long long value = PyLong_AsLongLong(number.ptr());
    if (value == -1 && PyErr_Occurred()) throw nb::python_error();
    return value;
}
inline int64_t item(const nb::object& tuple, Py_ssize_t place) {
    return number_of(PyTuple_GetItem(tuple.ptr(), place));
}

// Names of attributes, made once.
#define HEADLOOM_PYTHON_NAME(name)                                       \
    static nb::handle name() {                                           \
        static PyObject* const made = PyUnicode_InternFromString(#name); \
        return made;                                                     \
    }
struct Names {
    HEADLOOM_PYTHON_NAME(shape)
    HEADLOOM_PYTHON_NAME(stride)
    HEADLOOM_PYTHON_NAME(data_ptr)
};

inline nb::object attribute(nb::handle owner, nb::handle name) {
    PyObject* const found = PyObject_GetAttr(owner.ptr(), name.ptr());
    if (!found) throw nb::python_error();
    return nb::steal(found);
}

inline nb::object result_of(nb::handle owner, nb::handle method) {
    PyObject* const found = PyObject_CallMethodObjArgs(owner.ptr(), method.ptr(), nullptr);
    if (!found) throw nb::python_error();
    return nb::steal(found);
}

inline nb::object tuple_of(nb::object found) {
    if (!PyTuple_Check(found.ptr())) throw nb::type_error("native: expected a tensor");
    return found;
}

inline uintptr_t address_of(nb::handle tensor) {
    return static_cast<uintptr_t>(number_of(result_of(tensor, Names::data_ptr())));
}

// The kernels' view of a tensor of up to four dimensions.
inline Tensor strided(nb::handle tensor) {
    const nb::object shape = tuple_of(attribute(tensor, Names::shape()));
    const nb::object strides = tuple_of(result_of(tensor, Names::stride()));
    const Py_ssize_t dimensions = PyTuple_Size(shape.ptr());
    const auto stride = [&](Py_ssize_t from_last) -> int64_t {
        const Py_ssize_t place = dimensions - 1 - from_last;
        return place < 0 || item(shape, place) == 1 ? 0 : item(strides, place);
    };
    return {reinterpret_cast<const void*>(address_of(tensor)), stride(3), stride(2), stride(1)};
}

inline void read(nb::handle value, Tensor& to) {
    if (!value.is_none()) to = strided(value);
}
inline void read(nb::handle value, int64_t& to) { to = number_of(value); }
inline void read(nb::handle value, bool& to) { to = PyObject_IsTrue(value.ptr()) == 1; }
inline void read(nb::handle value, float& to) {
    const double number = PyFloat_AsDouble(value.ptr());
    if (number == -1.0 && PyErr_Occurred()) throw nb::python_error();
    to = static_cast<float>(number);
}
template <typename Element>
inline void read(nb::handle value, Element*& to) {
    to = reinterpret_cast<Element*>(address_of(value));
}

// What a NativeCall has, by the names of its attributes.
#define HEADLOOM_CALL_FIELDS(field)                                                          \
    field(queries) field(keys) field(values) field(bias) field(offset_bias) field(key_table) \
        field(value_table) field(sinks) field(key_range) field(row_range) field(allowed)     \
            field(scale) field(softcap) field(banded) field(left) field(right) field(clip)   \
                field(relative_offset) field(last_queries) field(bfloat16)
// Where its results go: tensors by these names, and how many edges of a row are kept.
#define HEADLOOM_RESULT_FIELDS(field)                                                       \
    field(output) field(exact_output) field(lse) field(entropy) field(rest) field(count)    \
        field(kept) field(kept_keys) field(kept_scores) field(kept_weights) field(received) \
            field(received_most) field(received_last)

inline Call call_of(nb::handle native) {
    Call call;
#define HEADLOOM_READ(name)                                              \
    {                                                                    \
        static PyObject* const made = PyUnicode_InternFromString(#name); \
        read(attribute(native, made), call.name);                        \
    }
    HEADLOOM_CALL_FIELDS(HEADLOOM_READ)
#undef HEADLOOM_READ
    static PyObject* const queries = PyUnicode_InternFromString("queries");
    static PyObject* const values = PyUnicode_InternFromString("values");
    const nb::object rows = tuple_of(attribute(attribute(native, queries), Names::shape()));
    const nb::object columns = tuple_of(attribute(attribute(native, values), Names::shape()));
    if (PyTuple_Size(rows.ptr()) != 4 || PyTuple_Size(columns.ptr()) != 4)
        throw nb::type_error("native: expected four dimensions");
    call.batch = item(rows, 0);
    call.heads = item(rows, 1);
    call.queries_count = item(rows, 2);
    call.depth = item(rows, 3);
    call.kv_heads = item(columns, 1);
    call.keys_count = item(columns, 2);
    call.value_depth = item(columns, 3);
    return call;
}

inline void read_results(nb::dict results, Call& call) {
    size_t known = 0;
#define HEADLOOM_READ(name)                                                         \
    {                                                                               \
        static PyObject* const made = PyUnicode_InternFromString(#name);            \
        if (PyObject* const value = PyDict_GetItemWithError(results.ptr(), made)) { \
            read(nb::handle(value), call.name);                                     \
            ++known;                                                                \
        }                                                                           \
    }
    HEADLOOM_RESULT_FIELDS(HEADLOOM_READ)
#undef HEADLOOM_READ
    if (known != results.size()) throw nb::key_error("native: no result of that name");
}

inline std::string instruction_set_of(nb::handle native) {
    static PyObject* const name = PyUnicode_InternFromString("instruction_set");
    return nb::cast<std::string>(attribute(native, name));
}

// Every name that is read, so that Python can tell whether these kernels are its own.
inline nb::tuple names() {
    nb::list found;
#define HEADLOOM_NAME(name) found.append(#name);
    HEADLOOM_CALL_FIELDS(HEADLOOM_NAME)
    HEADLOOM_RESULT_FIELDS(HEADLOOM_NAME)
#undef HEADLOOM_NAME
    return nb::tuple(found);
}

}  // namespace reading
}  // namespace headloom
