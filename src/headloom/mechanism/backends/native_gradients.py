"""Gradients of a call of the native kernels, from its output and log-sum-exp.

The kernel recomputes scores tile by tile; see native/backward.h. torch's formulas are used instead
if gradients are differentiated again, are batched, or scores are far from 0.

Gradients by received attention are extra columns of the values: with g_j the gradient by the sum of
column j, the gradient by each weight w_ij grows by g_j. This is the same as one more column g of
the values, with an output gradient of 1:

    dP_ij = dO_i . v_j + 1 g_j

Heads that share values have one column each, with gradient 0 in the columns of other heads. For the
sum over the last queries, the column's gradient is 0 in all rows before them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from headloom.mechanism.backends.compiled import NativeCall, kernels, without_autocast
from headloom.mechanism.backends.formulas import by_operations, gradients_by_formulas
from headloom.mechanism.backends.native_request import DEEPEST
from headloom.mechanism.call import Results
from headloom.mechanism.received import in_window
from headloom.mechanism.shapes import Edges, Output, PerRow

#: Number of tasks of the backward pass if there are few heads.
BACKWARD_TASKS = 8
#: The keys of a task are a multiple of this.
PIECE_KEYS = 256
#: Log-sum-exp beyond which the error of e^(score - lse) in float32 exceeds 2^-11.
FAR = 2.0**13

#: Gradients in the order of NativeCall.tensors, None where none is needed.
Gradients = tuple[Tensor | None, ...]


class Saved(NamedTuple):
    """Results saved for the backward pass; only output and lse if there is no graph.

    output: before rounding.
    """

    output: Output
    lse: PerRow
    entropy: PerRow | None = None
    keys: Edges | None = None
    weights: Edges | None = None


def gradients(
    native: NativeCall, saved: Saved, incoming: Results, needs: Sequence[bool]
) -> Gradients:
    """Return gradients for NativeCall.tensors from those of results; differentiable again."""
    # If backward() is called inside autocast, sums that kernels read would be rounded.
    with without_autocast(native.queries.device):
        by_tensor = None
        if not (by_operations(incoming.values()) or _too_deep(native, incoming)):
            by_tensor = _by_kernel(native, saved, incoming, needs)
        return by_tensor or gradients_by_formulas(native, saved.keys, incoming, needs)


def by_formulas(native: NativeCall, saved: Saved, incoming: Results) -> bool:
    """Whether torch computes the gradients: lse has too few digits, or there are many columns."""
    far = (saved.lse.abs() > FAR) & saved.lse.isfinite()
    return _too_deep(native, incoming) or bool(far.any())


def _too_deep(native: NativeCall, incoming: Results) -> bool:
    group = native.queries.shape[1] // max(native.keys.shape[1], 1)
    columns = group * sum(name in incoming for name in ("received", "received_last"))
    return columns + native.values.shape[3] > DEEPEST


def _by_kernel(
    native: NativeCall, saved: Saved, incoming: Results, needs: Sequence[bool]
) -> Gradients | None:
    """Compute gradients by the kernel; None: scores are too far from 0."""
    by_output = incoming.get("output")
    if by_output is None:
        by_output = torch.zeros_like(saved.output)
    by_output, call, depth = by_output.float(), native, native.values.shape[3]
    by_received = [incoming.get(name) for name in ("received", "received_last")]
    if any(by is not None for by in by_received):
        call, output, by_columns = _with_columns(native, by_received)
        saved = saved._replace(output=torch.cat((saved.output, output), -1))
        by_output = torch.cat((by_output, by_columns.expand(len(output), -1, -1, -1)), -1)
    if by_output.stride(-1) != 1 and by_output.shape[-1] != 1:
        by_output = by_output.contiguous()
    needed = {name for name, need in zip(NativeCall._fields, needs, strict=False) if need}
    by_name = _run(call, saved, incoming, by_output, needed)
    if by_name is None:
        return None
    for name in ("values", "value_table") if call is not native else ():
        if name in by_name:
            by_name[name] = by_name[name][..., :depth]
    return tuple(
        by_name[name].to(tensor.dtype) if name in by_name and tensor is not None else None
        for name, tensor in zip(NativeCall._fields, native.tensors, strict=False)
    )


def _with_columns(
    native: NativeCall, by_received: list[Tensor | None]
) -> tuple[NativeCall, Output, Tensor]:
    """Return the call with extra value columns for gradients by received attention, in float32.

    by_received: gradients by the sums over all queries, and over the last.
    Returns: the call; the output of the new columns; its gradient, (1, heads, queries, columns).
    """
    queries, keys, values = (part.float() for part in native[:3])
    heads, kv_heads, rows = queries.shape[1], keys.shape[1], queries.shape[2]
    group = heads // kv_heads
    columns = torch.cat(
        [
            by.float().reshape(len(by), kv_heads, group, by.shape[2]).transpose(2, 3)
            for by in by_received
            if by is not None
        ],
        -1,
    ).contiguous()
    # 1 in the column of each head.
    columns_of_heads = torch.eye(group, dtype=torch.float32).repeat(kv_heads, 1)[None, :, None]
    in_sum = columns_of_heads.new_ones(rows), columns_of_heads.new_zeros(rows)
    in_sum[1][in_window(range(rows), rows, native.last_queries)] = 1
    pairs = zip(in_sum, by_received, strict=True)
    by_columns = torch.cat([columns_of_heads * w[:, None] for w, by in pairs if by is not None], -1)
    native, table = native._replace(queries=queries, keys=keys), native.value_table
    output = torch.empty((*queries.shape[:3], columns.shape[3]), dtype=torch.float32)
    bare = native._replace(values=columns, value_table=None)
    kernels.forward(bare, {"output": output}, torch.get_num_threads())
    wide = native._replace(
        values=torch.cat((values, columns), -1),
        value_table=None if table is None else pad(table, (0, columns.shape[-1])),
    )
    return wide, output, by_columns


def _padded(depth: int) -> int:
    return (depth + 15) // 16 * 16  # full vectors of every instruction set


def _pieces(native: NativeCall) -> tuple[int, int]:
    """Return the number of ranges of a head's keys, for any number of threads, and their size."""
    (batch, kv_heads, length, _) = native.values.shape
    tiles = math.ceil(length / PIECE_KEYS)
    pieces = max(1, min(tiles, math.ceil(BACKWARD_TASKS / max(1, batch * kv_heads))))
    keys = math.ceil(tiles / pieces) * PIECE_KEYS
    return (max(1, math.ceil(length / keys)), keys) if keys else (1, 1)


