"""The steps of an attention call in plain torch, for a block of rows at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar, cast

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.functional import dropout, pad
from torch.utils.checkpoint import checkpoint

from headloom.errors import ShapeError
from headloom.mechanism.backends.compiled import is_exporting
from headloom.mechanism.call import AttentionCall, Results
from headloom.mechanism.parts import with_float_tensors
from headloom.mechanism.received import of_rows
from headloom.mechanism.shapes import (
    Keys,
    Output,
    PerRow,
    Queries,
    Scores,
    Values,
    Weights,
    describe,
)

Result = TypeVar("Result")

#: Numbers that one block of rows may hold: 64 MiB of float32.
BLOCK_CELLS = 2**24


def in_transform() -> bool:
    """Whether a transform of torch.func is at work, or derivatives are taken forward."""
    forward: bool = forward_ad._current_level >= 0
    return forward or torch._C._functorch.peek_interpreter_stack() is not None


def in_float(call: AttentionCall) -> AttentionCall:
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


class _AllRows:
    """All queries of a program that is exported for any length: a range whose end is no number."""

    start = 0

    def __init__(self, stop: int) -> None:
        self.stop = stop

    def __len__(self) -> int:
        return int(self.stop)


def all_rows(queries: Queries) -> range:
    """All queries as one range, also where a program is exported for any length."""
    count = queries.shape[2]
    return range(count) if type(count) is int else cast(range, _AllRows(count))


def row_blocks(queries: Queries, cells_per_row: int) -> list[range]:
    """The queries in blocks of BLOCK_CELLS or one row; cells_per_row: of one head."""
    batch, heads, count, _ = queries.shape
    if is_exporting() and any(type(size) is not int for size in queries.shape):
        return [all_rows(queries)]  # as many blocks as there are would be a number too
    size = max(1, BLOCK_CELLS // max(1, batch * heads * cells_per_row))
    if 0 < count <= size:  # (a program that is compiled for any length asks no more of it)
        return [all_rows(queries)]
    return [range(start, min(start + size, count)) for start in range(0, count, size)]


def blocks(call: AttentionCall) -> list[range]:
    """The queries, in blocks whose scores fit BLOCK_CELLS; one empty block where there are none."""
    cells_per_score = call.score.cells_per_score(call.queries.shape[3])
    return row_blocks(call.queries, call.keys.shape[2] * cells_per_score) or [range(0)]


def run_block(
    step: Callable[[AttentionCall, Tensor, Tensor, Tensor, range], Result],
    call: AttentionCall,
    keys: Tensor,
    values: Tensor,
    rows: range,
    recompute: bool,
) -> Result:
    """One block of rows, its inner tensors recomputed in the backward pass where asked."""
    queries = call.queries[:, :, rows.start : rows.stop]
    if recompute and torch.is_grad_enabled():
        # The state of the random numbers is needed again only where they drop weights.
        random = call.dropout > 0
        result: Result = checkpoint(
            step, call, queries, keys, values, rows, use_reentrant=False, preserve_rng_state=random
        )
        return result
    return step(call, queries, keys, values, rows)


def block_scores(call: AttentionCall, queries: Queries, keys: Keys, rows: range) -> Scores:
    """The scores of some rows as AttentionCall defines them; keys: one head for each of queries."""
    scores = call.score(queries, keys)
    length = keys.shape[2]
    if not isinstance(scores, Tensor) or scores.shape != (*queries.shape[:3], length):
        found = describe(scores) if isinstance(scores, Tensor) else type(scores).__name__
        raise ShapeError(
            f"{type(call.score).__name__}: the scores are {found}; expected one for each query and "
            f"key, {(*queries.shape[:3], length)}."
        )
    if call.relative is not None:
        key_scores = call.relative.key_scores(queries, rows, length)
        if key_scores is not None:
            scores = scores + key_scores
    scores = scores * call.scale
    if call.softcap is not None:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    return with_rules(call, scores, rows)


def with_rules(call: AttentionCall, scores: Scores, rows: range) -> Scores:
    """Scores of some rows with their biases, and minus infinity where the mask hides a key."""
    length, device = scores.shape[-1], scores.device
    if call.relative is not None:
        relative_bias = call.relative.bias(rows, length, device)
        if relative_bias is not None:
            scores = scores + relative_bias.to(scores.dtype)
    if call.bias is not None:
        bias = call.bias
        bias = bias if bias.shape[2] == 1 else bias[:, :, rows.start : rows.stop]
        scores = scores + bias.to(scores.dtype)
    if call.mask is not None:
        scores = scores.masked_fill(~call.mask.cells(rows, length, device), -torch.inf)
    return scores


def normalise(call: AttentionCall, scores: Scores) -> tuple[Weights, Weights, PerRow, PerRow]:
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
    # Of a score that is infinite, weights are no numbers, and all of the row says so.
    lse = lse.masked_fill(lse == torch.inf, torch.nan)
    return weights, log_weights, lse, (~hidden).squeeze(-1).to(scores.dtype)


def add_received(total: Results, part: Results) -> None:
    """Add what keys receive from some rows, at once: a part for every block would take memory."""
    for name in part.keys() & {"received", "received_most", "received_last"}:
        add = torch.maximum if name == "received_most" else torch.add
        total[name] = add(total[name], part[name]) if name in total else part[name]


def fill_places(results: Results, places: int) -> None:
    """Give rows of fewer edges so many places, the others empty."""
    missing = (0, places - results["keys"].shape[-1])
    if missing[1] > 0:
        for name, empty in (("keys", -1), ("scores", -torch.inf), ("weights", 0)):
            results[name] = pad(results[name], missing, value=empty)


def weigh(call: AttentionCall, weights: Weights, values: Values, rows: range) -> Output:
    """The output of some rows: weighted values, and what relative positions add to them."""
    if call.dropout:
        weights = dropout(weights, call.dropout)
    output = weights @ values
    if call.relative is not None:
        relative_output = call.relative.value_output(weights, rows)
        if relative_output is not None:
            output = output + relative_output
    return output


def strongest(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k highest scores of each row, highest first, ties to the lower key; and their keys.

    In a program that is compiled for any number of keys, rows of fewer have minus infinity too.
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


def results_of_rows(
    call: AttentionCall,
    scores: Scores,
    values: Values,
    rows: range,
    queries: int,
    kept: int | Tensor | None,
) -> Results:
    """What a call gives for some rows.

    values: one head for each head of queries. queries: how many the call has.
    kept: how many edges of a row to keep; or their keys, as another kernel found them; or None, for
        output and log-sum-exp alone.
    """
    weights, log_weights, lse, mass = normalise(call, scores)
    results = {"output": weigh(call, weights, values, rows), "lse": lse}
    if kept is None:
        return results
    seen = scores != -torch.inf
    # From 0, so that the entropy of a row with one weight of 1 is 0 and not -0.
    results["entropy"] = 0 - (weights * log_weights.masked_fill(~seen, 0)).sum(-1)
    results["count"] = seen.sum(-1).int()
    if isinstance(kept, Tensor):
        kept_keys, empty = kept.clamp(min=0).long(), kept < 0
        kept_scores = scores.gather(-1, kept_keys).masked_fill(empty, -torch.inf)
    else:
        kept_scores, kept_keys = strongest(scores, kept)
        empty = kept_scores == -torch.inf
    # Empty places weigh 0 also in a row that is no number.
    kept_weights = weights.gather(-1, kept_keys.masked_fill(empty, 0)).masked_fill(empty, 0)
    kept_keys = kept_keys.masked_fill(empty, -1).int()
    results |= {"keys": kept_keys, "scores": kept_scores, "weights": kept_weights}
    results["rest"] = mass - kept_weights.sum(-1)
    if not isinstance(kept, Tensor):
        fill_places(results, kept)
    if call.received is not None:
        of_keys = of_rows(weights, rows, queries, call.received)._asdict()
        results |= {name: part for name, part in of_keys.items() if part is not None}
    return results
