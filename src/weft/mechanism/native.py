"""The native kernels as attention calls: forward, and backward from output and log-sum-exp.

The kernels stream keys past blocks of queries and never form the matrix of weights; see
native/forward.h and native/backward.h. Results do not depend on the number of threads. For
gradients of gradients, use backend="torch".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from weft.mechanism.call import AttentionCall
from weft.mechanism.graph import AttentionGraph, Top
from weft.mechanism.native_call import NativeCall, kernels, prepare, why_not_served

__all__ = ["Rows", "attend", "attention", "forward", "instruction_sets", "why_not_served"]

#: Tasks that the backward pass is cut into where there are few heads.
BACKWARD_TASKS = 8


def instruction_sets() -> list[str]:
    """The instruction sets that the kernels and this processor share, the widest first."""
    return [] if kernels is None else list(kernels.instruction_sets())


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
    call = _request(native)
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
        call.entropy, call.rest = _address(found.entropy), _address(found.rest)
        call.count, call.kept_keys = _address(found.count), _address(found.keys)
        call.kept_scores, call.kept_weights = _address(found.scores), _address(found.weights)
    kernels.forward(call, torch.get_num_threads(), native.instruction_set)
    return found


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _strided(tensor: Tensor) -> Any:
    """Address and strides; a dimension of size 1 is the same for every index."""
    sizes, strides = tensor.shape[:3], tensor.stride()[:3]
    return kernels.Tensor(
        tensor.data_ptr(),
        *(0 if size == 1 else stride for size, stride in zip(sizes, strides, strict=True)),
    )


def _request(native: NativeCall) -> Any:
    """The kernels' view of a call: addresses into tensors that `native` keeps alive."""
    call = kernels.Call()
    call.batch, call.heads, call.queries_count, call.depth = native.queries.shape
    call.kv_heads, call.keys_count, call.value_depth = native.values.shape[1:]
    call.queries, call.keys = _strided(native.queries), _strided(native.keys)
    call.values = _strided(native.values)
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
        call.allowed = _strided(native.allowed)
    if native.bias is not None:
        call.bias = _strided(native.bias)
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


class _Attention(torch.autograd.Function):
    """Output and log-sum-exp, differentiable."""

    @staticmethod
    def forward(ctx: Any, native: NativeCall, *tensors: Tensor | None) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        rows = forward(native, None)
        ctx.native = native.with_tensors((torch.empty(0),) * 3 + (None,) * 5)
        ctx.save_for_backward(*tensors, rows.output, rows.lse)
        return rows.output, rows.lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, output: Tensor | None, lse: Tensor | None) -> tuple[Any, ...]:
        *tensors, saved_output, saved_lse = ctx.saved_tensors
        native = ctx.native.with_tensors(tuple(tensors))
        incoming = _Incoming(output, lse)
        return None, *_gradients(ctx, native, Rows(saved_output, saved_lse), incoming)


class _Attend(torch.autograd.Function):
    """Output and graph, differentiable but for the kept keys and the counts."""

    @staticmethod
    def forward(
        ctx: Any, native: NativeCall, kept: int, *tensors: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        ctx.set_materialize_grads(False)
        rows = forward(native, kept)
        assert rows.keys is not None and rows.count is not None
        ctx.native = native.with_tensors((torch.empty(0),) * 3 + (None,) * 5)
        ctx.mark_non_differentiable(rows.keys, rows.count)
        ctx.save_for_backward(
            *tensors, rows.output, rows.lse, rows.entropy, rows.keys, rows.weights
        )
        return (
            rows.output,
            rows.keys,
            rows.scores,
            rows.weights,
            rows.lse,
            rows.entropy,
            rows.rest,
            rows.count,
        )

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any,
        output: Tensor | None,
        _keys: None,
        scores: Tensor | None,
        weights: Tensor | None,
        lse: Tensor | None,
        entropy: Tensor | None,
        rest: Tensor | None,
        _count: None,
    ) -> tuple[Any, ...]:
        *tensors, saved_output, saved_lse, saved_entropy, saved_keys, saved_weights = (
            ctx.saved_tensors
        )
        native = ctx.native.with_tensors(tuple(tensors))
        rows = Rows(
            saved_output,
            saved_lse,
            entropy=saved_entropy,
            keys=saved_keys,
            weights=saved_weights,
        )
        incoming = _Incoming(output, lse, entropy, scores, weights, rest)
        return None, None, *_gradients(ctx, native, rows, incoming)


