"""Policies on one layer: what each throws away, and what every later query loses by it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from weft.analysis.eviction.losses import (
    OutputChange,
    best_sets_lost,
    lost_mass,
    renormalised,
    row_blocks,
)
from weft.analysis.eviction.policies import Policy, Step, chosen, kept
from weft.analysis.eviction.prompt import Prompt, column_sums, rows_of
from weft.mechanism.matrix.attention_matrix import AttentionMatrix

__all__ = ["Given", "LayerEviction", "after_prompt", "at_each_step"]


@dataclass(frozen=True, eq=False)
class Given:
    """A layer, and where its prompt ends.

    values: (kv_heads, keys, value_depth); projection: W_O, (heads, value_depth, width); or None.
    beside: (heads, queries), the weight of a sink that is no key; None: there is none.
    """

    matrix: AttentionMatrix
    prompt: int
    name: str = ""
    values: Tensor | None = None
    projection: Tensor | None = None
    beside: Tensor | None = None

    @property
    def steps(self) -> range:
        """The queries after the prompt."""
        return range(self.prompt, self.matrix.shape[1])

    @property
    def kv_heads(self) -> int:
        """Heads of keys."""
        return self.matrix.keys.shape[0]


@dataclass(frozen=True, eq=False)
class LayerEviction:
    """What policies lose on one layer, at some budgets.

    lost: (policies, budgets, heads, steps), the mass of each step on keys that are gone.
    best: (budgets, heads, steps), what it loses with the best set of keys for this step alone.
    evicted_after: (policies, budgets, kv_heads, keys), int: the query after which a key was thrown
        away; -1: it stayed.
    output: (policies, budgets, heads, steps), the relative change of the head's output; None: the
        values are not known.
    layer_output: (policies, budgets, steps), likewise of the layer's; None: W_O is not known.
    """

    lost: Tensor
    best: Tensor
    evicted_after: Tensor
    output: Tensor | None = None
    layer_output: Tensor | None = None


class _Losses:
    """Collects the losses of a layer, block by block."""

    def __init__(self, given: Given, policies: int, budgets: Sequence[int]) -> None:
        heads, queries, _ = given.matrix.shape
        self._given, self.budgets, steps = given, budgets, queries - given.prompt
        self._shape = (policies, len(budgets))
        self.lost = torch.zeros(*self._shape, heads, steps)
        self.best = torch.zeros(len(budgets), heads, steps)
        self.output = None if given.values is None else torch.zeros_like(self.lost)
        known = given.values is not None and given.projection is not None
        self.layer_output = torch.zeros(*self._shape, steps) if known else None

    def find_best(self, rows: range, weights: Tensor) -> None:
        """weights: (heads, rows, keys) of the keys that a policy may throw away."""
        own = self._own(rows)
        for head, group in enumerate(weights.chunk(self._given.kv_heads)):
            heads = slice(head * len(group), (head + 1) * len(group))
            self.best[:, heads, own] = best_sets_lost(group, self.budgets)

    def find_outputs(self, rows: range, weights: Tensor, gone: Tensor) -> None:
        """weights: (heads, rows, keys); gone: (policies, budgets, kv_heads, (rows,) keys), bool."""
        if self.output is None or self._given.values is None:
            return
        given = self._given
        beside = None if given.beside is None else given.beside[:, rows.start : rows.stop]
        change = OutputChange(weights, self._given.values, given.projection, beside)
        own = self._own(rows)
        for policy in range(self._shape[0]):
            for budget in range(self._shape[1]):
                heads, layer = change(gone[policy, budget])
                self.output[policy, budget, :, own] = heads
                if self.layer_output is not None and layer is not None:
                    self.layer_output[policy, budget, own] = layer

    def _own(self, rows: range) -> slice:
        return slice(rows.start - self._given.prompt, rows.stop - self._given.prompt)

    def found(self, evicted_after: Tensor) -> LayerEviction:
        """All of it."""
        return LayerEviction(self.lost, self.best, evicted_after, self.output, self.layer_output)


def after_prompt(given: Given, policies: Sequence[Policy], budgets: Sequence[int]) -> LayerEviction:
    """Each policy chooses once, when the prompt was read; all later keys stay.

    Besides the policies, as the last of them, the best single set: for each head of keys the b keys
    of the prompt with the largest mass from all steps and all heads that share them,

        sum_{i >= prompt} P_ij

    which no single set beats in the sum over these.
    """
    prompt = Prompt(given.matrix, given.prompt, given.name, given.values)
    held = torch.zeros(
        len(policies) + 1, len(budgets), given.kv_heads, given.prompt, dtype=torch.bool
    )
    future = prompt.by_kv_head(column_sums(given.matrix, given.steps)[:, : given.prompt])
    for place, budget in enumerate(budgets):
        for number, policy in enumerate(policies):
            held[number, place] = _held(policy, prompt, budget)
        held[-1, place].scatter_(-1, kept(future, budget), True)
    losses = _Losses(given, len(held), budgets)
    keys = given.matrix.shape[2]
    for rows in row_blocks(given.matrix, given.steps):
        weights = rows_of(given.matrix, rows, keys if given.values is not None else given.prompt)
        of_prompt = weights[..., : given.prompt]
        own = losses._own(rows)
        for head, group in enumerate(of_prompt.chunk(given.kv_heads)):
            heads = slice(head * len(group), (head + 1) * len(group))
            losses.lost[:, :, heads, own] = lost_mass(group, held[:, :, head])
        losses.find_best(rows, of_prompt)
        if given.values is not None:
            gone = torch.nn.functional.pad(~held, (0, keys - given.prompt))
            losses.find_outputs(rows, weights, gone)
    evicted = torch.where(held, -1, given.prompt - 1).int()
    after = evicted.new_full((*evicted.shape[:-1], keys - given.prompt), -1)
    return losses.found(torch.cat((evicted, after), -1))


def _held(policy: Policy, prompt: Prompt, budget: int) -> Tensor:
    """Which keys of the prompt a policy keeps, (kv_heads, length), bool."""
    shape = (prompt.kv_heads, prompt.length)
    scores = chosen(policy, policy.prompt(prompt, budget), shape)
    return torch.zeros(shape, dtype=torch.bool).scatter_(-1, kept(scores, budget), True)


def at_each_step(given: Given, policies: Sequence[Policy], budgets: Sequence[int]) -> LayerEviction:
    """Each policy chooses after the prompt, and after each later query throws one more key away.

    A query sees the keys that are held and its own; what was thrown away does not come back. The
    bound, `best`, is that of the b best of all earlier keys, chosen anew at each step.
    """
    prompt = Prompt(given.matrix, given.prompt, given.name, given.values)
    caches = [
        [_Cache(policy, prompt, budget, given.matrix.shape[2]) for budget in budgets]
        for policy in policies
    ]
    losses = _Losses(given, len(policies), budgets)
    for rows in row_blocks(given.matrix, given.steps):
        weights = rows_of(given.matrix, rows, rows.stop)
        # A query's own key is there and takes no place of the budget.
        earlier = weights.clone()
        own = torch.arange(len(rows))
        earlier[:, own, own + rows.start] = 0
        losses.find_best(rows, earlier)
        gone = (
            torch.zeros(
                len(policies), len(budgets), given.kv_heads, len(rows), rows.stop, dtype=torch.bool
            )
            if given.values is not None
            else None
        )
        for row, query in enumerate(rows):
            for number, of_budgets in enumerate(caches):
                for place, cache in enumerate(of_budgets):
                    if gone is not None:
                        gone[number, place, :, row, : query + 1] = ~cache.there(query)
                    beside = None if given.beside is None else given.beside[:, query]
                    lost = cache.step(query, weights[:, row, : query + 1], beside)
                    losses.lost[number, place, :, query - given.prompt] = lost
        if gone is not None:
            losses.find_outputs(rows, weights, gone)
    stacked = [torch.stack([cache.evicted_after for cache in each]) for each in caches]
    return losses.found(torch.stack(stacked))


class _Cache:
    """The keys that a policy holds while a text goes on."""

    def __init__(self, policy: Policy, prompt: Prompt, budget: int, keys: int) -> None:
        assert policy.step is not None
        self._policy, self._rule, self._budget = policy, policy.step, budget
        self._held = torch.zeros(prompt.kv_heads, keys, dtype=torch.bool)
        self._held[:, : prompt.length] = _held(policy, prompt, budget)
        self._received = torch.zeros(prompt.kv_heads, keys)
        self._received[:, : prompt.length] = prompt.by_kv_head(prompt.received)
        self._heads = torch.arange(prompt.kv_heads)
        self.evicted_after = torch.full((prompt.kv_heads, keys), -1, dtype=torch.int32)
        gone = ~self._held[:, : prompt.length]
        self.evicted_after[:, : prompt.length][gone] = prompt.length - 1

    def there(self, query: int) -> Tensor:
        """The keys that a query may look at, (kv_heads, query + 1): those held, and its own."""
        self._held[:, query] = True
        return self._held[:, : query + 1]

    def step(self, query: int, weights: Tensor, beside: Tensor | None) -> Tensor:
        """A query comes and a key goes.

        weights: (heads, query + 1), of the whole cache; beside: (heads,), of the sink, or None.
        Returns: the mass lost, (heads,).
        """
        there = self.there(query)
        grouped = weights.reshape(len(there), -1, query + 1)
        left = grouped * there[:, None]
        lost = (grouped - left).sum(-1)
        left = renormalised(left, None if beside is None else beside.reshape(lost.shape))
        received = self._received[:, : query + 1]
        received += left.mean(1)
        given = Step(query, self._budget, left.flatten(0, 1), received)
        scores = chosen(self._policy, self._rule(given), (len(there), query + 1))
        # Of equal scores the earlier goes: argmin gives any of them.
        scores = scores.masked_fill(~there, torch.inf)
        full = there.sum(-1) > self._budget
        least = (scores == scores.amin(-1, keepdim=True)) & there
        goes = least.byte().argmax(-1)
        heads = self._heads[full]
        self._held[heads, goes[full]] = False
        self.evicted_after[heads, goes[full]] = query
        return lost.flatten()
