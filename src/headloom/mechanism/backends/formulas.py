"""Gradients of a kernel's call in torch operations, one block of rows at a time.

They can be differentiated again, replace missing backward kernels, and are exact for scores that
are too large for a kernel's backward pass. Intermediate tensors are recomputed, never stored, so
that memory is linear for derivatives of any order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from headloom.mechanism.backends.compiled import NativeCall
from headloom.mechanism.backends.torch_blocks import (
    add_received,
    block_scores,
    results_of_rows,
    row_blocks,
)
from headloom.mechanism.call import PER_ROW, AttentionCall, Results
from headloom.mechanism.positions import ByDistance, Relative, Shaw
from headloom.mechanism.scores import Dot
from headloom.mechanism.shapes import repeat_kv_heads

#: A function from tensors to tensors.
Function = Callable[..., tuple[Tensor, ...]]


def applied(function: type[torch.autograd.Function], *arguments: object) -> tuple[Tensor, ...]:
    """Apply an autograd function with several results."""
    apply: Callable[..., tuple[Tensor, ...]] = function.apply
    return apply(*arguments)


def _products(
    function: Function, tensors: Sequence[Tensor], gradients: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """Return the gradients of a function from those of its results; differentiable again."""
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        # Views, so that a tensor that occurs twice has two gradients.
        inputs = [
            tensor.view_as(tensor)
            if again and tensor.requires_grad
            else tensor.detach().requires_grad_()
            for tensor in tensors
        ]
        pairs = [
            (result, gradient)
            for result, gradient in zip(function(*inputs), gradients, strict=True)
            if result.requires_grad
        ]
        by_input: Sequence[Tensor | None] = [None] * len(inputs)
        if pairs:
            results, by_results = zip(*pairs, strict=True)
            by_input = torch.autograd.grad(
                results, inputs, by_results, create_graph=again, allow_unused=True
            )
    return tuple(
        torch.zeros_like(tensor) if gradient is None else gradient
        for tensor, gradient in zip(tensors, by_input, strict=True)
    )


class _Recomputed(torch.autograd.Function):
    """Function of tensors that saves only these; differentiable any number of times."""

    @staticmethod
    def forward(ctx: Any, function: Function, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.function = function
        ctx.save_for_backward(*tensors)
        return function(*tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        return None, *products_again(ctx.function, ctx.saved_tensors, gradients)


def batched(tensors: Iterable[Tensor | None]) -> bool:
    """Whether one of the tensors is batched, as gradients are by is_grads_batched=True."""
    functorch = torch._C._functorch
    return any(
        functorch.is_legacy_batchedtensor(tensor) or functorch.is_batchedtensor(tensor)
        for tensor in tensors
        if tensor is not None
    )


def by_operations(gradients: Iterable[Tensor | None]) -> bool:
    """Whether a backward pass is differentiated again or batched, so that no kernel can run it."""
    return torch.is_grad_enabled() or batched(gradients)


def products_again(
    function: Function, tensors: Sequence[Tensor], gradients: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """Return the gradients of a function; recompute them for their own derivatives."""
    count, both = len(tensors), (*tensors, *gradients)

    def products(*both: Tensor) -> tuple[Tensor, ...]:
        return _products(function, both[:count], both[count:])

    again = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in both)
    # Results of an autograd function would be detached if they are batched.
    return applied(_Recomputed, products, *both) if again and not batched(both) else products(*both)


def _results(native: NativeCall, rows: range, queries_count: int, kept: Tensor | None) -> Results:
    """Return the results of some rows, in float32; the call has only their queries and bias.

    queries_count: of the whole call. kept: keys of edges; None: only output and log-sum-exp.
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


def received_by_formulas(native: NativeCall, kept: Tensor) -> Results:
    """Compute received attention, (batch, heads, keys), for kernels that do not."""
    total: Results = {}
    count, bias = native.queries.shape[2], native.bias
    for rows in row_blocks(native.queries, native.keys.shape[2]) or [range(0)]:
        inside = slice(rows.start, rows.stop)
        part_bias = bias if bias is None or bias.shape[2] == 1 else bias[:, :, inside]
        queries, keys, values = native.queries[:, :, inside], native.keys, native.values
        part = native._replace(
            queries=queries.float(), keys=keys.float(), values=values.float(), bias=part_bias
        )
        with torch.no_grad():
            add_received(total, _results(part, rows, count, kept[:, :, inside]))
    return total


def gradients_by_formulas(
    native: NativeCall, kept: Tensor | None, incoming: Results, needs: Sequence[bool]
) -> tuple[Tensor | None, ...]:
    """Return gradients for NativeCall.tensors, None for those that need none.

    kept: the keys of kept edges, if any. incoming: gradients by results.
    """
    present = [n for n, tensor in enumerate(native.tensors) if tensor is not None]
    by_row = [n for n in present if NativeCall._fields[n] in ("queries", "bias")]
    parts: list[tuple[Tensor, ...]] = []
    for rows in row_blocks(native.queries, native.keys.shape[2]):
        inside = slice(rows.start, rows.stop)
        part_kept = None if kept is None else kept[:, :, inside]

        def results(
            *tensors: Tensor, rows: range = rows, part_kept: Tensor | None = part_kept
        ) -> tuple[Tensor, ...]:
            fields = list(native)
            for n, part in zip(present, tensors, strict=True):
                fields[n] = part
            call = NativeCall._make(fields)
            by_name = _results(call, rows, native.queries.shape[2], part_kept)
            return tuple(by_name[name] for name in incoming)

        floats = [
            tensor[:, :, inside].float() if n in by_row and tensor.shape[2] != 1 else tensor.float()
            for n, tensor in enumerate(native.tensors)
            if tensor is not None
        ]
        # Column sums are sums over rows: each block has the gradient of the whole.
        # (narrow, not an index: a full slice is an alias, which batched gradients do not support.)
        gradients = [
            (gradient.narrow(2, rows.start, len(rows)) if name in PER_ROW else gradient).float()
            for name, gradient in incoming.items()
        ]
        parts.append(products_again(results, floats, gradients))
    by_tensor: list[Tensor | None] = [None] * len(native.tensors)
    for index, n in enumerate(present):
        tensor = native.tensors[n]
        if not needs[n] or tensor is None:
            continue
        pieces = [part[index] for part in parts]
        if not pieces:
            by_tensor[n] = torch.zeros_like(tensor)
        elif n in by_row and tensor.shape[2] != 1:
            by_tensor[n] = torch.cat(pieces, 2).to(tensor.dtype)
        else:
            by_tensor[n] = torch.stack(pieces).sum(0).to(tensor.dtype)
    return tuple(by_tensor)
