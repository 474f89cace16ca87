"""The fused attention of torch, where it serves a call."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from headloom.mechanism.backends.compiled import why_wrapped
from headloom.mechanism.backends.torch_blocks import blocks, in_transform, run_block
from headloom.mechanism.call import AttentionCall
from headloom.mechanism.masks import Window
from headloom.mechanism.scores import Dot, ScaledDot

__all__ = ["fused", "fused_serves", "zeros_for_nan"]


def fused_serves(call: AttentionCall) -> bool:
    """Whether torch's fused attention can run the call.

    It hides keys before it scales: times a scale that is not above 0, minus infinity is not what
    it was. And what is added to scores is of the queries' type: in half precision a sum would lose
    its digits. On the CPU its gradients cannot be differentiated again, and are none where scores
    are so large that lse has lost the digits after the point.
    """
    learns = torch.is_grad_enabled() and any(
        tensor.requires_grad for tensor in (call.queries, call.keys, call.values)
    )
    if learns and call.queries.is_cpu and not torch.compiler.is_compiling():
        return False
    half = call.queries.dtype in (torch.float16, torch.bfloat16)
    exact = call.relative is None and (call.bias is None or call.bias.dtype == call.queries.dtype)
    return (
        call.scale > 0
        and type(call.score) in (Dot, ScaledDot)
        and (call.relative is None or call.relative.only_bias)
        and call.softcap is None
        and call.sinks is None
        and call.keys.shape[2] > 0
        and call.queries.shape[3] > 0
        and (exact or not half)
        and not in_transform()
    )


def zeros_for_nan(call: AttentionCall, output: Tensor) -> bool:
    """Whether torch's fused attention gave 0 in rows whose scores are not numbers (NaN).

    On the CPU it does where there are fewer keys than its vectors are long.
    """
    inputs = (call.queries, call.keys)
    if output.device.type != "cpu" or why_wrapped(inputs) is not None:
        return False
    nothing = (output.detach() == 0).all(-1)
    return bool(nothing.any()) and any(bool(part.detach().isnan().any()) for part in inputs)


def fused(call: AttentionCall) -> Tensor:
    """The fused attention of torch; masks and biases are formed a block of rows at a time."""
    grouped = call.keys.shape[1] != call.heads
    plain = call.bias is None and call.relative is None
    if plain and (call.mask is None or call.mask == Window(None, 0, 0)):
        return scaled_dot_product_attention(
            call.queries,
            call.keys,
            call.values,
            is_causal=call.mask is not None,
            enable_gqa=grouped,
            dropout_p=call.dropout,
            scale=call.scale,
        )

    def step(
        call: AttentionCall, queries: Tensor, keys: Tensor, values: Tensor, rows: range
    ) -> Tensor:
        added: Tensor | None = None
        if not plain:
            added = queries.new_zeros(1, 1, queries.shape[2], keys.shape[2])
            if call.relative is not None:
                relative_bias = call.relative.bias(rows, keys.shape[2], queries.device)
                if relative_bias is not None:
                    added = added + relative_bias.to(added.dtype)
            if call.bias is not None:
                bias = call.bias
                bias = bias if bias.shape[2] == 1 else bias[:, :, rows.start : rows.stop]
                added = added + bias.to(added.dtype)
        if call.mask is not None:
            allowed = call.mask.cells(rows, keys.shape[2], queries.device)
            added = allowed if added is None else added.masked_fill(~allowed, -torch.inf)
        blind = None
        if queries.device.type != "cpu" and added is not None:
            # A row that sees nothing is 0, which not all of torch's kernels for GPUs make it.
            seen = added if added.dtype == torch.bool else added > -torch.inf
            blind = ~seen.any(-1, keepdim=True)
            added = added.masked_fill(blind, True if added.dtype == torch.bool else 0.0)
        output = scaled_dot_product_attention(
            queries,
            keys,
            values,
            attn_mask=added,
            enable_gqa=grouped,
            dropout_p=call.dropout,
            scale=call.scale,
        )
        return output if blind is None else output.masked_fill(blind, 0.0)

    ranges = blocks(call)
    parts = [
        run_block(step, call, call.keys, call.values, rows, len(ranges) > 1) for rows in ranges
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts, 2)
