"""Attention calls in plain torch: any device, any score, differentiable, linear memory.

Queries are computed one block of rows at a time. If gradients are needed and there are several
blocks, each is recomputed in the backward pass, so that memory stays linear there too. The output
alone is computed by torch's fused attention if that supports the call.

float16 and bfloat16 are computed in float32, since scores may overflow float16 before they are
scaled. Output and weights are cast back; scores, log-sum-exp, entropy and rest are float32.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from headloom.mechanism.backends.compiled import keep_dtypes, why_wrapped
from headloom.mechanism.backends.formulas import applied
from headloom.mechanism.backends.torch_blocks import (
    add_received,
    all_rows,
    block_scores,
    blocks,
    in_float,
    in_transform,
    normalise,
    results_of_rows,
    run_block,
    weigh,
    with_rules,
)
from headloom.mechanism.call import CONSTANT, PER_ROW, AttentionCall, Results, graph_of
from headloom.mechanism.graph import All, AttentionGraph
from headloom.mechanism.masks import Window
from headloom.mechanism.scores import Dot, ScaledDot
from headloom.mechanism.shapes import Keys, Output, Queries, Values, Weights, repeat_kv_heads


@keep_dtypes
def attend(call: AttentionCall) -> tuple[Output, AttentionGraph | Weights | None]:
    """Return the output, and the graph, the dense weights or None, by the call's `keep`."""
    if call.keep is None and _fused_serves(call):
        output = _fused(call)
        if not _zeros_for_nan(call, output):
            return output, None
    dtype = call.queries.dtype
    call = in_float(call)
    keys, values = (repeat_kv_heads(part, call.heads) for part in (call.keys, call.values))
    if isinstance(call.keep, All):
        output, weights = _dense_rows(call, call.queries, keys, values, all_rows(call.queries))
        return output.to(dtype), weights.to(dtype)
    ranges = blocks(call)
    several = len(ranges) > 1
    if call.keep is None:
        outputs = [run_block(_dense_rows, call, keys, values, rows, several) for rows in ranges]
        return torch.cat([output for output, _ in outputs], 2).to(dtype), None
    parts: list[Results] = []
    received: Results = {}
    for rows in ranges:
        part = run_block(_graph_rows, call, keys, values, rows, several)
        if several:  # its floating-point tensors are tied
            names = [name for name in part if name not in CONSTANT]
            tied = applied(_Tied, *(part[name] for name in names))
            part |= dict(zip(names, tied, strict=True))
        parts.append({name: part[name] for name in PER_ROW})
        add_received(received, part)
    results = {name: torch.cat([part[name] for part in parts], 2) for name in PER_ROW} | received
    results["weights"] = results["weights"].to(dtype)
    return results["output"].to(dtype), graph_of(call, results)


def _graph_rows(
    call: AttentionCall, queries: Queries, keys: Keys, values: Values, rows: range
) -> Results:
    scores = block_scores(call, queries, keys, rows)
    results = results_of_rows(call, scores, values, rows, call.queries.shape[2], call.places)
    return results | {"rest": results["rest"].clamp(min=0)}


def _dense_rows(
    call: AttentionCall, queries: Queries, keys: Keys, values: Values, rows: range
) -> tuple[Output, Weights]:
    weights, _, _, _ = normalise(call, block_scores(call, queries, keys, rows))
    return weigh(call, weights, values, rows), weights


class _Tied(torch.autograd.Function):
    """Identity that ties the tensors of one block: a backward pass through one uses all.

    A recomputed block is freed when the backward pass has used all of it. If a loss uses only some
    of its tensors, the rest of each block would stay in memory until the end.
    """

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tensors

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        return gradients


def _fused_serves(call: AttentionCall) -> bool:
    """Whether torch's fused attention can run the call.

    It masks before it scales, so that a scale of 0 or less would change minus infinity. It adds
    masks in the dtype of the queries, so that in half precision a sum would lose digits. On the CPU
    its gradients cannot be differentiated again, and are wrong if scores are so large that lse has
    no digits after the point.
    """
    inputs = (call.queries, call.keys, call.values)
    needs_grad = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs)
    if needs_grad and call.queries.is_cpu and not torch.compiler.is_compiling():
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


def _zeros_for_nan(call: AttentionCall, output: Tensor) -> bool:
    """Whether fused attention returned 0 for rows that are NaN, as on the CPU with few keys."""
    inputs = (call.queries, call.keys)
    if output.device.type != "cpu" or why_wrapped(inputs) is not None:
        return False
    zeros = (output.detach() == 0).all(-1)
    return bool(zeros.any()) and any(bool(part.detach().isnan().any()) for part in inputs)


def _fused(call: AttentionCall) -> Tensor:
    """Run torch's fused attention; masks and biases are formed one block of rows at a time."""
    plain = call.bias is None and call.relative is None
    attention = partial(
        scaled_dot_product_attention, enable_gqa=call.keys.shape[1] != call.heads,
        dropout_p=call.dropout, scale=call.scale,
    )  # fmt: skip
    if plain and (call.mask is None or call.mask == Window(None, 0, 0)):
        return attention(call.queries, call.keys, call.values, is_causal=call.mask is not None)

    def step(
        call: AttentionCall, queries: Tensor, keys: Tensor, values: Tensor, rows: range
    ) -> Tensor:
        if plain and call.mask is not None:
            mask = call.mask.cells(rows, keys.shape[2], queries.device)
        else:
            zeros = queries.new_zeros(1, 1, queries.shape[2], keys.shape[2])
            mask = with_rules(call, zeros, rows)
        empty = None
        if queries.device.type != "cpu":
            # A row without keys must be 0; not all of torch's GPU kernels do that.
            visible = mask if mask.dtype == torch.bool else mask > -torch.inf
            empty = ~visible.any(-1, keepdim=True)
            mask = mask.masked_fill(empty, True if mask.dtype == torch.bool else 0.0)
        output = attention(queries, keys, values, attn_mask=mask)
        return output if empty is None else output.masked_fill(empty, 0.0)

    ranges = blocks(call)
    parts = [
        run_block(step, call, call.keys, call.values, rows, len(ranges) > 1) for rows in ranges
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts, 2)
