"""Steps of an attention call in plain torch, for one block of rows."""

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

#: Largest number of cells of a block of rows: 64 MiB of float32.
BLOCK_CELLS = 2**24


def in_transform() -> bool:
    """Whether a torch.func transform or forward-mode differentiation is active."""
    forward: bool = forward_ad._current_level >= 0
    return forward or torch._C._functorch.peek_interpreter_stack() is not None


def in_float(call: AttentionCall) -> AttentionCall:
    """Convert a call in half precision to float32; return other calls as they are."""
    if call.queries.dtype not in (torch.float16, torch.bfloat16):
        return call
    queries = call.queries.float()
    return replace(
        call, queries=queries, keys=queries if call.keys is call.queries else call.keys.float(),
        values=call.values.float(), score=with_float_tensors(call.score),
        relative=with_float_tensors(call.relative),
    )  # fmt: skip


class _AllRows:
    """Range of all queries in a program exported for dynamic lengths: its end is no int."""

    start = 0

    def __init__(self, stop: int) -> None:
        self.stop = stop

    def __len__(self) -> int:
        return int(self.stop)


def all_rows(queries: Queries) -> range:
    """Return all queries as one range, also in a program exported for dynamic lengths."""
    count = queries.shape[2]
    return range(count) if type(count) is int else cast(range, _AllRows(count))