@dataclass(frozen=True, eq=False)
class _Incoming:
    """Gradients with respect to the results of a call; None where there is none."""

    output: Tensor | None
    lse: Tensor | None = None
    entropy: Tensor | None = None
    scores: Tensor | None = None
    weights: Tensor | None = None
    rest: Tensor | None = None


def _sum_of(*terms: Tensor | None) -> Tensor | None:
    total: Tensor | None = None
    for term in terms:
        if term is not None:
            total = term if total is None else total + term
    return total


def _through_kept(rows: Rows, incoming: _Incoming) -> tuple[Tensor | None, Tensor | None]:
    """Gradients with respect to the kept scores and lse, from all that is made of them.

    A kept weight is e^(score - lse), and the rest is what the kept weights leave.
    """
    by_weight = incoming.weights
    if incoming.rest is not None:
        by_weight = (0 if by_weight is None else by_weight) - incoming.rest[..., None]
    if by_weight is None or rows.weights is None:
        return incoming.scores, incoming.lse
    by_score = by_weight * rows.weights
    return _sum_of(incoming.scores, by_score), _sum_of(incoming.lse, -by_score.sum(-1))


def _gradients(
    ctx: Any, native: NativeCall, rows: Rows, incoming: _Incoming
) -> tuple[Tensor | None, ...]:
    """Gradients for NativeCall.tensors, None for those that want none."""
    wanted = dict(
        zip(
            (
                "queries",
                "keys",
                "values",
                "bias",
                "offset_bias",
                "key_table",
                "value_table",
                "sinks",
            ),
            ctx.needs_input_grad[-8:],
            strict=True,
        )
    )
    by_score, by_lse = _through_kept(rows, incoming)
    by_output = (
        torch.zeros_like(rows.output, dtype=torch.float32)
        if incoming.output is None
        else incoming.output.float()
    )
    if by_output.stride(-1) != 1 and by_output.shape[-1] != 1:
        by_output = by_output.contiguous()

    blind = rows.lse == -torch.inf
    lse = rows.lse.masked_fill(blind, torch.inf)
    delta = torch.einsum("bhnd,bhnd->bhn", by_output, rows.output.float())
    subtract = delta if by_lse is None else delta - by_lse
    sink_mass = None if native.sinks is None else (native.sinks[None, :, None] - lse).exp()
    if incoming.entropy is not None:
        assert rows.entropy is not None
        level = rows.entropy if sink_mass is None else rows.entropy + sink_mass
        subtract = subtract + incoming.entropy * level
    subtract = subtract.masked_fill(blind, 0).contiguous()

    sinks: Tensor | None = None
    if wanted["sinks"] and sink_mass is not None:
        each = -subtract
        if incoming.entropy is not None:
            # The sink's own term of the sum over weights is missing from the entropy.
            each = each + incoming.entropy
        sinks = (sink_mass * each).sum((0, 2))

    found = _run_backward(
        native, rows, wanted, by_output, lse, subtract, incoming.entropy, by_score
    )
    return (*found, sinks)


def _padded(depth: int) -> int:
    """Columns of the kernels' gradients: whole vectors of every instruction set."""
    return (depth + 15) // 16 * 16


