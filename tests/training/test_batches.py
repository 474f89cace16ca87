"""Batches: every example once, under the budget, repeatable, with little padding."""

from __future__ import annotations

import itertools

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headloom.training.batches import bucketed, padded

pairs = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), max_size=60)


def cells(lengths: list[tuple[int, int]], batch: list[int]) -> int:
    return len(batch) * sum(max(lengths[index][part] for index in batch) for part in (0, 1))


@settings(deadline=None, max_examples=50)
@given(pairs, st.integers(1, 300), st.one_of(st.none(), st.integers(0, 99)))
def test_each_once_and_under_the_budget(
    lengths: list[tuple[int, int]], budget: int, seed: int | None
) -> None:
    batches = bucketed(lengths, budget, seed=seed)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or cells(lengths, batch) <= budget
    assert batches == bucketed(lengths, budget, seed=seed)


@settings(deadline=None, max_examples=50)
@given(pairs, st.integers(1, 300))
def test_no_batch_could_take_the_next_example(lengths: list[tuple[int, int]], budget: int) -> None:
    batches = bucketed(lengths, budget)
    for batch, after in itertools.pairwise(batches):
        assert cells(lengths, [*batch, after[0]]) > budget


def test_the_seed_shuffles_who_meets_and_the_order() -> None:
    lengths = [(5, 5)] * 100
    first, second = bucketed(lengths, 100, seed=1), bucketed(lengths, 100, seed=2)
    assert first != second
    assert {frozenset(batch) for batch in first} != {frozenset(batch) for batch in second}
    # Long and short batches come mixed, not in the order of their lengths.
    lengths = [(size, size) for size in range(1, 101)]
    order = [lengths[batch[0]][0] for batch in bucketed(lengths, 300, seed=1)]
    assert order != sorted(order)
    plain = [lengths[batch[0]][0] for batch in bucketed(lengths, 300)]
    assert plain == sorted(plain)


def test_padded() -> None:
    assert padded([[1], [2, 3]], 9).tolist() == [[1, 9], [2, 3]]
    assert padded([], 0).shape == (0, 0)
    assert padded([[], []], 0).shape == (2, 0)
    assert padded([[1]], 0).dtype == torch.long
