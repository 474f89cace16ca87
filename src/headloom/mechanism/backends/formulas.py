"""The gradients of a kernel's call in torch's operations, a block of rows at a time.

They can be differentiated again, serve kernels that have no backward pass, and hold where scores
are so large that a kernel's do not.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headloom.mechanism.backends.compiled import NativeCall
from headloom.mechanism.backends.recomputed import products_again
from headloom.mechanism.backends.torch_blocks import block_scores, results_of_rows, row_blocks
from headloom.mechanism.call import PER_ROW, AttentionCall, Results
from headloom.mechanism.positions import ByDistance, Relative, Shaw
from headloom.mechanism.scores import Dot
from headloom.mechanism.shapes import repeat_kv_heads

__all__ = ["gradients_by_formulas"]


def _results(native: NativeCall, rows: range, queries_count: int, kept: Tensor | None) -> Results:
    """Results of some rows, in float32.

    native: its queries, and its bias where that differs by query, are those of the rows alone.
    queries_count: of the whole call.
    kept: keys (batch, heads, rows, k), or None where the output alone is asked.
    """
    queries, heads = native.queries, native.queries.shape[1]
    keys, values = (repeat_kv_heads(part, heads) for part in (native.keys, native.values))
    relative: Relative | None = None
    if native.key_table is not None:
        relative = Shaw(native.key_table, native.value_table, native.relative_offset)
    elif native.offset_bias is not None:
        relative = ByDistance(native.offset_bias, native.offset_bias.shape[1] - keys.shape[2])
    call = AttentionCall(
        queries, keys, values, Dot(), native.scale, native.mask, relative, None,
        native.softcap or None, native.sinks, received=native.last_queries,
    )  # fmt: skip
    scores = block_scores(call, queries, keys, rows)
    if native.bias is not None:
        scores = scores + native.bias
    return results_of_rows(call, scores, values, rows, queries_count, kept)


def gradients_by_formulas(
    native: NativeCall, kept: Tensor | None, incoming: Results, needs: Sequence[bool]
) -> tuple[Tensor | None, ...]:
    """Gradients for NativeCall.tensors, None for those that want none.

    Args:
        native: the call.
        kept: the keys of its kept edges, or None for none.
        incoming: gradients by the results, those that there are.
        needs: which of NativeCall.tensors want a gradient.
    """
    present = [n for n, tensor in enumerate(native.tensors) if tensor is not None]
    by_row = [n for n in present if NativeCall._fields[n] in ("queries", "bias")]
    parts: list[tuple[Tensor, ...]] = []
    for rows in row_blocks(native.queries, native.keys.shape[2]):
        inside = slice(rows.start, rows.stop)
        some_kept = None if kept is None else kept[:, :, inside]

        def results(
            *tensors: Tensor, rows: range = rows, some_kept: Tensor | None = some_kept
        ) -> tuple[Tensor, ...]:
            fields = list(native)
            for n, part in zip(present, tensors, strict=True):
                fields[n] = part
            call = NativeCall._make(fields)
            found = _results(call, rows, native.queries.shape[2], some_kept)
            return tuple(found[name] for name in incoming)

        tensors = [native.tensors[n] for n in present]
        floats = [
            tensor[:, :, inside].float() if n in by_row and tensor.shape[2] != 1 else tensor.float()
            for n, tensor in zip(present, tensors, strict=True)
            if tensor is not None
        ]
        # What keys receive is a sum over rows: each block has the gradient of the whole.
        # (Not by their index: a whole one is an alias, which batched gradients have not.)
        gradients = [
            (gradient.narrow(2, rows.start, len(rows)) if name in PER_ROW else gradient).float()
            for name, gradient in incoming.items()
        ]
        parts.append(products_again(results, floats, gradients))
    by_tensor: list[Tensor | None] = [None] * len(native.tensors)
    for place, n in enumerate(present):
        tensor = native.tensors[n]
        if not needs[n] or tensor is None:
            continue
        pieces = [part[place] for part in parts]
        if not pieces:
            by_tensor[n] = torch.zeros_like(tensor)
        elif n in by_row and tensor.shape[2] != 1:
            by_tensor[n] = torch.cat(pieces, 2).to(tensor.dtype)
        else:
            by_tensor[n] = torch.stack(pieces).sum(0).to(tensor.dtype)
    return tuple(by_tensor)
