"""The gradients of a call of the native kernels, from its output and log-sum-exp.

The kernel recomputes scores tile by tile; see native/backward.h. Its gradients can be
differentiated again, as often as asked: second derivatives are taken by torch's formulas.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from headloom.mechanism.autocast import without_autocast
from headloom.mechanism.backends.native_by_torch import torch_gradients
from headloom.mechanism.backends.native_forward import forward_output
from headloom.mechanism.backends.native_received import (
    columns_of,
    float_call,
    gradient_by_columns,
    with_columns,
)
from headloom.mechanism.backends.native_request import DEEPEST, NativeCall, kernels
from headloom.mechanism.backends.recomputed import applied, batched, products_again
from headloom.mechanism.shapes import Edges, Output, PerRow

__all__ = ["Incoming", "Saved", "by_formulas", "gradients"]

#: Tasks that the backward pass is cut into where there are few heads.
BACKWARD_TASKS = 8
#: Keys of a task are a multiple of these.
PIECE_KEYS = 256
#: Log-sum-exps beyond which e^(score - lse), in float32, is off by more than 2^-11.
FAR = 2.0**13


class Saved(NamedTuple):
    """What the backward pass needs of the rows that a call gave; of the output alone, less.

    output: before it was rounded, where `room_for_exact` gave room.
    """

    output: Output
    lse: PerRow
    entropy: PerRow | None = None
    keys: Edges | None = None
    weights: Edges | None = None


class Incoming(NamedTuple):
    """Gradients by the results of a call, in the order of `native_by_torch`; None: none."""

    output: Output | None = None
    lse: PerRow | None = None
    entropy: PerRow | None = None
    scores: Edges | None = None
    weights: Edges | None = None
    rest: PerRow | None = None
    received: Tensor | None = None
    received_last: Tensor | None = None


def _sum_of(*terms: Tensor | None) -> Tensor | None:
    total: Tensor | None = None
    for term in terms:
        if term is not None:
            total = term if total is None else total + term
    return total


def _through_kept(rows: Saved, incoming: Incoming) -> tuple[Tensor | None, Tensor | None]:
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


def kernel_gradients(
    native: NativeCall, rows: Saved, incoming: Incoming, needs: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    """Gradients for NativeCall.tensors by the backward kernel, None for those that want none."""
    if incoming.received is not None or incoming.received_last is not None:
        return _through_columns(native, rows, incoming, needs)
    wanted = dict(zip(native.names, needs, strict=True))
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
    if incoming.entropy is not None and rows.entropy is not None:
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

    by_tensor = _run_backward(
        native, rows, wanted, by_output, lse, subtract, incoming.entropy, by_score
    )
    return (*by_tensor, sinks)


def _through_columns(
    native: NativeCall, rows: Saved, incoming: Incoming, needs: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    """As `kernel_gradients`, where what keys receive has a gradient; see native_received.py."""
    by_received = incoming.received, incoming.received_last
    as_float, depth = float_call(native), native.values.shape[3]
    columns = columns_of(as_float, *by_received)
    output = forward_output(replace(as_float, values=columns, value_table=None))
    by_columns = gradient_by_columns(native, *by_received).expand(len(output), -1, -1, -1)
    by_output = torch.zeros_like(rows.output) if incoming.output is None else incoming.output
    by_tensor = kernel_gradients(
        with_columns(as_float, columns),
        rows._replace(output=torch.cat((rows.output.float(), output), -1)),
        incoming._replace(
            output=torch.cat((by_output.float(), by_columns), -1), received=None, received_last=None
        ),
        needs,
    )
    results = []
    for name, tensor, gradient in zip(native.names, native.tensors, by_tensor, strict=True):
        if gradient is not None and name in ("values", "value_table"):
            gradient = gradient[..., :depth]
        results.append(None if gradient is None or tensor is None else gradient.to(tensor.dtype))
    return tuple(results)


def _columns_added(native: NativeCall, incoming: Incoming) -> int:
    """Columns of the values that stand for what keys receive."""
    asked = (incoming.received, incoming.received_last)
    group = native.queries.shape[1] // max(native.keys.shape[1], 1)
    return group * sum(by is not None for by in asked)


def gradients(
    native: NativeCall, rows: Saved, incoming: Incoming, needs: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    """Gradients for NativeCall.tensors, None for those that want none; differentiable again."""
    if batched(incoming):
        return torch_gradients(native, rows.keys, incoming, needs)
    present = tuple(tensor for tensor in (*native.tensors, *incoming) if tensor is not None)
    if not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in present)):
        return _gradients(native, rows, incoming, needs)
    which = tuple(tensor is not None for tensor in (*native.tensors, *incoming))
    results = iter(applied(_Gradients, native.bare(), rows, needs, which, *present))
    return tuple(
        next(results) if need and tensor is not None else None
        for need, tensor in zip(needs, native.tensors, strict=True)
    )


def _gradients(
    native: NativeCall, rows: Saved, incoming: Incoming, needs: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    # Where somebody calls backward() inside autocast, sums would be rounded, which kernels read.
    with without_autocast(native.queries.device):
        if _is_of_output(native, rows, incoming):
            return _output_gradients(native, rows, incoming, needs)
        if by_formulas(native, rows, incoming):
            return torch_gradients(native, rows.keys, incoming, needs)
        return kernel_gradients(native, rows, incoming, needs)


def by_formulas(native: NativeCall, rows: Saved, incoming: Incoming) -> bool:
    """Whether the kernel leaves the gradients to torch's formulas.

    It does where lse has lost the digits that weights are made of, and where it has too many
    columns.
    """
    if _columns_added(native, incoming) + native.values.shape[3] > DEEPEST:
        return True
    far = rows.lse.abs() > FAR
    return bool(far.any()) and bool((far & rows.lse.isfinite()).any())


def _is_of_output(native: NativeCall, rows: Saved, incoming: Incoming) -> bool:
    """Whether the output alone was asked and has a gradient, as in training, without sinks.

    Where a graph was asked too, a compiled program gives zeros for gradients that are none here,
    and is to have the same bits.
    """
    output, *others = incoming
    return (
        output is not None
        and rows.entropy is None
        and all(other is None for other in others)
        and native.sinks is None
        and native.values.shape[3] <= DEEPEST
        and rows.output.dtype == torch.float32
    )


def _output_gradients(
    native: NativeCall, rows: Saved, incoming: Incoming, needs: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    """As `_gradients`, with what each row gives in one pass."""
    by_output = cast("Tensor", incoming.output).float()
    if by_output.stride(-1) != 1 and by_output.shape[-1] != 1:
        by_output = by_output.contiguous()
    output, saved_lse = rows.output.contiguous(), rows.lse.contiguous()
    subtract, lse = torch.empty_like(saved_lse), torch.empty_like(saved_lse)
    call = kernels.RowTermsCall()
    call.batch, call.heads, call.rows, call.depth = output.shape
    call.by_output, call.output = kernels.strided(by_output), output.data_ptr()
    call.lse, call.far = saved_lse.data_ptr(), FAR
    call.subtract, call.finite_lse = subtract.data_ptr(), lse.data_ptr()
    if not kernels.row_terms(call, torch.get_num_threads(), native.instruction_set):
        return torch_gradients(native, rows.keys, incoming, needs)
    wanted = dict(zip(native.names, needs, strict=True))
    return *_run_backward(native, rows, wanted, by_output, lse, subtract, None, None), None


def _laid_out(
    native: NativeCall, which: tuple[bool, ...], present: tuple[Tensor, ...]
) -> tuple[NativeCall, Incoming]:
    """A call and its incoming gradients from the tensors of both that are there."""
    left = iter(present)
    every = tuple(next(left) if is_present else None for is_present in which)
    count = len(NativeCall.names)
    return native.with_tensors(every[:count]), Incoming(*every[count:])


class _Gradients(torch.autograd.Function):
    """The gradients of a call by the backward kernel, their own gradients by torch's formulas."""

    @staticmethod
    def forward(
        ctx: Any,
        native: NativeCall,
        rows: Saved,
        needs: tuple[bool, ...],
        which: tuple[bool, ...],
        *present: Tensor,
    ) -> tuple[Tensor, ...]:
        def by_torch(*tensors: Tensor) -> tuple[Tensor, ...]:
            call, incoming = _laid_out(native, which, tensors)
            by_tensor = torch_gradients(call, rows_keys, incoming, needs)
            return tuple(tensor for tensor in by_tensor if tensor is not None)

        rows_keys = rows.keys
        ctx.function = by_torch
        ctx.save_for_backward(*present)
        call, incoming = _laid_out(native, which, present)
        by_tensor = _gradients(call, rows, incoming, needs)
        return tuple(tensor for tensor in by_tensor if tensor is not None)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        again = products_again(ctx.function, ctx.saved_tensors, gradients)
        return None, None, None, None, *again


