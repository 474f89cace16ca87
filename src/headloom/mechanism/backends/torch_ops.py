"""The attention call in plain torch: any device, any score, differentiable, memory linear.

Queries are taken a block of rows at a time. Where gradients are wanted and there is more than
one block, each is recomputed in the backward pass instead of kept, so that memory stays linear
there too.

float16 and bfloat16 are computed in float32, since a score overflows float16 before its scale
makes it small. Output and weights are cast back; scores, their log-sum-exp, entropy and rest are
float32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headloom.mechanism.backends.recomputed import applied
from headloom.mechanism.backends.torch_blocks import (
    all_rows,
    block_scores,
    blocks,
    in_float,
    normalise,
    results_of_rows,
    run_block,
    weigh,
)
from headloom.mechanism.backends.torch_fused import fused, fused_serves, zeros_for_nan
from headloom.mechanism.call import CONSTANT, PER_ROW, AttentionCall, Results, graph_of
from headloom.mechanism.graph import All, AttentionGraph
from headloom.mechanism.modes import in_own_types
from headloom.mechanism.shapes import Keys, Output, Queries, Values, Weights, repeat_kv_heads

__all__ = ["attend"]


@in_own_types
def attend(call: AttentionCall) -> tuple[Output, AttentionGraph | Weights | None]:
    """Output, and what the call keeps: a graph, the dense weights, or nothing.

    The output alone is by torch's fused attention where that serves the call.
    """
    if call.keep is None and fused_serves(call):
        output = fused(call)
        if not zeros_for_nan(call, output):
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
        outputs = [run_block(_output, call, keys, values, rows, several) for rows in ranges]
        return torch.cat(outputs, 2).to(dtype), None
    parts: list[Results] = []
    received: Results = {}
    for rows in ranges:
        part = run_block(_graph_rows, call, keys, values, rows, several)
        part = _together(part) if several else part
        parts.append({name: part[name] for name in PER_ROW})
        # Added up at once: a part of it for every block would take memory.
        for name in part.keys() - parts[-1].keys():
            add = torch.maximum if name == "received_most" else torch.add
            received[name] = add(received[name], part[name]) if name in received else part[name]
    whole = {name: torch.cat([part[name] for part in parts], 2) for name in PER_ROW} | received
    whole["weights"] = whole["weights"].to(dtype)
    return whole["output"].to(dtype), graph_of(call, whole)


def _graph_rows(
    call: AttentionCall, queries: Queries, keys: Keys, values: Values, rows: range
) -> Results:
    scores = block_scores(call, queries, keys, rows)
    found = results_of_rows(call, scores, values, rows, call.queries.shape[2], call.places)
    return found | {"rest": found["rest"].clamp(min=0)}


def _dense_rows(
    call: AttentionCall, queries: Queries, keys: Keys, values: Values, rows: range
) -> tuple[Output, Weights]:
    weights, _, _, _ = normalise(call, block_scores(call, queries, keys, rows))
    return weigh(call, weights, values, rows), weights


def _output(
    call: AttentionCall, queries: Queries, keys: Keys, values: Values, rows: range
) -> Output:
    return _dense_rows(call, queries, keys, values, rows)[0]


class _Together(torch.autograd.Function):
    """The tensors of one block as they are; a backward pass through one goes through all.

    A recomputed block is let go when the backward pass has been through all of it. Where the loss
    uses only some of its outputs, the rest of each block would stay until the end, and memory
    would be quadratic.
    """

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tensors

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        return gradients


def _together(results: Results) -> Results:
    """A block whose floating-point tensors are tied; see _Together."""
    names = [name for name in results if name not in CONSTANT]
    tied = applied(_Together, *(results[name] for name in names))
    return results | dict(zip(names, tied, strict=True))
