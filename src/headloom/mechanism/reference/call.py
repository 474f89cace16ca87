"""Dense attention call: the reference for the results of every backend."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from headloom.mechanism.reference.attention import mask, softmax


@dataclass(frozen=True)
class Attended:
    """Results of one attention call; dimensions as in the arguments of `attend`."""

    #: (batch, heads, queries, value_depth)
    output: Tensor
    #: Scores after scale, softcap, bias and mask; (batch, heads, queries, keys).
    scores: Tensor
    #: (batch, heads, queries, keys)
    weights: Tensor
    #: Log of the sum of exp(score) over the keys and the sink; (batch, heads, queries).
    lse: Tensor
    #: Entropy of the keys' weights, in nats; the sink's mass is left out.
    entropy: Tensor
    #: Keys of the k strongest edges, -1 past the last; (batch, heads, queries, k).
    kept_keys: Tensor
    #: Their scores, minus infinity past the last.
    kept_scores: Tensor
    #: Their weights, 0 past the last.
    kept_weights: Tensor
    #: Mass outside the kept edges; (batch, heads, queries).
    rest: Tensor
    #: Keys with a score above minus infinity; (batch, heads, queries).
    count: Tensor


def scores_of_heads(
    queries: Tensor, keys: Tensor, pair_scores: Callable[[Tensor, Tensor, int], Tensor]
) -> Tensor:
    """Return raw scores of every sequence and head; groups of query heads share key heads.

    queries: (batch, heads, queries, depth); keys: (batch, kv_heads, keys, depth).
    pair_scores: maps the queries and keys of one head, and its index, to (queries, keys).
    Returns: (batch, heads, queries, keys).

    >>> queries = torch.tensor([[[[1.]], [[2.]]]])                       # two heads
    >>> scores_of_heads(queries, torch.tensor([[[[5.]]]]), lambda q, k, head: q @ k.T).flatten()
    tensor([ 5., 10.])
    """
    batch, heads, rows, _ = queries.shape
    group_size = heads // keys.shape[1]
    scores = queries.new_zeros(batch, heads, rows, keys.shape[2])
    every = [
        pair_scores(queries[b, head], keys[b, head // group_size], head)
        for b in range(batch)
        for head in range(heads)
    ]
    return torch.stack(every).reshape(scores.shape) if every else scores


def strongest(scores: Tensor, k: int) -> list[int]:
    """Return the keys of one row's k highest scores, highest first; in a tie the lower key wins.

    Keys with a score of minus infinity are left out. scores: (keys,).

    >>> strongest(torch.tensor([1., 5., -math.inf, 5., 2.]), 3)
    [1, 3, 4]
    """
    row = scores.tolist()
    allowed = [j for j in range(len(row)) if row[j] != -math.inf]
    return sorted(allowed, key=lambda j: (-row[j], j))[:k]


def kept_edges(scores: Tensor, weights: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the `strongest` k keys of every row, their scores and weights, padded by -1, -inf, 0.

    scores, weights: (batch, heads, queries, keys).
    """
    batch, heads, queries, keys = scores.shape
    kept_keys = torch.full((batch, heads, queries, k), -1, device=scores.device)
    for b in range(batch):
        for h in range(heads):
            for i in range(queries):
                best = strongest(scores[b, h, i], k)
                kept_keys[b, h, i, : len(best)] = torch.tensor(best, dtype=torch.int64)
    if not keys:
        return (
            kept_keys,
            scores.new_full(kept_keys.shape, -math.inf),
            weights.new_zeros(kept_keys.shape),
        )
    absent, places = kept_keys < 0, kept_keys.clamp(min=0)
    return (
        kept_keys,
        scores.gather(-1, places).masked_fill(absent, -math.inf),
        weights.gather(-1, places).masked_fill(absent, 0),
    )


def attend(
    raw_scores: Tensor,
    values: Tensor,
    *,
    scale: float = 1.0,
    relative_scores: Tensor | None = None,
    softcap: float | None = None,
    relative_bias: Tensor | None = None,
    bias: Tensor | None = None,
    allowed: Tensor | None = None,
    sinks: Tensor | None = None,
    relative_values: Tensor | None = None,
    k: int = 0,
) -> Attended:
    """Run a whole attention call, from raw scores to output and graph.

        e_ij = cap(scale (raw_ij + relative_ij)) + relative bias_ij + bias_ij,
               cap(x) = c tanh(x / c); minus infinity where key j is masked for query i
        w_ij = exp(e_ij) / (sum_k exp(e_ik) + exp(sink))
        z_i  = sum_j w_ij (v_j + a_ij)

    Args:
        raw_scores: (batch, heads, queries, keys), see `scores_of_heads`.
        values: (batch, kv_heads, keys, value_depth).
        scale: factor on the scores.
        relative_scores: added to the raw scores; broadcastable to them.
        softcap: c.
        relative_bias: broadcastable to the scores.
        bias: broadcastable to the scores.
        allowed: bool, broadcastable to the scores; True = visible.
        sinks: (heads,): a logit for each head that takes mass and has no value.
        relative_values: a, (queries, keys, value_depth) or (heads, queries, keys, value_depth).
        k: number of edges kept in each row.

    >>> # Scores log(2) and 0, a sink of 0: weights 2/4 and 1/4, and 1/4 for the sink.
    >>> raw, values = torch.tensor([[[[math.log(2.), 0.]]]]), torch.tensor([[[[4.], [8.]]]])
    >>> attended = attend(raw, values, sinks=torch.zeros(1), k=1)
    >>> attended.output.item(), attended.rest.item(), attended.kept_keys.item()
    (4.0, 0.5, 0)
    """
    batch, heads, queries, keys = raw_scores.shape
    scores = raw_scores
    if relative_scores is not None:
        scores = scores + relative_scores
    scores = scale * scores
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if relative_bias is not None:
        scores = scores + relative_bias
    if bias is not None:
        scores = scores + bias
    if allowed is not None:
        scores = mask(scores, allowed)

    logits = scores
    if sinks is not None:
        column = sinks.reshape(1, heads, 1, 1).expand(batch, heads, queries, 1)
        logits = torch.cat((scores, column.to(scores)), -1)
    weights = softmax(logits)[..., :keys]
    largest = logits.new_full((batch, heads, queries), -math.inf)
    if logits.shape[-1]:
        largest = logits.amax(-1).detach()
    nonempty = largest != -math.inf
    finite = largest.masked_fill(~nonempty, 0)
    total = (logits - finite[..., None]).exp().sum(-1)
    lse = (total.masked_fill(~nonempty, 1).log() + finite).masked_fill(~nonempty, -math.inf)
    positive = weights > 0
    logarithms = weights.masked_fill(~positive, 1).log()
    entropy = -(weights * logarithms).sum(-1)

    repeated = values.repeat_interleave(heads // values.shape[1], 1)
    output = torch.einsum("bhij,bhjd->bhid", weights, repeated)
    if relative_values is not None:
        a = relative_values.expand(heads, queries, keys, values.shape[-1])
        output = output + torch.einsum("bhij,hijd->bhid", weights, a)

    kept_keys, kept_scores, kept_weights = kept_edges(scores, weights, k)
    rest = nonempty.to(weights) - kept_weights.sum(-1)
    count = (scores != -math.inf).sum(-1)
    return Attended(
        output, scores, weights, lse, entropy, kept_keys, kept_scores, kept_weights, rest, count
    )