def _run_backward(
    native: NativeCall,
    rows: Rows,
    wanted: dict[str, bool],
    by_output: Tensor,
    lse: Tensor,
    subtract: Tensor,
    by_entropy: Tensor | None,
    by_score: Tensor | None,
) -> tuple[Tensor | None, ...]:
    batch, heads, queries, depth = native.queries.shape
    kv_heads, length, value_depth = native.values.shape[1:]
    wide, value_wide = _padded(depth), _padded(value_depth)
    # The pieces depend on the shapes alone, so that results do not depend on the threads.
    tiles = math.ceil(length / 256)
    pieces = max(1, min(tiles, math.ceil(BACKWARD_TASKS / max(1, batch * kv_heads))))
    piece_keys = math.ceil(tiles / pieces) * 256
    pieces = max(1, math.ceil(length / piece_keys)) if piece_keys else 1

    call = _request(native)
    to = kernels.Gradients()
    to.output = _strided(by_output)
    to.lse, to.subtract = lse.data_ptr(), subtract.data_ptr()
    if by_entropy is not None:
        by_entropy = by_entropy.contiguous()
        to.by_entropy = by_entropy.data_ptr()
    if by_score is not None and rows.keys is not None:
        by_score = by_score.contiguous()
        to.kept = rows.keys.shape[-1]
        to.kept_keys, to.kept_scores = rows.keys.data_ptr(), by_score.data_ptr()
    to.pieces, to.piece_keys = pieces, max(piece_keys, 1)
    to.padded_depth, to.padded_value_depth = wide, value_wide

    # The kernels write these, unless there is nothing to do.
    new = torch.empty if queries and length else torch.zeros
    by_queries = new(pieces, batch, heads, queries, wide)
    by_keys = new(batch, kv_heads, length, wide)
    by_values = new(batch, kv_heads, length, value_wide)
    to.queries, to.keys = by_queries.data_ptr(), by_keys.data_ptr()
    to.values = by_values.data_ptr()
    by_bias = by_offset = by_key_table = by_value_table = None
    if wanted["bias"]:
        assert native.bias is not None
        if native.bias.shape[2] == 1:
            by_bias = torch.zeros(batch, heads, 1, length)
            to.key_bias = by_bias.data_ptr()
        else:
            by_bias = torch.zeros(batch, heads, queries, length)
            to.bias = by_bias.data_ptr()
    if wanted["offset_bias"]:
        by_offset = torch.zeros(pieces, batch, heads, queries + length - 1)
        to.offset_bias = by_offset.data_ptr()
    distances = 2 * native.clip + 1
    if wanted["key_table"]:
        by_key_table = torch.zeros(pieces, batch, heads, distances, wide)
        to.key_table = by_key_table.data_ptr()
    if wanted["value_table"]:
        by_value_table = torch.zeros(pieces, batch, heads, distances, value_wide)
        to.value_table = by_value_table.data_ptr()

    kernels.backward(call, to, torch.get_num_threads(), native.instruction_set)

    dtype = native.queries.dtype
    summed = by_queries[0] if pieces == 1 else by_queries.sum(0)
    return (
        summed[..., :depth].mul_(native.scale).to(dtype) if wanted["queries"] else None,
        by_keys[..., :depth].to(dtype) if wanted["keys"] else None,
        by_values[..., :value_depth].to(dtype) if wanted["values"] else None,
        _bias_gradient(by_bias, native.bias),
        None if by_offset is None else by_offset.sum((0, 1)),
        _table_gradient(by_key_table, native.key_table, depth),
        _table_gradient(by_value_table, native.value_table, value_depth),
    )


def _bias_gradient(found: Tensor | None, bias: Tensor | None) -> Tensor | None:
    return None if found is None or bias is None else found.sum_to_size(bias.shape)


def _table_gradient(found: Tensor | None, table: Tensor | None, depth: int) -> Tensor | None:
    """Summed over pieces and batch, and over the heads where they share one table."""
    if found is None or table is None:
        return None
    by_head = found.sum((0, 1))[..., :depth]
    return by_head if len(table) > 1 or by_head.shape[0] == 1 else by_head.sum(0, keepdim=True)


def _wants_gradients(native: NativeCall) -> bool:
    return torch.is_grad_enabled() and any(
        tensor is not None and tensor.requires_grad for tensor in native.tensors
    )


def attention(call: AttentionCall) -> Tensor:
    """The output of a call that the kernels serve, (batch, heads, queries, value_depth)."""
    native = prepare(call)
    if not _wants_gradients(native):
        return forward(native, None, with_lse=False).output
    output, _ = _Attention.apply(native, *native.tensors)  # type: ignore[no-untyped-call]
    return output  # type: ignore[no-any-return]


def attend(call: AttentionCall, keep: Top) -> tuple[Tensor, AttentionGraph]:
    """Output and attention graph of a call that the kernels serve; see torch_ops.attend."""
    native = prepare(call)
    k = keep.places(call.keys.shape[2])
    if _wants_gradients(native):
        found = _Attend.apply(native, k, *native.tensors)  # type: ignore[no-untyped-call]
        output, keys, scores, weights, lse, entropy, rest, count = found
    else:
        rows = forward(native, k)
        output, keys, scores, weights = rows.output, rows.keys, rows.scores, rows.weights
        lse, entropy, rest, count = rows.lse, rows.entropy, rows.rest, rows.count
    missing = k - keys.shape[-1]
    if missing > 0:
        pad = torch.nn.functional.pad
        keys = pad(keys, (0, missing), value=-1)
        scores = pad(scores, (0, missing), value=-torch.inf)
        weights = pad(weights, (0, missing))
    graph = AttentionGraph(
        keys, scores, weights, lse, entropy, rest, count, call.keys.shape[2], call.symmetric
    )
    return output, graph
