"""Eviction policies: which keys a cache keeps when it may not keep all.

A policy is a function of a prompt and a budget that scores each key of each key head; the highest
are kept, as many as the budget says, and of equal ones the later. With grouped heads a key serves
several heads, and is kept or thrown away for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import avg_pool1d, pad

from headloom.mechanism.matrix.attention_matrix import AttentionMatrix


def rows_of(matrix: AttentionMatrix, rows: range, keys: int) -> Tensor:
    """The weights of some queries on the first keys, (heads, rows, keys), exactly."""
    heads = range(matrix.shape[0])
    return torch.stack([matrix[head, rows.start : rows.stop, 0:keys] for head in heads])


class Prompt:
    """The prompt of a layer, of whose positions a policy chooses those whose keys are kept.

    Args:
        matrix: the exact weights of the layer, over these positions and what follows them.
        length: positions of the prompt. A policy sees their rows and columns, and no later ones.
        name: the path of the layer in the model.
    """

    def __init__(self, matrix: AttentionMatrix, length: int, name: str = "") -> None:
        self._matrix, self.length, self.name = matrix, length, name

    @property
    def kv_heads(self) -> int:
        """Heads of keys: each serves ``heads / kv_heads`` heads of queries side by side."""
        return self._matrix.keys.shape[0]

    @property
    def queries(self) -> Tensor:
        """As they are scored, (heads, length, depth); a copy."""
        return self._matrix.queries[:, : self.length].clone()

    @property
    def keys(self) -> Tensor:
        """As they are scored, (kv_heads, length, depth); a copy."""
        return self._matrix.keys[:, : self.length].clone()

    def last(self, rows: int) -> Tensor:
        """The weights of the last queries, exact: (heads, rows, length)."""
        return rows_of(self._matrix, range(self.length - rows, self.length), self.length)

    @property
    def received(self) -> Tensor:
        """What each key got from all queries, (heads, length); a copy."""
        return self._received.clone()

    @cached_property
    def _received(self) -> Tensor:
        rows = self._matrix.queries.new_zeros(self._matrix.shape[1])
        rows[: self.length] = 1
        return (self._matrix.T @ rows)[:, : self.length]

    def by_kv_head(self, of_heads: Tensor) -> Tensor:
        """The mean over the heads that share keys: (heads, ...) -> (kv_heads, ...)."""
        return of_heads.reshape(self.kv_heads, -1, *of_heads.shape[1:]).mean(1)


#: A policy by its name, or as a function from a prompt and a budget to scores of its keys.
Rule = str | Callable[[Prompt, int], Tensor]


def kept(scores: Tensor, budget: int) -> Tensor:
    """The positions of the highest scores, of equal ones the later: (..., budget), ascending.

    >>> kept(torch.tensor([[0.5, 0.1, 0.1, 0.3]]), 3).tolist()
    [[0, 2, 3]]
    """
    order = scores.flip(-1).sort(dim=-1, descending=True, stable=True).indices
    return (scores.shape[-1] - 1 - order[..., :budget]).sort(-1).values


def snapkv(prompt: Prompt, budget: int, *, window: int = 64, kernel: int = 5) -> Tensor:
    """SnapKV: what the last queries of the prompt look at, and the neighbours of that.

        score_j = mean over the window's queries i of P_ij,
        then the mean over the ``kernel`` keys around j (0 beyond the ends), and over the group

    The window's own keys are always kept.

    Args:
        prompt: that was read. budget: keys that stay; not used.
        window: its last queries; of a prompt that has no more, half of it.
        kernel: keys that are pooled, an odd number.

    Returns: (kv_heads, length); infinite for the window.
    Source: Li et al. 2024, SnapKV, listing 1, with the pooling by means and the mean over a group
    that NVIDIA's kvpress has (window 64, kernel 5).
    """
    rows = window if prompt.length > window else prompt.length // 2
    if rows < 1:
        return prompt.keys.new_zeros(prompt.kv_heads, prompt.length)
    means = prompt.last(rows)[..., :-rows].mean(1)
    pooled = avg_pool1d(means[:, None], kernel, 1, kernel // 2)[:, 0]
    return pad(prompt.by_kv_head(pooled), (0, rows), value=torch.inf)


def h2o(prompt: Prompt, budget: int, *, recent: float = 0.5) -> Tensor:
    """H2O: the heavy hitters, keys that got most from all queries so far; and the latest ones.

        score_j = sum_i P_ij

    Args:
        prompt: that was read. budget: keys that stay.
        recent: the share of the budget that the latest keys have for certain.

    Returns: (kv_heads, length); infinite for the latest.
    Source: Zhang et al. 2023, H2O, algorithm 1; half of the budget for the latest as in its
    experiments. With grouped heads: the mean over the heads that share keys.
    """
    scores = prompt.by_kv_head(prompt.received)
    scores[:, prompt.length - int(recent * budget) :] = torch.inf
    return scores


def observed(prompt: Prompt, budget: int) -> Tensor:
    """The mean weight that each key got from the queries that came after it, or its own.

        score_j = sum_i P_ij / (length - j)

    Returns: (kv_heads, length).
    Source: ObservedAttentionPress of NVIDIA's kvpress, related to H2O: early keys, which more
    queries have seen, have no advantage, and the latest are not kept for certain.
    """
    received = prompt.received
    return prompt.by_kv_head(received / torch.arange(prompt.length, 0, -1).to(received))


def tova(prompt: Prompt, budget: int) -> Tensor:
    """TOVA: what the last query looks at, in the mean of all heads of the layer.

        score_j = mean over heads of P_nj, n the last query

    The last key is always kept.

    Returns: (kv_heads, length), the same for each.
    Source: Oren et al. 2024, Transformers are Multi-State RNNs, section 4.
    """
    scores = prompt.last(1).mean((0, 1))
    scores[-1] = torch.inf
    return scores.expand(prompt.kv_heads, -1)


def streaming(prompt: Prompt, budget: int, *, sinks: int = 4) -> Tensor:
    """StreamingLLM: the first keys, which are attention sinks, and the latest.

    Returns: (kv_heads, length), the same for each; it looks at no weights.
    Source: Xiao et al. 2024, Efficient Streaming Language Models with Attention Sinks, with its 4
    sinks. Positions are not turned anew, as there: weights are those of the trace.
    """
    scores = torch.arange(prompt.length, dtype=torch.float32)
    scores[:sinks] = 2.0 * prompt.length - scores[:sinks]
    return scores.expand(prompt.kv_heads, -1)


#: The policies that have a name, in the order of their papers.
POLICIES: Mapping[str, Callable[[Prompt, int], Tensor]] = {
    "h2o": h2o, "observed": observed, "streaming": streaming, "tova": tova, "snapkv": snapkv,
}  # fmt: skip
