"""The policies and their losses as the papers say them: loops over sets, float64, dense weights.

Shares no code with headloom.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def softmax(scores: Array) -> Array:
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    weights: Array = powers / powers.sum(-1, keepdims=True)
    return weights


def dense(
    queries: Array, keys: Array, left: int | None = None, sinks: Array | None = None
) -> Array:
    """Causal weights, (heads, queries, keys), keys repeated; a window, and logits beside them."""
    group = len(queries) // len(keys)
    keys = np.repeat(keys, group, 0)
    scores = queries @ keys.transpose(0, 2, 1) / np.sqrt(queries.shape[-1])
    i, j = np.indices(scores.shape[1:])
    hidden = (j > i) | (False if left is None else j < i - left)
    scores[:, hidden] = -np.inf
    if sinks is None:
        return softmax(scores)
    beside = np.broadcast_to(sinks[:, None, None], (*scores.shape[:2], 1))
    return softmax(np.concatenate((scores, beside), -1))[..., :-1]


def best(scores: Array, budget: int) -> set[int]:
    """The positions of the highest scores, of equal ones the later."""
    order = sorted(range(len(scores)), key=lambda j: (-scores[j], -j))
    return set(order[:budget])


def groups(weights: Array, kv_heads: int) -> list[Array]:
    return np.split(weights, kv_heads)


def h2o(weights: Array, kv_heads: int, n: int, budget: int) -> list[set[int]]:
    """Zhang et al., algorithm 1 on a prompt: half for the latest, half for heavy hitters."""
    latest = set(range(n - budget // 2, n))
    sets = []
    for group in groups(weights[:, :n, :n], kv_heads):
        sums = group.sum((0, 1))
        sums[sorted(latest)] = -1
        sets.append(latest | best(sums, budget - len(latest)))
    return sets


def observed(weights: Array, kv_heads: int, n: int, budget: int) -> list[set[int]]:
    sets = []
    for group in groups(weights[:, :n, :n], kv_heads):
        means = np.array([group[:, j:, j].mean(1).mean() for j in range(n)])
        sets.append(best(means, budget))
    return sets


def tova(weights: Array, kv_heads: int, n: int, budget: int) -> list[set[int]]:
    last = weights[:, n - 1, : n - 1].mean(0)
    return [best(last, budget - 1) | {n - 1}] * kv_heads


def streaming(weights: Array, kv_heads: int, n: int, budget: int) -> list[set[int]]:
    sinks = set(range(min(4, budget)))
    return [sinks | set(range(n - (budget - len(sinks)), n))] * kv_heads


def snapkv(
    weights: Array, kv_heads: int, n: int, budget: int, window: int, kernel: int
) -> list[set[int]]:
    sets = []
    for group in groups(weights[:, n - window : n, : n - window], kv_heads):
        votes = group.sum((0, 1))
        half = kernel // 2
        pooled = [votes[max(j - half, 0) : j + half + 1].sum() for j in range(n - window)]
        sets.append(best(np.array(pooled), budget - window) | set(range(n - window, n)))
    return sets


def lost_after(weights: Array, sets: list[set[int]], n: int) -> Array:
    """The mass of later queries on keys of the prompt that are not in the set, (heads, steps)."""
    heads, length, _ = weights.shape
    lost = np.zeros((heads, length - n))
    for h in range(heads):
        there = sets[h // (heads // len(sets))]
        for i in range(n, length):
            lost[h, i - n] = sum(weights[h, i, j] for j in range(n) if j not in there)
    return lost


def best_by_trying(group: Array, budget: int) -> float:
    """The least mass that any set of so many keys loses: (heads, rows, keys), all summed."""
    columns = group.sum((0, 1))
    return float(
        min(columns.sum() - columns[list(each)].sum()
            for each in combinations(range(len(columns)), budget))
    )  # fmt: skip
