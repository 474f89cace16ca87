"""Policies on one layer: which keys each throws away, and the mass that later queries lose."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from headloom.analysis.eviction.policies import Prompt, kept, rows_of
from headloom.errors import InputError
from headloom.formats.files import in_brief
from headloom.mechanism.matrix.attention_matrix import AttentionMatrix
from headloom.mechanism.shapes import in_words

__all__ = ["NamedRule", "after_prompt", "at_each_step"]

#: A policy and its name.
NamedRule = tuple[str, Callable[[Prompt, int], Tensor]]
#: Cells of the weights of all heads that are formed at a time: 16 MiB of float32.
_BLOCK_CELLS = 2**22


def _scores(rule: NamedRule, prompt: Prompt, budget: int) -> Tensor:
    """The scores that a policy gives the keys, checked: (kv_heads, length)."""
    name, function = rule
    try:
        scores: object = function(prompt, budget)
    except Exception as error:
        raise InputError(
            f"evict: policy {name} failed ({type(error).__name__}: {in_brief(error)}). "
            "headloom --debug evict ... shows where."
        ) from error
    shape = (prompt.kv_heads, prompt.length)
    expected = f"expected a tensor of scores, (kv_heads, keys) = {shape}, the highest kept"
    if not isinstance(scores, Tensor) or scores.shape != shape:
        raise InputError(f"evict: policy {name} gave {in_words(scores)}; {expected}.")
    if scores.dtype.is_complex or bool(scores.isnan().any()):
        raise InputError(f"evict: policy {name} gave scores that are not real numbers; {expected}.")
    return scores.double()


def _row_blocks(matrix: AttentionMatrix, rows: range) -> Iterator[range]:
    """Rows of a layer, so many at a time that the weights of all heads stay small."""
    heads, _, keys = matrix.shape
    size = max(1, _BLOCK_CELLS // (heads * keys))
    for start in range(rows.start, rows.stop, size):
        yield range(start, min(start + size, rows.stop))


def after_prompt(
    matrix: AttentionMatrix, prompt: Prompt, rules: Sequence[NamedRule], budgets: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """`lost` and `evicted_after` of a layer whose keys are chosen once, when the prompt was read.

    The best single set are for each head of keys the keys of the prompt with the largest mass from
    all steps and all heads that share them,

        sum_{i >= prompt} P_ij

    which no single set beats in the sum over these.
    """
    (heads, queries, keys), length = matrix.shape, prompt.length
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
    evicted_after = torch.where(held, -1, length - 1).int()
    return lost, pad(evicted_after, (0, keys - length), value=-1)


def _held(rule: NamedRule, prompt: Prompt, budget: int) -> Tensor:
    """Which keys of the prompt a policy keeps, (kv_heads, length), bool."""
    scores = _scores(rule, prompt, budget)
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, kept(scores, budget), True)


def _best_sets_lost(weights: Tensor, kv_heads: int, budgets: Sequence[int]) -> Tensor:
    """What each query loses where it keeps its best set of keys, chosen anew for it alone.

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


def at_each_step(
    matrix: AttentionMatrix,
    prompt: Prompt,
    rules: Sequence[NamedRule],
    budgets: Sequence[int],
    sinks: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """`lost` and `evicted_after` of a layer that loses one more key after each step.

    A query sees the keys that are held and its own, which takes no place of the budget. The bound
    is that of the best of all earlier keys, chosen anew at each step.

    sinks: (heads,), logits of no key that take a share of the mass; None: there are none.
    """
    heads, queries, _ = matrix.shape
    beside = torch.zeros_like(matrix.lse)
    if sinks is not None:
        beside = (sinks.to(matrix.lse)[:, None] - matrix.lse).exp()
    caches = [[_Cache(rule, matrix, prompt, each) for each in budgets] for rule in rules]
    lost = torch.zeros(len(rules) + 1, len(budgets), heads, queries - prompt.length)
    for rows in _row_blocks(matrix, range(prompt.length, queries)):
        weights = rows_of(matrix, rows, rows.stop)
        for row, query in enumerate(rows):
            for number, of_budgets in enumerate(caches):
                for place, cache in enumerate(of_budgets):
                    lost[number, place, :, query - prompt.length] = cache.step(
                        query, weights[:, row, : query + 1], beside[:, query]
                    )
        weights[:, range(len(rows)), list(rows)] = 0
        own = slice(rows.start - prompt.length, rows.stop - prompt.length)
        lost[-1, ..., own] = _best_sets_lost(weights, prompt.kv_heads, budgets)
    return lost, torch.stack(
        [torch.stack([cache.evicted_after for cache in of_budgets]) for of_budgets in caches]
    )


class _Cache:
    """The keys that a policy holds while a text goes on."""

    def __init__(
        self, rule: NamedRule, matrix: AttentionMatrix, prompt: Prompt, budget: int
    ) -> None:
        self._rule, self._matrix, self._prompt, self._budget = rule, matrix, prompt, budget
        missing = matrix.shape[2] - prompt.length
        self._held = pad(_held(rule, prompt, budget), (0, missing), value=True)
        self._received = pad(prompt.received, (0, missing))
        self.evicted_after = torch.where(self._held, -1, prompt.length - 1).int()

    def step(self, query: int, weights: Tensor, beside: Tensor) -> Tensor:
        """A query comes and a key goes.

        The weights that the softmax gives over the keys that are left are

            P'_ij = P_ij / (sum over the keys left + the sink's)

        and not by 1 less the mass lost, of which few digits are right where nearly all is lost.

        weights: (heads, query + 1), of the whole cache; beside: (heads,), of the sink.
        Returns: the mass lost, (heads,).
        """
        held = self._held[:, : query + 1]
        left = weights * held.repeat_interleave(len(weights) // len(held), 0)
        lost = (weights - left).sum(-1)
        # Where even a query's own key has a weight that float32 rounds to 0, nothing is left.
        share = (left.sum(-1) + beside).clamp(min=torch.finfo(left.dtype).tiny)
        left /= share[:, None]
        received = self._received[:, : query + 1]
        received += left
        text = Prompt(self._matrix, query + 1, self._prompt.name, (left, received))
        scores = _scores(self._rule, text, self._budget).masked_fill(~held, torch.inf)
        # Of equal scores the earlier goes: argmin gives any of them.
        goes = ((scores == scores.amin(-1, keepdim=True)) & held).byte().argmax(-1)
        rows = range(len(held))
        self._held[rows, goes] = False
        self.evicted_after[rows, goes] = query
        return lost
