"""The gradients of a call of the native kernels in torch's operations, a block of rows at a time.

They can be differentiated again, and hold where scores are so large that the kernels' cannot.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headloom.mechanism.backends.native_request import NativeCall
from headloom.mechanism.backends.recomputed import products_again
from headloom.mechanism.backends.torch_blocks import block_scores, normalise, row_blocks, weigh
from headloom.mechanism.call import AttentionCall
from headloom.mechanism.positions import ByDistance, Relative, Shaw
from headloom.mechanism.received import of_rows
from headloom.mechanism.scores import Dot
from headloom.mechanism.shapes import repeat_kv_heads

__all__ = ["torch_gradients"]

#: Of `_results`, those that have a row for each query; the others are sums over them.
PER_ROW = 6


def _relative_of(native: NativeCall) -> Relative | None:
    if native.key_table is not None:
        return Shaw(native.key_table, native.value_table, native.relative_offset)
    if native.offset_bias is not None:
        return ByDistance(native.offset_bias, native.offset_bias.shape[1] - native.keys.shape[2])
    return None


def _results(
    native: NativeCall, rows: range, queries_count: int, kept: Tensor | None
) -> tuple[Tensor | None, ...]:
    """Output, lse, entropy, and kept scores, weights and rest of some rows, in float32.

    And what keys receive from these rows: from all of them, and from those among the last queries.

    native: its queries, and its bias where that differs by query, are those of the rows alone.
    queries_count: of the whole call.
    kept: keys (batch, heads, rows, k), or None for none.
    """
    queries, heads = native.queries, native.queries.shape[1]
    keys, values = (repeat_kv_heads(part, heads) for part in (native.keys, native.values))
    call = AttentionCall(
        queries,
        keys,
        values,
        Dot(),
        native.scale,
        native.mask,
        _relative_of(native),
        None,
        native.softcap or None,
        native.sinks,
    )
    scores = block_scores(call, queries, keys, rows)
    if native.bias is not None:
        scores = scores + native.bias
    weights, log_weights, lse, mass = normalise(call, scores)
    output = weigh(call, weights, values, rows)
    if kept is None:
        return output, lse
    entropy = -(weights * log_weights.masked_fill(scores == -torch.inf, 0)).sum(-1)
    absent, places = kept < 0, kept.clamp(min=0).long()
    kept_scores = scores.gather(-1, places).masked_fill(absent, -torch.inf)
    kept_weights = weights.gather(-1, places).masked_fill(absent, 0)
    rest = mass - kept_weights.sum(-1)
    received = of_rows(weights, rows, queries_count, native.last_queries)
    by_key = received.received, received.received_last
    return output, lse, entropy, kept_scores, kept_weights, rest, *by_key


def torch_gradients(
    native: NativeCall,
    kept: Tensor | None,
    incoming: Sequence[Tensor | None],
    needs: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    """Gradients for NativeCall.tensors, None for those that want none, in torch's operations.

    Args:
        native: the call.
        kept: the keys of its kept edges, or None for none.
        incoming: gradients of the results, in the order of `_results`; None where there is none.
        needs: which of NativeCall.tensors want a gradient.
    """
    present = [n for n, tensor in enumerate(native.tensors) if tensor is not None]
    wanted = [n for n, gradient in enumerate(incoming) if gradient is not None]
    by_row = [n for n in present if native.names[n] in ("queries", "bias")]
    parts: list[tuple[Tensor, ...]] = []
    for rows in row_blocks(native.queries, native.keys.shape[2]):
        inside = slice(rows.start, rows.stop)
        some_kept = None if kept is None else kept[:, :, inside]

        def results(
            *tensors: Tensor, rows: range = rows, some_kept: Tensor | None = some_kept
        ) -> tuple[Tensor, ...]:
            every: list[Tensor | None] = [None] * len(native.names)
            for n, tensor in zip(present, tensors, strict=True):
                every[n] = tensor
            call = native.with_tensors(tuple(every))
            results_of_rows = _results(call, rows, native.queries.shape[2], some_kept)
            asked = [results_of_rows[n] for n in wanted]
            return tuple(result for result in asked if result is not None)

        tensors = [native.tensors[n] for n in present]
        floats = [
            tensor[:, :, inside].float() if n in by_row and tensor.shape[2] != 1 else tensor.float()
            for n, tensor in zip(present, tensors, strict=True)
            if tensor is not None
        ]
        # What keys receive is a sum over rows: each block has the gradient of the whole.
        # (Not by their index: a whole one is an alias, which batched gradients have not.)
        gradients = [
            (gradient.narrow(2, rows.start, len(rows)) if n < PER_ROW else gradient).float()
            for n, gradient in enumerate(incoming)
            if gradient is not None
        ]
        parts.append(products_again(results, floats, gradients))
    by_tensor: list[Tensor | None] = [None] * len(native.names)
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
