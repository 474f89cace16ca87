"""The forward kernel: from a NativeCall to its results, and the addresses that kernels read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from weft.mechanism.backends.native_request import NativeCall, kernels

__all__ = ["Rows", "forward", "request", "strided"]


@dataclass(frozen=True, eq=False)
class Rows:
    """What one call of the forward kernel gives, batch first; see AttentionGraph for the words."""

    output: Tensor
    lse: Tensor
    entropy: Tensor | None = None
    rest: Tensor | None = None
    count: Tensor | None = None
    keys: Tensor | None = None
    scores: Tensor | None = None
    weights: Tensor | None = None


def forward(native: NativeCall, kept: int | None, with_lse: bool = True) -> Rows:
    """Run the forward kernel.

    kept: how many edges of a row to keep; None for the output and lse alone.
    with_lse: whether to write lse; it is left empty otherwise.
    """
    batch, heads, queries, _ = native.queries.shape
    length, value_depth = native.values.shape[2:]
    rows = (batch, heads, queries)
    output = native.queries.new_empty(*rows, value_depth)
    lse = torch.empty(rows if with_lse else 0)  # at address 0 if empty: not asked for
    call = request(native)
    call.output, call.lse = output.data_ptr(), lse.data_ptr()
    found = Rows(output, lse)
    if kept is not None:
        k = min(kept, length)
        found = Rows(
            output,
            lse,
            entropy=torch.empty(rows),
            rest=torch.empty(rows),
            count=torch.empty(rows, dtype=torch.int32),
            keys=torch.empty(*rows, k, dtype=torch.int32),
            scores=torch.empty(*rows, k),
            weights=torch.empty(*rows, k),
        )
        call.kept = k
        call.entropy, call.rest = address(found.entropy), address(found.rest)
        call.count, call.kept_keys = address(found.count), address(found.keys)
        call.kept_scores, call.kept_weights = address(found.scores), address(found.weights)
    kernels.forward(call, torch.get_num_threads(), native.instruction_set)
    return found


def address(tensor: Tensor | None) -> int:
    """Where the numbers of a tensor begin; 0 of None."""
    return 0 if tensor is None else tensor.data_ptr()


def strided(tensor: Tensor) -> Any:
    """Address and strides; a dimension of size 1 is the same for every index."""
    sizes, strides = tensor.shape[:3], tensor.stride()[:3]
    return kernels.Tensor(
        tensor.data_ptr(),
        *(0 if size == 1 else stride for size, stride in zip(sizes, strides, strict=True)),
    )


def request(native: NativeCall) -> Any:
    """The kernels' view of a call: addresses into tensors that `native` keeps alive."""
    call = kernels.Call()
    call.batch, call.heads, call.queries_count, call.depth = native.queries.shape
    call.kv_heads, call.keys_count, call.value_depth = native.values.shape[1:]
    call.queries, call.keys = strided(native.queries), strided(native.keys)
    call.values = strided(native.values)
    call.bfloat16 = native.queries.dtype == torch.bfloat16
    call.scale, call.softcap = native.scale, native.softcap
    if native.band is not None:
        call.banded = True
        call.left, call.right = native.band
    if native.key_range is not None:
        call.first_key = native.key_range[0].data_ptr()
        call.end_key = native.key_range[1].data_ptr()
    if native.row_range is not None:
        call.row_first = native.row_range[0].data_ptr()
        call.row_end = native.row_range[1].data_ptr()
        call.row_range_batch = call.queries_count if native.row_range.shape[1] > 1 else 0
    if native.allowed is not None:
        call.allowed = strided(native.allowed)
    if native.bias is not None:
        call.bias = strided(native.bias)
    if native.offset_bias is not None:
        call.offset_bias = native.offset_bias.data_ptr()
        call.offset_bias_head = native.offset_bias.stride(0)
    call.clip, call.relative_offset = native.clip, native.relative_offset
    if native.key_table is not None:
        call.key_table = native.key_table.data_ptr()
        call.key_table_head = native.key_table.stride(0) if len(native.key_table) > 1 else 0
    if native.value_table is not None:
        call.value_table = native.value_table.data_ptr()
        call.value_table_head = native.value_table.stride(0) if len(native.value_table) > 1 else 0
    if native.sinks is not None:
        call.sinks = native.sinks.data_ptr()
    return call