def _buffers(native: NativeCall, needed: set[str], pieces: int) -> dict[str, Tensor]:
    """Allocate tensors for the kernels' gradients, by their names in native/gradients.h."""
    batch, heads, queries, depth = native.queries.shape
    kv_heads, length, value_depth = native.values.shape[1:]
    wide, value_wide = _padded(depth), _padded(value_depth)
    copies = (pieces, batch, heads)
    # The kernels write these, unless there are no queries or keys.
    make = torch.empty if queries and length else torch.zeros
    new = partial(make, dtype=torch.float32)  # independent of torch's default
    zeros = partial(torch.zeros, dtype=torch.float32)
    buffers = {
        "queries": new(*copies, queries, wide),
        "keys": new(batch, kv_heads, length, wide),
        "values": new(batch, kv_heads, length, value_wide),
    }
    if "bias" in needed and native.bias is not None:
        shared = native.bias.shape[2] == 1  # by all queries
        name = "key_bias" if shared else "bias"
        buffers[name] = zeros(batch, heads, 1 if shared else queries, length)
    if "offset_bias" in needed:
        buffers["offset_bias"] = zeros(*copies, queries + length - 1)
    for name, columns in (("key_table", wide), ("value_table", value_wide)):
        if name in needed:
            buffers[name] = zeros(*copies, 2 * native.clip + 1, columns)
    return buffers


