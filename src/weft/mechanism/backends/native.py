"""The native kernels as attention calls: forward, and backward from output and log-sum-exp.

The kernels stream keys past blocks of queries and never form the matrix of weights; see
native/forward.h and native/backward.h. Results do not depend on the number of threads.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from weft.mechanism.backends.native_backward import Incoming, gradients
from weft.mechanism.backends.native_forward import Rows, forward
from weft.mechanism.backends.native_request import NativeCall, kernels, prepare, why_not_served
from weft.mechanism.call import AttentionCall
from weft.mechanism.graph import AttentionGraph, Top

__all__ = ["attend", "attention", "instruction_sets", "why_not_served"]


def instruction_sets() -> list[str]:
    """The instruction sets that the kernels and this processor share, the widest first."""
    return [] if kernels is None else list(kernels.instruction_sets())


class _Attention(torch.autograd.Function):
    """Output and log-sum-exp, differentiable."""

    @staticmethod
    def forward(ctx: Any, native: NativeCall, *tensors: Tensor | None) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        rows = forward(native, None)
        ctx.native = native.bare()
        ctx.save_for_backward(*tensors, rows.output, rows.lse)
        return rows.output, rows.lse

    @staticmethod
    def backward(ctx: Any, output: Tensor | None, lse: Tensor | None) -> tuple[Any, ...]:
        *tensors, saved_output, saved_lse = ctx.saved_tensors
        native = ctx.native.with_tensors(tuple(tensors))
        rows, incoming = Rows(saved_output, saved_lse), Incoming(output, lse)
        return None, *gradients(native, rows, incoming, ctx.needs_input_grad[-8:])


class _Attend(torch.autograd.Function):
    """Output and graph, differentiable but for the kept keys and the counts."""

    @staticmethod
    def forward(
        ctx: Any, native: NativeCall, kept: int, *tensors: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        ctx.set_materialize_grads(False)
        rows = forward(native, kept)
        assert rows.keys is not None and rows.count is not None
        ctx.native = native.bare()
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
        incoming = Incoming(output, lse, entropy, scores, weights, rest)
        return None, None, *gradients(native, rows, incoming, ctx.needs_input_grad[-8:])


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
