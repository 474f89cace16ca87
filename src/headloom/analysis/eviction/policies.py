"""Eviction policies: the choice of keys that a smaller cache keeps.

A policy is a function of a prompt and a budget that scores each key of each key head; as many keys
as the budget with the highest scores are kept, and of equal ones the later. With grouped heads a
key is kept or evicted for all heads that share it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import avg_pool1d, pad

from headloom.mechanism.matrix.attention_matrix import AttentionMatrix


def rows_of(matrix: AttentionMatrix, rows: range, keys: int) -> Tensor:
    """Return the exact weights of some queries on the first keys, (heads, rows, keys)."""
    heads = range(matrix.shape[0])
    return torch.stack([matrix[head, rows.start : rows.stop, 0:keys] for head in heads])


class Prompt:
    """Prompt of a layer, from whose positions a policy chooses the keys to keep.

    Args:
        matrix: the exact weights of the layer, over the whole text.
        length: number of positions. A policy sees no later rows and columns.
        name: the path of the layer in the model.
    """

    def __init__(self, matrix: AttentionMatrix, length: int, name: str = "") -> None:
        self._matrix, self.length, self.name = matrix, length, name

    @property
    def kv_heads(self) -> int:
        """Number of key heads; each serves ``heads / kv_heads`` consecutive query heads."""
        return self._matrix.keys.shape[0]

    @property
    def queries(self) -> Tensor:
        """Copy of the queries, as they are scored, (heads, length, depth)."""
        return self._matrix.queries[:, : self.length].clone()

    @property
    def keys(self) -> Tensor:
        """Copy of the keys, as they are scored, (kv_heads, length, depth)."""
        return self._matrix.keys[:, : self.length].clone()

    def last(self, rows: int) -> Tensor:
        """Return the exact weights of the last queries, (heads, rows, length)."""
        return rows_of(self._matrix, range(self.length - rows, self.length), self.length)

    @property
    def received(self) -> Tensor:
        """Copy of the attention received by each key from all queries, (heads, length)."""
        return self._received.clone()

    @cached_property
    def _received(self) -> Tensor:
        rows = self._matrix.queries.new_zeros(self._matrix.shape[1])
        rows[: self.length] = 1
        return (self._matrix.T @ rows)[:, : self.length]

    def by_kv_head(self, of_heads: Tensor) -> Tensor:
        """Average over the heads that share keys: (heads, ...) -> (kv_heads, ...)."""
        return of_heads.reshape(self.kv_heads, -1, *of_heads.shape[1:]).mean(1)


#: Policy: its name, or a function from a prompt and a budget to scores of its keys.
Rule = str | Callable[[Prompt, int], Tensor]


def kept(scores: Tensor, budget: int) -> Tensor:
    """Return the positions of the highest scores, of equal ones the later, ascending.

    >>> kept(torch.tensor([[0.5, 0.1, 0.1, 0.3]]), 3).tolist()
    [[0, 2, 3]]
    """
    order = scores.flip(-1).sort(dim=-1, descending=True, stable=True).indices
    return (scores.shape[-1] - 1 - order[..., :budget]).sort(-1).values


def snapkv(prompt: Prompt, budget: int, *, window: int = 64, kernel: int = 5) -> Tensor:
    """Score keys by SnapKV: the weights of the prompt's last queries, pooled over neighbours.

        score_j = mean over the window's queries i of P_ij,
        then the mean over the ``kernel`` keys around j (0 beyond the ends), and over the group

    The window's own keys are always kept.

    Args:
        prompt: of the layer.
        budget: not used.
        window: number of last queries; half of a prompt that is not longer.
        kernel: number of pooled keys, odd.

    Returns: (kv_heads, length); infinite for the window.
    Source: Li et al. 2024, SnapKV, listing 1, with mean pooling and the mean over a group as in
    NVIDIA's kvpress (window 64, kernel 5).
    """
    rows = window if prompt.length > window else prompt.length // 2
    if rows < 1:
        return prompt.keys.new_zeros(prompt.kv_heads, prompt.length)
    means = prompt.last(rows)[..., :-rows].mean(1)
    pooled = avg_pool1d(means[:, None], kernel, 1, kernel // 2)[:, 0]
    return pad(prompt.by_kv_head(pooled), (0, rows), value=torch.inf)


def h2o(prompt: Prompt, budget: int, *, recent: float = 0.5) -> Tensor:
    """Score keys by H2O: the attention received from all queries; the latest keys are kept.

        score_j = sum_i P_ij

    Args:
        prompt: of the layer.
        budget: number of keys to keep.
        recent: share of the budget for the latest keys.

    Returns: (kv_heads, length); infinite for the latest.
    Source: Zhang et al. 2023, H2O, algorithm 1; half of the budget for the latest as in its
    experiments. With grouped heads: the mean over the heads that share keys.
    """
    scores = prompt.by_kv_head(prompt.received)
    scores[:, prompt.length - int(recent * budget) :] = torch.inf
    return scores


def observed(prompt: Prompt, budget: int) -> Tensor:
    """Score keys by the mean weight from their own and later queries.

        score_j = sum_i P_ij / (length - j)

    Returns: (kv_heads, length).
    Source: ObservedAttentionPress of NVIDIA's kvpress, related to H2O: early keys, visible to more
    queries, have no advantage, and the latest are not always kept.
    """
    received = prompt.received
    return prompt.by_kv_head(received / torch.arange(prompt.length, 0, -1).to(received))


def tova(prompt: Prompt, budget: int) -> Tensor:
    """Score keys by TOVA: the weights of the last query, averaged over the layer's heads.

        score_j = mean over heads of P_nj, n the last query

    The last key is always kept.

    Returns: (kv_heads, length), the same for each.
    Source: Oren et al. 2024, Transformers are Multi-State RNNs, section 4.
    """
    scores = prompt.last(1).mean((0, 1))
    scores[-1] = torch.inf
    return scores.expand(prompt.kv_heads, -1)


def streaming(prompt: Prompt, budget: int, *, sinks: int = 4) -> Tensor:
    """Score keys by StreamingLLM: the first keys (attention sinks) and the latest.

    Returns: (kv_heads, length), the same for each; weights are not used.
    Source: Xiao et al. 2024, Efficient Streaming Language Models with Attention Sinks, with its 4
    sinks. Unlike there, positions are not renumbered: weights are from the trace.
    """
    scores = torch.arange(prompt.length, dtype=torch.float32)
    scores[:sinks] = 2.0 * prompt.length - scores[:sinks]
    return scores.expand(prompt.kv_heads, -1)


#: Named policies, in the order of their papers.
POLICIES: Mapping[str, Callable[[Prompt, int], Tensor]] = {
    "h2o": h2o, "observed": observed, "streaming": streaming, "tova": tova, "snapkv": snapkv,
}  # fmt: skip