def _run(
    native: NativeCall, saved: Saved, incoming: Results, by_output: Tensor, needed: set[str]
) -> dict[str, Tensor] | None:
    """Return the needed gradients by the names of their tensors; None: scores are far from 0."""
    # Each row's dO . O, which is subtracted from the products of its keys; lse, infinity for rows
    # without keys.
    output, saved_lse = saved.output.contiguous(), saved.lse.contiguous()
    subtract, lse = torch.empty_like(saved_lse), torch.empty_like(saved_lse)
    call = kernels.RowTermsCall()
    call.batch, call.heads, call.rows, call.depth = output.shape
    call.by_output, call.output = kernels.strided(by_output), output.data_ptr()
    call.lse, call.far = saved_lse.data_ptr(), FAR
    call.subtract, call.finite_lse = subtract.data_ptr(), lse.data_ptr()
    if not kernels.row_terms(call, torch.get_num_threads(), native.instruction_set):
        return None

    inputs, gradients = {"lse": lse, "subtract": subtract}, {}
    to = kernels.Gradients()
    if saved.keys is not None or native.sinks is not None:
        by_score, by_lse = _through_kept(saved, incoming)
        by_entropy = incoming.get("entropy")
        sink_mass = None if native.sinks is None else (native.sinks[None, :, None] - lse).exp()
        if by_lse is not None:
            subtract = subtract - by_lse
        if by_entropy is not None and saved.entropy is not None:
            level = saved.entropy if sink_mass is None else saved.entropy + sink_mass
            subtract = subtract + by_entropy * level
            inputs["by_entropy"] = by_entropy.contiguous()
        inputs["subtract"] = subtract = subtract.masked_fill(lse == torch.inf, 0).contiguous()
        if "sinks" in needed and sink_mass is not None:
            # The entropy does not include the sink's term.
            by_row = -subtract if by_entropy is None else by_entropy - subtract
            gradients["sinks"] = (sink_mass * by_row).sum((0, 2))
        if by_score is not None and saved.keys is not None:
            to.kept = saved.keys.shape[-1]
            inputs |= {"kept_keys": saved.keys, "kept_scores": by_score.contiguous()}

    depth, value_depth = native.queries.shape[3], native.values.shape[3]
    to.pieces, to.piece_keys = _pieces(native)
    to.padded_depth, to.padded_value_depth = _padded(depth), _padded(value_depth)
    to.output = kernels.strided(by_output)
    buffers = _buffers(native, needed, to.pieces)
    for name, tensor in (inputs | buffers).items():
        setattr(to, name, tensor.data_ptr())
    kernels.backward(native, to, torch.get_num_threads())

    by_queries, by_bias = buffers["queries"], buffers.get("bias", buffers.get("key_bias"))
    summed = by_queries[0] if len(by_queries) == 1 else by_queries.sum(0)
    gradients["queries"] = summed[..., :depth]
    gradients["keys"] = buffers["keys"][..., :depth]
    gradients["values"] = buffers["values"][..., :value_depth]
    if by_bias is not None and native.bias is not None:
        gradients["bias"] = by_bias.sum_to_size(native.bias.shape)
    if "offset_bias" in buffers:
        gradients["offset_bias"] = buffers["offset_bias"].sum((0, 1))
    for name, width in (("key_table", depth), ("value_table", value_depth)):
        table = getattr(native, name)
        if name in buffers and table is not None:
            # Summed over pieces and batch, and over heads that share one table.
            by_head = buffers[name].sum((0, 1))[..., :width]
            shared = len(table) == 1 and len(by_head) > 1
            gradients[name] = by_head.sum(0, keepdim=True) if shared else by_head
    return {name: gradients[name] for name in needed if name in gradients}


def _through_kept(saved: Saved, incoming: Results) -> tuple[Tensor | None, Tensor | None]:
    """Return gradients by kept scores and lse: weights are e^(score - lse), rest 1 - their sum."""
    by_score, by_lse, by_weight = (incoming.get(name) for name in ("scores", "lse", "weights"))
    if "rest" in incoming:
        by_rest = incoming["rest"][..., None]
        by_weight = -by_rest if by_weight is None else by_weight - by_rest
    if by_weight is None or saved.weights is None:
        return by_score, by_lse
    through = by_weight * saved.weights
    sums = through.sum(-1)
    return (
        through if by_score is None else by_score + through,
        -sums if by_lse is None else by_lse - sums,
    )
