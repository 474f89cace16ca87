"""What keys receive, as columns of the values: how gradients through it take the kernel's way.

With g_j the gradient by what key j receives, that by a weight w_ij grows by g_j, whatever the row.
So it would if the values had one more column, g, and the gradient by the output were 1 there:

    dP_ij = dO_i . v_j + 1 g_j

Heads that share values have a column each, and 0 in those of the others; of the last queries alone
the column's gradient is 0 in all rows before them.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from headloom.mechanism.backends.native_request import NativeCall
from headloom.mechanism.parts import with_tensors
from headloom.mechanism.received import in_window
from headloom.mechanism.shapes import Values

__all__ = ["columns_of", "float_call", "gradient_by_columns", "with_columns"]


def float_call(native: NativeCall) -> NativeCall:
    """The call in float32: gradients are not rounded as half-precision values are."""
    if native.queries.dtype == torch.float32:
        return native
    return with_tensors(
        native, lambda tensor: tensor.float() if tensor.is_floating_point() else tensor
    )


def columns_of(native: NativeCall, *by_received: Tensor | None) -> Values:
    """Values (batch, kv_heads, keys, columns) of gradients (batch, heads, keys); None: none."""
    kv_heads = native.keys.shape[1]
    columns = [
        by.float().reshape(len(by), kv_heads, by.shape[1] // kv_heads, by.shape[2]).transpose(2, 3)
        for by in by_received
        if by is not None
    ]
    return torch.cat(columns, -1).contiguous()


def gradient_by_columns(native: NativeCall, *by_received: Tensor | None) -> Tensor:
    """The gradient by the output's columns, (1, heads, queries, columns): 1 where a head has its.

    by_received: those of all queries, and those of the last.
    """
    (_, heads, queries, _), kv_heads = native.queries.shape, native.keys.shape[1]
    group = heads // kv_heads
    own = torch.eye(group, dtype=torch.float32).repeat(kv_heads, 1)[None, :, None]
    ones = own.new_ones(queries), own.new_zeros(queries)
    ones[1][in_window(range(queries), queries, native.last_queries)] = 1
    return torch.cat(
        [own * rows[:, None] for rows, by in zip(ones, by_received, strict=True) if by is not None],
        -1,
    )


def with_columns(native: NativeCall, columns: Values) -> NativeCall:
    """The call with these columns behind those of its values."""
    table = native.value_table
    return replace(
        native,
        values=torch.cat((native.values, columns), -1),
        value_table=None if table is None else pad(table, (0, columns.shape[-1])),
    )
