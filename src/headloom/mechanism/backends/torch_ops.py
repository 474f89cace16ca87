"""The attention call in plain torch: any device, any score, differentiable, memory linear.

Queries are taken a block of rows at a time. Where gradients are wanted and there is more than
one block, each is recomputed in the backward pass instead of kept, so that memory stays linear
there too.

float16 and bfloat16 are computed in float32, since a score overflows float16 before its scale
makes it small. Output and weights are cast back; scores, their log-sum-exp, entropy and rest are
float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from headloom.mechanism.autocast import in_own_types
from headloom.mechanism.backends.recomputed import applied
from headloom.mechanism.backends.rows import PER_ROW, Rows
from headloom.mechanism.backends.torch_blocks import (
    all_rows,
    block_scores,
    blocks,
    in_float,
    in_transform,
    normalise,
    run_block,
    weigh,
)
from headloom.mechanism.backends.torch_fused import fused, fused_serves, zeros_for_nan
from headloom.mechanism.call import AttentionCall
from headloom.mechanism.graph import AttentionGraph, Top
from headloom.mechanism.received import Received, of_rows
from headloom.mechanism.shapes import Keys, Output, Queries, Values, Weights, repeat_kv_heads

__all__ = ["attend", "attend_all", "attention", "fused_serves", "strongest"]


def strongest(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k highest scores of each row, highest first, ties to the lower key; and their keys.

    Of a row of fewer keys all; in a program that is compiled for any number of them minus infinity
    and keys past the last one stand in the places that are left.
    """
    if type(scores.shape[-1]) is int:
        k = min(k, scores.shape[-1])
    elif k:
        scores = pad(scores, (0, k), value=-torch.inf)
    if k == 0:
        # Not a view of the scores: it would keep them in memory.
        empty = scores[..., :0].clone()
        return empty, empty.long()
    with torch.no_grad():
        values, keys = scores.topk(k, -1)
        last = values[..., -1:]
        # torch's topk leaves open which of several equal scores it takes. Rows in which the last
        # place is shared are sorted whole.
        shared = ((scores >= last).sum(-1) > k) & (last[..., 0] > -torch.inf)
        if in_transform() or torch.compiler.is_compiling() or scores.is_meta:
            # Where nothing can depend on numbers, all rows are sorted.
            keys = scores.sort(stable=True, dim=-1, descending=True).indices[..., :k]
        elif bool(shared.any()):
            exact = scores[shared].sort(stable=True, dim=-1, descending=True).indices[..., :k]
            keys[shared] = exact
        keys = keys.sort(-1).values
        order = scores.gather(-1, keys).sort(stable=True, dim=-1, descending=True).indices
        keys = keys.gather(-1, order)
    return scores.gather(-1, keys), keys


def _graph_rows(k: int) -> Callable[..., Rows]:
    def step(
        call: AttentionCall, queries: Tensor, keys: Tensor, values: Tensor, rows: range
    ) -> Rows:
        scores = block_scores(call, queries, keys, rows)
        weights, log_weights, lse, mass = normalise(call, scores)
        seen = scores != -torch.inf
        # From 0, so that the entropy of a row with one weight of 1 is 0 and not -0.
        entropy = 0 - (weights * log_weights.masked_fill(~seen, 0)).sum(-1)
        kept_scores, kept_keys = strongest(scores, k)
        # Empty places weigh 0 also in a row that is no number.
        empty = kept_scores == -torch.inf
        kept_weights = weights.gather(-1, kept_keys.masked_fill(empty, 0)).masked_fill(empty, 0)
        kept_keys = kept_keys.masked_fill(empty, -1).int()
        kept = Rows(
            weigh(call, weights, values, rows),
            kept_keys,
            kept_scores,
            kept_weights,
            lse,
            entropy,
            mass,
            seen.sum(-1).int(),
            *of_rows(weights, rows, call.queries.shape[2], call.received),
        ).with_places(k)
        return kept.changed(rest=(mass - kept.weights.sum(-1)).clamp(min=0))

    return step


def _dense_rows(
    call: AttentionCall, queries: Queries, keys: Keys, values: Values, rows: range
) -> tuple[Output, Weights]:
    weights, _, _, _ = normalise(call, block_scores(call, queries, keys, rows))
    return weigh(call, weights, values, rows), weights


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


def _together(rows: Rows) -> Rows:
    """A block whose floating-point tensors are tied; see _Together."""
    constant = ("keys", "keys_seen", "received_most")
    tied = {
        name: tensor
        for name, tensor in rows._asdict().items()
        if tensor is not None and name not in constant
    }
    return rows.changed(**dict(zip(tied, applied(_Together, *tied.values()), strict=True)))


@in_own_types
def attend(call: AttentionCall, keep: Top) -> tuple[Output, AttentionGraph]:
    """Output and attention graph. Memory: linear in the queries and in the keys.

    Returns: the output, and a graph with a batch dimension.
    """
    dtype = call.queries.dtype
    call = in_float(call)
    keys = repeat_kv_heads(call.keys, call.heads)
    values = repeat_kv_heads(call.values, call.heads)
    ranges = blocks(call)
    step = _graph_rows(keep.places(call.keys.shape[2]))
    several = len(ranges) > 1
    parts: list[Rows] = []
    received = Received()
    for rows in ranges:
        part = run_block(step, call, keys, values, rows, several)
        part = _together(part) if several else part
        # Added up at once: a part of it for every block would take memory.
        own = Received(part.received, part.received_most, part.received_last)
        received = received.plus(own) if parts else own
        parts.append(part.changed(received=None, received_most=None, received_last=None))
    by_row = zip(*(part[:PER_ROW] for part in parts), strict=True)
    whole = Rows(*(torch.cat(tensors, 2) for tensors in by_row)).changed(**received._asdict())
    whole = whole.changed(output=whole.output.to(dtype), weights=whole.weights.to(dtype))
    return whole.output, whole.graph(call)


@in_own_types
def attend_all(call: AttentionCall) -> tuple[Output, Weights]:
    """Output and the dense weights."""
    dtype = call.queries.dtype
    call = in_float(call)
    keys = repeat_kv_heads(call.keys, call.heads)
    values = repeat_kv_heads(call.values, call.heads)
    output, weights = _dense_rows(call, call.queries, keys, values, all_rows(call.queries))
    return output.to(dtype), weights.to(dtype)


@in_own_types
def attention(call: AttentionCall) -> Output:
    """The output alone: torch's fused attention where it serves the call, blocks elsewhere."""
    if fused_serves(call):
        output = fused(call)
        if not zeros_for_nan(call, output):
            return output
    dtype = call.queries.dtype
    call = in_float(call)
    keys = repeat_kv_heads(call.keys, call.heads)
    values = repeat_kv_heads(call.values, call.heads)
    ranges = blocks(call)

    def output_rows(*arguments: Any) -> Tensor:
        return _dense_rows(*arguments)[0]

    parts = [run_block(output_rows, call, keys, values, rows, len(ranges) > 1) for rows in ranges]
    return torch.cat(parts, 2).to(dtype)
