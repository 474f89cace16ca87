"""Policies on one layer: which keys each throws away, and the mass that later queries lose."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from headloom.analysis.eviction.policies import Prompt, kept, rows_of
from headloom.errors import InputError
from headloom.formats.files import in_brief
from headloom.mechanism.matrix.attention_matrix import AttentionMatrix

__all__ = ["NamedRule", "after_prompt"]

#: A policy and its name.
NamedRule = tuple[str, Callable[[Prompt, int], Tensor]]
#: Cells of the weights of all heads that are formed at a time: 16 MiB of float32.
_BLOCK_CELLS = 2**22


def _held(rule: NamedRule, prompt: Prompt, budget: int) -> Tensor:
    """Which keys of the prompt a policy keeps, (kv_heads, length), bool."""
    name, function = rule
    try:
        scores = function(prompt, budget)
        if scores.shape != (prompt.kv_heads, prompt.length) or bool(scores.isnan().any()):
            raise ValueError(f"scores {tuple(scores.shape)}, or some that are not numbers")
    except Exception as error:
        raise InputError(
            f"evict: policy {name} failed ({type(error).__name__}: {in_brief(error)}). Expected a "
            f"tensor of scores, (kv_heads, keys) = {(prompt.kv_heads, prompt.length)}, the highest "
            "kept. headloom --debug evict ... shows where."
        ) from error
    scores = scores.double()
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, kept(scores, budget), True)


def _row_blocks(matrix: AttentionMatrix, rows: range) -> Iterator[range]:
    """Rows of a layer, so many at a time that the weights of all heads stay small."""
    heads, _, keys = matrix.shape
    size = max(1, _BLOCK_CELLS // (heads * keys))
    for start in range(rows.start, rows.stop, size):
        yield range(start, min(start + size, rows.stop))


def after_prompt(
    matrix: AttentionMatrix, prompt: Prompt, rules: Sequence[NamedRule], budgets: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Return `lost` and `kept` of a layer whose keys are chosen when the prompt was read.

    The best single set are for each head of keys the keys of the prompt with the largest mass from
    all steps and all heads that share them,

        sum_{i >= prompt} P_ij

    which no single set beats in the sum over these.
    """
    (heads, queries, _), length = matrix.shape, prompt.length
    steps = range(length, queries)
    sums = [rows_of(matrix, rows, length).sum(1) for rows in _row_blocks(matrix, steps)]
    future = prompt.by_kv_head(torch.stack(sums).sum(0))
    rules = [*rules, ("the best set", lambda prompt, budget: future)]
    held = torch.stack(
        [torch.stack([_held(rule, prompt, budget) for budget in budgets]) for rule in rules]
    )
    lost = torch.zeros(len(held) + 1, len(budgets), heads, len(steps))
    for rows in _row_blocks(matrix, steps):
        weights = rows_of(matrix, rows, length)
        own = slice(rows.start - length, rows.stop - length)
        gone = (~held).to(weights.dtype)
        shared = zip(weights.chunk(prompt.kv_heads), lost.chunk(prompt.kv_heads, 2), strict=True)
        for number, (group, of_group) in enumerate(shared):
            of_group[:-1, ..., own] = torch.einsum("hrk,pbk->pbhr", group, gone[:, :, number])
        lost[-1, ..., own] = _best_sets_lost(weights, prompt.kv_heads, budgets)
    return lost, held


def _best_sets_lost(weights: Tensor, kv_heads: int, budgets: Sequence[int]) -> Tensor:
    """Return what each query loses where it keeps its best set of keys, chosen anew for it alone.

        S_i = the b keys with the largest sum of P_ij over the heads that share keys

    No cache of b keys for these heads loses less in their sum: a bound for every policy.

    Args: weights: (heads, rows, keys), of at least as many keys as the largest budget.
    Returns: (budgets, heads, rows).
    """
    grouped = weights.reshape(kv_heads, -1, *weights.shape[1:])
    together = grouped.sum(1)
    # The least weight that stays, by selection: NumPy's is many times as fast as a sort.
    places = [weights.shape[-1] - budget for budget in budgets]
    selected = torch.from_numpy(np.partition(together.numpy(), sorted(set(places)), -1))
    losses = []
    for place in places:
        least = selected[..., place, None]
        below, tied = together < least, together == least
        # Keys of one weight with the last that stays go by the share of them that is too many.
        share = (place - below.sum(-1, keepdim=True)) / tied.sum(-1, keepdim=True)
        losses.append((grouped * (below + tied * share)[:, None]).sum(-1).flatten(0, 1))
    return torch.stack(losses)