def row_blocks(queries: Queries, cells_per_row: int) -> list[range]:
    """Split the queries into blocks of BLOCK_CELLS or one row; cells_per_row: of one head."""
    batch, heads, count, _ = queries.shape
    if is_exporting() and any(type(size) is not int for size in queries.shape):
        return [all_rows(queries)]  # since the number of blocks would be dynamic too
    size = max(1, BLOCK_CELLS // max(1, batch * heads * cells_per_row))
    if 0 < count <= size:  # (so that a program with a dynamic length has no other condition on it)
        return [all_rows(queries)]
    return [range(start, min(start + size, count)) for start in range(0, count, size)]


def blocks(call: AttentionCall) -> list[range]:
    """Split the queries into blocks whose scores fit BLOCK_CELLS; one empty block if none."""
    cells_per_score = call.score.cells_per_score(call.queries.shape[3])
    return row_blocks(call.queries, call.keys.shape[2] * cells_per_score) or [range(0)]


def run_block(
    step: Callable[[AttentionCall, Tensor, Tensor, Tensor, range], Result], call: AttentionCall,
    keys: Tensor, values: Tensor, rows: range, recompute: bool,
) -> Result:  # fmt: skip
    """Run one block of rows; with recompute, its inner tensors are recomputed in backward."""
    queries = call.queries[:, :, rows.start : rows.stop]
    if recompute and torch.is_grad_enabled():
        # The random state is needed again only for dropout.
        random = call.dropout > 0
        result: Result = checkpoint(
            step, call, queries, keys, values, rows, use_reentrant=False, preserve_rng_state=random
        )
        return result
    return step(call, queries, keys, values, rows)


def block_scores(call: AttentionCall, queries: Queries, keys: Keys, rows: range) -> Scores:
    """Return the scores of some rows by the formula of AttentionCall; keys: one for each head."""
    scores = call.score(queries, keys)
    length = keys.shape[2]
    if not isinstance(scores, Tensor) or scores.shape != (*queries.shape[:3], length):
        kind = describe(scores) if isinstance(scores, Tensor) else type(scores).__name__
        raise ShapeError(
            f"{type(call.score).__name__}: the scores are {kind}; expected one for each query and "
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
    """Add biases to the scores of some rows; set those of masked keys to minus infinity."""
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
    """Return weights, their logarithms, log-sum-exp, and the mass of each row (0 if all masked)."""
    logits = scores
    if call.sinks is not None:
        sink = call.sinks.to(scores)[None, :, None, None].expand(*scores.shape[:3], 1)
        logits = torch.cat((scores, sink), -1)
    hidden = (logits == -torch.inf).all(-1, keepdim=True)
    # A row without keys is computed from zeros and then set to 0, so that no NaN arises in forward
    # or backward.
    safe = logits.masked_fill(hidden, 0)
    # Not scores - lse: if scores are huge, their log-sum-exp has too few digits for weights.
    log_weights = safe.log_softmax(-1)[..., : scores.shape[-1]].masked_fill(hidden, -torch.inf)
    weights = log_weights.exp()
    lse = safe.logsumexp(-1).masked_fill(hidden.squeeze(-1), -torch.inf)
    # An infinite score makes the whole row NaN.
    lse = lse.masked_fill(lse == torch.inf, torch.nan)
    return weights, log_weights, lse, (~hidden).squeeze(-1).to(scores.dtype)


def add_received(total: Results, part: Results) -> None:
    """Add the column sums of some rows to the total, so that the parts need not be stored."""
    for name in part.keys() & {"received", "received_most", "received_last"}:
        add = torch.maximum if name == "received_most" else torch.add
        total[name] = add(total[name], part[name]) if name in total else part[name]


def fill_places(results: Results, places: int) -> None:
    """Pad the rows of a graph to a number of slots."""
    missing = (0, places - results["keys"].shape[-1])
    if missing[1] > 0:
        for name, empty in (("keys", -1), ("scores", -torch.inf), ("weights", 0)):
            results[name] = pad(results[name], missing, value=empty)


def weigh(call: AttentionCall, weights: Weights, values: Values, rows: range) -> Output:
    """Return the output of some rows: weighted values and the term of relative positions."""
    if call.dropout:
        weights = dropout(weights, call.dropout)
    output = weights @ values
    if call.relative is not None:
        relative_output = call.relative.value_output(weights, rows)
        if relative_output is not None:
            output = output + relative_output
    return output


def strongest(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k highest scores of each row, in order, and their keys; ties to the lower key.

    In a program compiled for a dynamic number of keys, shorter rows are padded by minus infinity.
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
        # torch's topk does not define which of equal scores it returns. Rows with a tie at the last
        # rank are sorted completely.
        tied = ((scores >= last).sum(-1) > k) & (last[..., 0] > -torch.inf)
        if in_transform() or torch.compiler.is_compiling() or scores.is_meta:
            # Control flow cannot depend on numbers here: sort all rows.
            keys = scores.sort(stable=True, dim=-1, descending=True).indices[..., :k]
        elif bool(tied.any()):
            exact = scores[tied].sort(stable=True, dim=-1, descending=True).indices[..., :k]
            keys[tied] = exact
        keys = keys.sort(-1).values
        order = scores.gather(-1, keys).sort(stable=True, dim=-1, descending=True).indices
        keys = keys.gather(-1, order)
    return scores.gather(-1, keys), keys


def results_of_rows(
    call: AttentionCall, scores: Scores, values: Values, rows: range, queries: int,
    kept: int | Tensor | None,
) -> Results:  # fmt: skip
    """Return the results of a call for some rows.

    values: one head for each query head. queries: number of queries of the call.
    kept: number of edges of a row to keep; or their keys, from another kernel; or None: only output
        and log-sum-exp.
    """
    weights, log_weights, lse, mass = normalise(call, scores)
    results = {"output": weigh(call, weights, values, rows), "lse": lse}
    if kept is None:
        return results
    visible = scores != -torch.inf
    # From 0, so that the entropy of a row with one weight of 1 is 0 and not -0.
    results["entropy"] = 0 - (weights * log_weights.masked_fill(~visible, 0)).sum(-1)
    results["count"] = visible.sum(-1).int()
    if isinstance(kept, Tensor):
        kept_keys, empty = kept.clamp(min=0).long(), kept < 0
        kept_scores = scores.gather(-1, kept_keys).masked_fill(empty, -torch.inf)
    else:
        kept_scores, kept_keys = strongest(scores, kept)
        empty = kept_scores == -torch.inf
    # Empty slots have weight 0, also in a row of NaN.
    kept_weights = weights.gather(-1, kept_keys.masked_fill(empty, 0)).masked_fill(empty, 0)
    kept_keys = kept_keys.masked_fill(empty, -1).int()
    results |= {"keys": kept_keys, "scores": kept_scores, "weights": kept_weights}
    results["rest"] = mass - kept_weights.sum(-1)
    if not isinstance(kept, Tensor):
        fill_places(results, kept)
    if call.received is not None:
        received = of_rows(weights, rows, queries, call.received)._asdict()
        results |= {name: part for name, part in received.items() if part is not None}
    return results