def _padded(depth: int) -> int:
    """Columns of the kernels' gradients: whole vectors of every instruction set."""
    return (depth + 15) // 16 * 16


def _pieces(native: NativeCall) -> tuple[int, int]:
    """Ranges that the keys of a head are cut into, each a task, and the keys of one.

    They depend on the shapes alone, so that results do not depend on the threads.
    """
    (batch, kv_heads, length, _) = native.values.shape
    tiles = math.ceil(length / PIECE_KEYS)
    pieces = max(1, min(tiles, math.ceil(BACKWARD_TASKS / max(1, batch * kv_heads))))
    keys = math.ceil(tiles / pieces) * PIECE_KEYS
    return (max(1, math.ceil(length / keys)), keys) if keys else (1, 1)


def _room(native: NativeCall, wanted: dict[str, bool], pieces: int) -> dict[str, Tensor]:
    """Tensors that the kernels add gradients to, by their names in native/gradients.h."""
    batch, heads, queries, depth = native.queries.shape
    kv_heads, length, value_depth = native.values.shape[1:]
    wide, value_wide = _padded(depth), _padded(value_depth)
    copies = (pieces, batch, heads)
    # The kernels write these, unless there is nothing to do.
    make = torch.empty if queries and length else torch.zeros
    new = partial(make, dtype=torch.float32)  # whatever torch's default is
    zeros = partial(torch.zeros, dtype=torch.float32)
    room = {
        "queries": new(*copies, queries, wide),
        "keys": new(batch, kv_heads, length, wide),
        "values": new(batch, kv_heads, length, value_wide),
    }
    if wanted["bias"] and native.bias is not None:
        same = native.bias.shape[2] == 1  # for all queries
        name = "key_bias" if same else "bias"
        room[name] = zeros(batch, heads, 1 if same else queries, length)
    if wanted["offset_bias"]:
        room["offset_bias"] = zeros(*copies, queries + length - 1)
    for name, columns in (("key_table", wide), ("value_table", value_wide)):
        if wanted[name]:
            room[name] = zeros(*copies, 2 * native.clip + 1, columns)
    return room


