"""Conversion of attention calls to calls of the kernels: plain tensors, ranges and numbers.

The kernels support ranges of keys (a band around the query, a range for each sequence, a range for
each query), masks by cells, biases by distance, biases by cells, and relative tables. Any other
mask is formed as bool cells, up to a size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headloom.errors import ShapeError
from headloom.mechanism.backends import compiled
from headloom.mechanism.backends.compiled import (
    NO_KERNELS,
    NativeCall,
    serves_compiled,
    why_wrapped,
    without_autocast,
)
from headloom.mechanism.call import AttentionCall
from headloom.mechanism.graph import All
from headloom.mechanism.mask import Mask
from headloom.mechanism.positions import Relative
from headloom.mechanism.scores import Bilinear, Dot, ScaledDot

#: Largest number of mask cells that are formed for a call: 256 MiB.
MASK_CELLS = 2**28
#: Scores that the kernels support.
_DOTS = (ScaledDot, Dot, Bilinear)
#: Dtypes that the kernels support.
_TYPES = (torch.float32, torch.bfloat16)
#: Bias, tables, sinks and masks of a plain call.
_NO_RULES = (None,) * 8
#: The largest depth that the kernels support.
DEEPEST = 1024


def why_not_served(call: AttentionCall) -> str | None:
    """Why the native kernels do not serve a call; None if they do."""
    if compiled.kernels is None:
        return NO_KERNELS
    if type(call.keep) is All:
        return "keep=All() needs the dense weights, which the kernels never form"
    queries, keys, values = call.queries, call.keys, call.values
    # In a compiled program a call is an operator, which takes any tensors.
    wrapped = None if serves_compiled() else why_wrapped((queries, keys, values))
    if wrapped is not None:
        return wrapped
    if not queries.is_cpu:
        return f"the tensors are on {queries.device}, the kernels run on the CPU"
    if queries.dtype not in _TYPES:
        return f"the tensors are {queries.dtype}, the kernels take float32 and bfloat16"
    depth, value_depth = keys.shape[3], values.shape[3]
    if not 1 <= depth <= DEEPEST or value_depth > DEEPEST:
        return f"the depths are {depth} and {value_depth}, the kernels take 1 to {DEEPEST}"
    return why_form_not_served(call)


def why_form_not_served(call: AttentionCall) -> str | None:
    """Why no kernel supports this score, these positions or this mask; None if one may."""
    if type(call.score) not in _DOTS:
        return f"the score is {type(call.score).__name__}, the kernels take dot products"
    if call.relative is not None:
        tables = call.relative.tables()
        if type(call.score) is Bilinear and tables is not None:
            return "Shaw's tables multiply the queries before the bilinear matrix does"
        if tables is None and not call.relative.only_bias:
            kind = type(call.relative).__name__
            return f"{kind} adds more than a bias by distance, or than Shaw's tables"
    if call.dropout:
        return f"dropout is {call.dropout}, the kernels have none"
    return None if call.mask is None else _why_mask_not_served(call, call.mask)


def _why_mask_not_served(call: AttentionCall, mask: Mask) -> str | None:
    (batch, heads, queries, _), keys = call.queries.shape, call.keys.shape[2]
    many = batch * heads * queries * keys > MASK_CELLS
    rest = mask.bounds(queries, keys).rest if many else None
    if rest is None:
        return None
    # Two rows give the size of all rows, or show that all rows are one.
    rows = rest.cells(range(min(2, queries)), keys, call.queries.device)
    cells = rows.shape[0] * rows.shape[1] * keys * (1 if rows.shape[2] == 1 else queries)
    if cells <= MASK_CELLS:
        return None
    return (
        f"the mask has {cells:,} cells, the kernels take up to {MASK_CELLS:,} in a mask "
        "that is neither a window nor padding"
    )


#: Fields of a NativeCall that not every call has.
_Rules = dict[str, Any]


def prepare(call: AttentionCall) -> NativeCall:
    """Convert a call that the kernels serve to their form."""
    queries, keys, values = call.queries, call.keys, call.values
    # (Subclasses are not served; isinstance of an abstract class would be slow.)
    if type(call.score) is Bilinear:
        # In half precision q^T A would be rounded once more.
        queries, keys, values = queries.float(), keys.float(), values.float()
        with without_autocast(queries.device):
            queries = queries @ call.score.form().float()
    plain = _plain_rows(queries), _plain_rows(keys), _plain_rows(values)
    softcap, last = call.softcap or 0.0, call.received or 0
    if call.mask is None and call.relative is None and call.bias is None and call.sinks is None:
        # (By position, which is faster; it matters in calls of a few microseconds.)
        return NativeCall(
            *plain, *_NO_RULES, call.scale, softcap, False, 0, 0, 0, 0, last,
            compiled.INSTRUCTION_SET,
        )  # fmt: skip
    rules: _Rules = {}
    if call.sinks is not None:
        rules["sinks"] = call.sinks.float().contiguous()
    if call.bias is not None:
        rules["bias"] = _as_cells(call.bias.float(), keys.shape[2])
    if call.relative is not None:
        _add_positions(rules, call, call.relative)
    if call.mask is not None:
        _add_mask(rules, call, call.mask)
    return NativeCall(
        *plain, scale=call.scale, softcap=softcap, last_queries=last,
        instruction_set=compiled.INSTRUCTION_SET, **rules,
    )  # fmt: skip


def _add_positions(rules: _Rules, call: AttentionCall, relative: Relative) -> None:
    tables = relative.tables()
    if tables is not None:
        for name, table in (("key_table", tables.keys), ("value_table", tables.values)):
            if table is not None:  # the kernels read CPU memory; a table may be on another device
                table = table if table.ndim == 3 else table[None]
                rules[name] = table.to("cpu", torch.float32).contiguous()
        rules["clip"] = (tables.keys.shape[-2] - 1) // 2
        rules["relative_offset"] = relative.offset
        return
    (_, heads, rows, _), length = call.queries.shape, call.keys.shape[2]
    bias = relative.by_distance(rows, length)
    if bias is not None and rows and length:
        values = bias.values.to(call.queries.device, torch.float32)
        rules["offset_bias"] = values.expand(heads, -1).contiguous()


def _plain_rows(tensor: Tensor) -> Tensor:
    """Return a tensor with contiguous rows, resolved in memory."""
    if not (tensor.is_contiguous() or tensor.stride(-1) == 1 or tensor.shape[-1] == 1):
        return tensor.contiguous()
    # A view may have the negative bit; compiled programs cannot test it, and have none.
    if not torch.compiler.is_compiling() and tensor.is_neg():
        return tensor.resolve_neg()
    return tensor


def _as_cells(cells: Tensor, keys: int) -> Tensor:
    """Return cells with four dimensions, each full or of size 1; keys full and contiguous."""
    cells = cells.reshape((1,) * (4 - cells.ndim) + tuple(cells.shape))
    cells = cells.expand(*cells.shape[:3], keys)
    return cells if cells.stride(-1) == 1 else cells.contiguous()


def _add_mask(rules: _Rules, call: AttentionCall, mask: Mask) -> None:
    (batch, heads, rows, _), length = call.queries.shape, call.keys.shape[2]
    bounds = mask.bounds(rows, length)
    rules["row_range"] = bounds.by_query
    if bounds.band is not None:
        rules["banded"], (rules["left"], rules["right"]) = True, bounds.band
    if bounds.by_sequence is not None:
        rules["key_range"] = bounds.by_sequence.expand(2, batch).contiguous()
    if bounds.rest is not None:
        cells = bounds.rest.cells(range(rows), length, call.queries.device)
        if cells.shape[0] not in (1, batch) or cells.shape[1] not in (1, heads):
            # (`check` saw only the first row.) The kernels would read beyond the cells.
            raise ShapeError(
                f"mask: gave cells for a batch of {cells.shape[0]} and {cells.shape[1]} heads; the "
                f"call has a batch of {batch} and {heads} heads."
            )
        rules["allowed"] = _as_cells(cells, length)
