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
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import dropout, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from weft.mechanism.call import AttentionCall
from weft.mechanism.graph import AttentionGraph, Top
from weft.mechanism.masks import Window
from weft.mechanism.positions import Shaw
from weft.mechanism.scores import Dot, ScaledDot
from weft.mechanism.shapes import repeat_kv_heads

__all__ = [
    "attend",
    "attend_all",
    "attention",
    "block_scores",
    "fused_serves",
    "with_float_tensors",
]

#: Numbers that one block of rows may hold: 64 MiB of float32.
BLOCK_CELLS = 2**24


#: One block of rows: output, then the tensors of an AttentionGraph in their order.
Rows = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def with_float_tensors(parts: Any) -> Any:
    """A score or relative positions with every half-precision tensor in float32."""
    if not is_dataclass(parts):
        return parts
    changed = {}
    for field in fields(parts):
        value = getattr(parts, field.name)
        if isinstance(value, Tensor) and value.dtype in (torch.float16, torch.bfloat16):
            changed[field.name] = value.float()
    return replace(parts, **changed) if changed else parts  # type: ignore[type-var]


def _in_float(call: AttentionCall) -> AttentionCall:
    """The call in float32 where it is in half precision; else the call itself."""
    if call.queries.dtype not in (torch.float16, torch.bfloat16):
        return call
    queries = call.queries.float()
    return replace(
        call,
        queries=queries,
        keys=queries if call.keys is call.queries else call.keys.float(),
        values=call.values.float(),
        score=with_float_tensors(call.score),
        relative=with_float_tensors(call.relative),
    )