def _run_backward(
    native: NativeCall,
    rows: Saved,
    wanted: dict[str, bool],
    by_output: Tensor,
    lse: Tensor,
    subtract: Tensor,
    by_entropy: Tensor | None,
    by_score: Tensor | None,
) -> tuple[Tensor | None, ...]:
    """Gradients for NativeCall.tensors, that of the sinks, the last, left out."""
    depth, value_depth = native.queries.shape[3], native.values.shape[3]
    to = kernels.Gradients()
    to.pieces, to.piece_keys = _pieces(native)
    to.padded_depth, to.padded_value_depth = _padded(depth), _padded(value_depth)
    to.output = kernels.strided(by_output)
    read = {"lse": lse, "subtract": subtract}
    if by_entropy is not None:
        read["by_entropy"] = by_entropy.contiguous()
    if by_score is not None and rows.keys is not None:
        to.kept = rows.keys.shape[-1]
        read |= {"kept_keys": rows.keys, "kept_scores": by_score.contiguous()}
    room = _room(native, wanted, to.pieces)
    for name, tensor in (read | room).items():
        setattr(to, name, tensor.data_ptr())
    kernels.backward(native, to, torch.get_num_threads())

    dtype, by_queries = native.queries.dtype, room["queries"]
    summed = by_queries[0] if len(by_queries) == 1 else by_queries.sum(0)
    by_offset = room.get("offset_bias")
    return (
        summed[..., :depth].to(dtype) if wanted["queries"] else None,
        room["keys"][..., :depth].to(dtype) if wanted["keys"] else None,
        room["values"][..., :value_depth].to(dtype) if wanted["values"] else None,
        _bias_gradient(room.get("bias", room.get("key_bias")), native.bias),
        None if by_offset is None else by_offset.sum((0, 1)),
        _table_gradient(room.get("key_table"), native.key_table, depth),
        _table_gradient(room.get("value_table"), native.value_table, value_depth),
    )


def _bias_gradient(by_cells: Tensor | None, bias: Tensor | None) -> Tensor | None:
    return None if by_cells is None or bias is None else by_cells.sum_to_size(bias.shape)


def _table_gradient(by_copy: Tensor | None, table: Tensor | None, depth: int) -> Tensor | None:
    """Summed over pieces and batch, and over the heads where they share one table."""
    if by_copy is None or table is None:
        return None
    by_head = by_copy.sum((0, 1))[..., :depth]
    return by_head if len(table) > 1 or by_head.shape[0] == 1 else by_head.sum(0, keepdim=True)
