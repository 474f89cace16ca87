// The kernels, compiled once for every instruction set: the build defines WEFT_INSTRUCTION_SET
// and gives the compiler the matching flags. Nothing here may use a function that the linker
// could share with code for other processors (no standard library templates).
#include "kernels.h"

#include "forward.h"

namespace weft {
namespace WEFT_INSTRUCTION_SET {

static int64_t packed_keys_size(const Call& call) {
    return packed_rows(call.keys_count) * call.depth;
}

static int64_t packed_values_size(const Call& call) {
    return values_in_place(call) ? 0 : call.keys_count * round_up(call.value_depth, lanes);
}

static int64_t kv_index(const Call& call, int64_t b, int64_t kv_head) {
    return b * call.kv_heads + kv_head;
}

static void pack(const Call& call, int64_t b, int64_t kv_head, int64_t first, int64_t end) {
    const int64_t index = kv_index(call, b, kv_head);
    pack_panels(call.keys, call.bfloat16, b, kv_head, first, end, call.keys_count, call.depth,
                call.packed_keys + index * packed_keys_size(call));
    if (!values_in_place(call))
        pack_rows(call.values, call.bfloat16, b, kv_head, first, end, call.value_depth,
                  call.packed_values + index * packed_values_size(call));
}

static Matrix values_of(const Call& call, int64_t b, int64_t kv_head, const float* packed) {
    if (values_in_place(call)) return {call.values.at<float>(b, kv_head, 0), call.values.row};
    return {packed, round_up(call.value_depth, lanes)};
}

static size_t forward_workspace(const Call& call, bool pack_within) {
    Workspace space(nullptr);
    lay_out_block(call, space);
    if (pack_within) {
        space.take<float>(packed_keys_size(call));
        space.take<float>(packed_values_size(call));
    }
    return space.used();
}

static void forward_block_shared(const Call& call, int64_t b, int64_t h, int64_t first_query,
                                 char* workspace) {
    Workspace space(workspace);
    Block* block = lay_out_block(call, space);
    const int64_t kv_head = h / (call.heads / call.kv_heads);
    const int64_t index = kv_index(call, b, kv_head);
    forward_block(call, *block, b, h, first_query,
                  call.packed_keys + index * packed_keys_size(call),
                  values_of(call, b, kv_head,
                            call.packed_values + index * packed_values_size(call)));
}

static void forward_head(const Call& call, int64_t b, int64_t kv_head, char* workspace) {
    Workspace space(workspace);
    Block* block = lay_out_block(call, space);
    float* packed_keys = space.take<float>(packed_keys_size(call));
    float* packed_values = space.take<float>(packed_values_size(call));
    const int64_t end = call.end_key ? smaller(call.keys_count, call.end_key[b]) : call.keys_count;
    const int64_t first = call.first_key ? larger(0, call.first_key[b]) : 0;
    pack_panels(call.keys, call.bfloat16, b, kv_head, first / panel_columns * panel_columns, end,
                call.keys_count, call.depth, packed_keys);
    if (!values_in_place(call))
        pack_rows(call.values, call.bfloat16, b, kv_head, first, end, call.value_depth,
                  packed_values);
    const Matrix values = values_of(call, b, kv_head, packed_values);
    const int64_t group = call.heads / call.kv_heads;
    for (int64_t h = kv_head * group; h < (kv_head + 1) * group; ++h)
        for (int64_t query = 0; query < call.queries_count; query += block_queries)
            forward_block(call, *block, b, h, query, packed_keys, values);
}

#define WEFT_STRING(name) #name
#define WEFT_NAME(name) WEFT_STRING(name)

// Named by the instruction set's namespace, so that every build of this file has its own.
extern const Kernels kernels;
const Kernels kernels = {
    WEFT_NAME(WEFT_INSTRUCTION_SET),
    block_queries,
    forward_workspace,
    pack,
    packed_keys_size,
    packed_values_size,
    forward_block_shared,
    forward_head,
};

}  // namespace WEFT_INSTRUCTION_SET
}  // namespace weft