def _blocks(call: AttentionCall) -> list[range]:
    """The queries, in blocks whose scores fit BLOCK_CELLS."""
    batch, heads, queries, depth = call.queries.shape
    cells_per_row = batch * heads * call.keys.shape[2] * call.score.cells_per_score(depth)
    size = max(1, BLOCK_CELLS // max(1, cells_per_row))
    return [range(start, min(start + size, queries)) for start in range(0, queries, size)]


def _run_block(
    step: Callable[..., Any],
    call: AttentionCall,
    keys: Tensor,
    values: Tensor,
    rows: range,
    recompute: bool,
) -> Any:
    """One block of rows, its inner tensors recomputed in the backward pass where asked."""
    queries = call.queries[:, :, rows.start : rows.stop]
    if recompute and torch.is_grad_enabled():
        # The state of the random numbers is needed again only where they drop weights.
        random = call.dropout > 0
        return checkpoint(
            step, call, queries, keys, values, rows, use_reentrant=False, preserve_rng_state=random
        )
    return step(call, queries, keys, values, rows)


def block_scores(call: AttentionCall, queries: Tensor, keys: Tensor, rows: range) -> Tensor:
    """The scores of some rows as AttentionCall defines them, minus infinity where hidden.

    Args:
        call: the attention call.
        queries: its rows, (batch, heads, rows, depth).
        keys: one head of keys for each head of queries, (batch, heads, keys, depth).
        rows: which queries these are.

    Returns: (batch, heads, rows, keys).
    """
    scores = call.score(queries, keys)
    length = keys.shape[2]
    if call.relative is not None:
        key_scores = call.relative.key_scores(queries, rows, length)
        if key_scores is not None:
            scores = scores + key_scores
    scores = scores * call.scale
    if call.softcap is not None:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    if call.relative is not None:
        relative_bias = call.relative.bias(rows, length, scores.device)
        if relative_bias is not None:
            scores = scores + relative_bias.to(scores.dtype)
    if call.bias is not None:
        bias = call.bias
        bias = bias if bias.shape[2] == 1 else bias[:, :, rows.start : rows.stop]
        scores = scores + bias.to(scores.dtype)
    if call.mask is not None:
        scores = scores.masked_fill(~call.mask.block(rows, length, scores.device), -torch.inf)
    return scores


def _normalise(call: AttentionCall, scores: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Weights, their logarithms, log-sum-exp, and the mass of each row (1, or 0 if all hidden)."""
    logits = scores
    if call.sinks is not None:
        sink = call.sinks.to(scores)[None, :, None, None].expand(*scores.shape[:3], 1)
        logits = torch.cat((scores, sink), -1)
    hidden = (logits == -torch.inf).all(-1, keepdim=True)
    # A row without any key has no softmax: it is computed from zeros and then set to 0, so that
    # no NaN arises that would have to be hidden, forward or backward.
    shown = logits.masked_fill(hidden, 0)
    # Not scores - lse: where scores are huge, their log-sum-exp has lost the digits that weights
    # are made of.
    log_weights = shown.log_softmax(-1)[..., : scores.shape[-1]].masked_fill(hidden, -torch.inf)
    weights = log_weights.exp()
    lse = shown.logsumexp(-1).masked_fill(hidden.squeeze(-1), -torch.inf)
    return weights, log_weights, lse, (~hidden).squeeze(-1).to(scores.dtype)


def _weigh(call: AttentionCall, weights: Tensor, values: Tensor, rows: range) -> Tensor:
    """The output of some rows: weighted values, and what relative positions add to them."""
    if call.dropout:
        weights = dropout(weights, call.dropout)
    output = weights @ values
    if call.relative is not None:
        relative_output = call.relative.value_output(weights, rows)
        if relative_output is not None:
            output = output + relative_output
    return output


def _top(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k highest scores of each row, highest first, ties to the lower key; and their keys."""
    k = min(k, scores.shape[-1])
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
        if bool(shared.any()):
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
        weights, log_weights, lse, mass = _normalise(call, scores)
        seen = scores != -torch.inf
        # From 0, so that the entropy of a row with one weight of 1 is 0 and not -0.
        entropy = 0 - (weights * log_weights.masked_fill(~seen, 0)).sum(-1)
        kept_scores, kept_keys = _top(scores, k)
        kept_weights = weights.gather(-1, kept_keys)
        kept_keys = kept_keys.masked_fill(kept_scores == -torch.inf, -1).int()
        missing = k - kept_keys.shape[-1]
        if missing > 0:
            pad = (0, missing)
            kept_keys = torch.nn.functional.pad(kept_keys, pad, value=-1)
            kept_scores = torch.nn.functional.pad(kept_scores, pad, value=-torch.inf)
            kept_weights = torch.nn.functional.pad(kept_weights, pad)
        return (
            _weigh(call, weights, values, rows),
            kept_keys,
            kept_scores,
            kept_weights,
            lse,
            entropy,
            (mass - kept_weights.sum(-1)).clamp(min=0),
            seen.sum(-1).int(),
        )

    return step


def _dense_rows(
    call: AttentionCall, queries: Tensor, keys: Tensor, values: Tensor, rows: range
) -> tuple[Tensor, Tensor]:
    weights, _, _, _ = _normalise(call, block_scores(call, queries, keys, rows))
    return _weigh(call, weights, values, rows), weights


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
    output, keys, scores, weights, lse, entropy, rest, count = rows
    tied = _Together.apply(output, scores, weights, lse, entropy, rest)  # type: ignore[no-untyped-call]
    return (tied[0], keys, *tied[1:], count)


def attend(call: AttentionCall, keep: Top) -> tuple[Tensor, AttentionGraph]:
    """Output and attention graph. Memory: linear in the queries and in the keys.

    Returns: (batch, heads, queries, value_depth), and a graph with a batch dimension.
    """
    dtype = call.queries.dtype
    call = _in_float(call)
    keys = repeat_kv_heads(call.keys, call.heads)
    values = repeat_kv_heads(call.values, call.heads)
    blocks = _blocks(call) or [range(0)]
    step = _graph_rows(keep.places(call.keys.shape[2]))
    parts = [
        _together(_run_block(step, call, keys, values, rows, len(blocks) > 1)) for rows in blocks
    ]
    output, kept_keys, scores, weights, lse, entropy, rest, count = (
        torch.cat(tensors, 2) for tensors in zip(*parts, strict=True)
    )
    length, symmetric = call.keys.shape[2], call.symmetric
    weights = weights.to(dtype)
    return output.to(dtype), AttentionGraph(
        kept_keys, scores, weights, lse, entropy, rest, count, length, symmetric
    )


def attend_all(call: AttentionCall) -> tuple[Tensor, Tensor]:
    """Output and the dense weights, (batch, heads, queries, keys)."""
    dtype = call.queries.dtype
    call = _in_float(call)
    keys = repeat_kv_heads(call.keys, call.heads)
    values = repeat_kv_heads(call.values, call.heads)
    output, weights = _dense_rows(call, call.queries, keys, values, range(call.queries.shape[2]))
    return output.to(dtype), weights.to(dtype)


def attention(call: AttentionCall) -> Tensor:
    """The output alone: torch's fused attention where it serves the call, blocks elsewhere."""
    if fused_serves(call):
        return _fused(call)
    dtype = call.queries.dtype
    call = _in_float(call)
    keys = repeat_kv_heads(call.keys, call.heads)
    values = repeat_kv_heads(call.values, call.heads)
    blocks = _blocks(call) or [range(0)]

    def output_rows(*arguments: Any) -> Tensor:
        return _dense_rows(*arguments)[0]

    parts = [_run_block(output_rows, call, keys, values, rows, len(blocks) > 1) for rows in blocks]
    return torch.cat(parts, 2).to(dtype)


def fused_serves(call: AttentionCall) -> bool:
    """Whether torch's fused attention can run the call."""
    return (
        isinstance(call.score, Dot | ScaledDot)
        and not isinstance(call.relative, Shaw)
        and call.softcap is None
        and call.sinks is None
        and call.keys.shape[2] > 0
        and call.queries.shape[3] > 0
    )


def _fused(call: AttentionCall) -> Tensor:
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
            added = queries.new_zeros(1, 1, len(rows), keys.shape[2])
            if call.relative is not None:
                relative_bias = call.relative.bias(rows, keys.shape[2], queries.device)
                if relative_bias is not None:
                    added = added + relative_bias.to(added.dtype)
            if call.bias is not None:
                bias = call.bias
                bias = bias if bias.shape[2] == 1 else bias[:, :, rows.start : rows.stop]
                added = added + bias.to(added.dtype)
        if call.mask is not None:
            allowed = call.mask.block(rows, keys.shape[2], queries.device)
            added = allowed if added is None else added.masked_fill(~allowed, -torch.inf)
        return scaled_dot_product_attention(
            queries,
            keys,
            values,
            attn_mask=added,
            enable_gqa=grouped,
            dropout_p=call.dropout,
            scale=call.scale,
        )

    blocks = _blocks(call) or [range(0)]
    parts = [
        _run_block(step, call, call.keys, call.values, rows, len(blocks) > 1) for rows in blocks
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts, 2)
