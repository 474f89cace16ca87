"""Measures of weights against NetworkX, known values, and answers worked out by hand."""

from __future__ import annotations

import math

import networkx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from headloom.mechanism.reference import graphs


def weights_of(seed: int, size: int, causal: bool = False) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(size, size, dtype=torch.float64, generator=generator)
    if causal:
        scores = scores.masked_fill(torch.ones(size, size).triu(1).bool(), -math.inf)
    return scores.softmax(-1)


seeds, sizes = st.integers(0, 999), st.integers(2, 5)


@settings(max_examples=15, deadline=None)
@given(seeds, sizes, st.booleans())
def test_pagerank_is_networkx(seed: int, size: int, causal: bool) -> None:
    weights = weights_of(seed, size, causal)
    network = networkx.from_numpy_array(weights.numpy(), create_using=networkx.DiGraph)
    expected = networkx.pagerank(network, tol=1e-12, max_iter=1000)
    ours = graphs.pagerank(weights)
    assert ours.tolist() == pytest.approx([expected[node] for node in range(size)], abs=1e-8)
    assert float(ours.sum()) == pytest.approx(1)


@settings(max_examples=15, deadline=None)
@given(seeds, sizes)
def test_symmetry_is_trace_over_norm(seed: int, size: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    M = torch.randn(size, size, dtype=torch.float64, generator=generator)
    expected = (M @ M).trace() / M.square().sum()
    torch.testing.assert_close(graphs.symmetry(M), expected)
    torch.testing.assert_close(graphs.reciprocity(M), expected)  # the same number, of weights
    assert float(graphs.symmetry(M + M.T)) == pytest.approx(1)
    assert float(graphs.symmetry(M - M.T)) == pytest.approx(-1)


def shifted(size: int, by: int) -> Tensor:
    """All weight of each query on the key `by` places on, or on itself at the border."""
    weights = torch.zeros(size, size)
    for i in range(size):
        j = i + by
        weights[i, j if 0 <= j < size else i] = 1.0
    return weights


def test_pure_heads_have_one_role() -> None:
    size = 6
    previous, following, same = shifted(size, -1), shifted(size, 1), shifted(size, 0)
    sink = torch.zeros(size, size)
    sink[:, 0] = 1.0
    heads = {"previous": previous, "next": following, "same": same, "first": sink}
    measures = {
        "previous": graphs.previous,
        "next": graphs.next_token,
        "same": graphs.same,
        "first": graphs.first,
    }
    for role, weights in heads.items():
        scores = {name: measure(weights) for name, measure in measures.items()}
        assert scores[role] == 1
        assert max(value for name, value in scores.items() if name != role) < 0.34


def test_induction_and_duplicate_look_one_key_apart() -> None:
    """a b c a b: the second a looks back at a (duplicate) or at b (induction)."""
    tokens = [1, 2, 3, 1, 2]
    duplicate, induction = torch.eye(5), torch.eye(5)
    for query, copy in ((3, 0), (4, 1)):
        duplicate[query] = torch.eye(5)[copy]
        induction[query] = torch.eye(5)[copy + 1]
    assert graphs.duplicate(duplicate, tokens, causal=True) == 1
    assert graphs.duplicate(induction, tokens, causal=True) == 0
    assert graphs.induction(induction, tokens, causal=True) == 1
    assert graphs.induction(duplicate, tokens, causal=True) == 0
    assert graphs.induction(induction, [1, 2, 3, 4, 5]) == 0  # nothing repeats
    # Where all may be seen, the first a and b have copies too, and look at themselves.
    assert graphs.duplicate(duplicate, tokens) == 0.5
    assert graphs.induction(torch.eye(5)[[4, 3, 2, 1, 0]], tokens) == pytest.approx(2 / 3)


def test_local_broad_separator_retrieval() -> None:
    uniform = torch.full((4, 4), 0.25)
    assert graphs.broad(uniform) == pytest.approx(1)
    assert graphs.broad(torch.eye(4)) == 0.25
    assert graphs.broad(torch.ones(3, 1)) == 0
    assert graphs.broad(torch.eye(3), causal=True) == pytest.approx((1 / 2 + 1 / 3) / 2)
    assert graphs.local(uniform, 1) == pytest.approx((2 + 3 + 3 + 2) / 16)
    assert graphs.local(uniform, 3) == pytest.approx(1)
    assert graphs.separator(uniform, [1, 3]) == pytest.approx(0.5)
    assert graphs.separator(uniform, []) == 0
    # Each row looks two back: row 2, which writes the copy of a, at a, row 3 at b.
    tokens = ["a", "b", "x", "a", "b"]
    assert graphs.retrieval(shifted(5, -2), tokens, 0, 3, 2) == 1
    assert graphs.retrieval(shifted(5, -1), tokens, 0, 3, 2) == 0
    assert graphs.retrieval(shifted(5, -2), ["a", "a", "x", "a", "a"], 0, 3, 2) == 1


def test_pagerank_of_weights_that_do_not_sum_to_1() -> None:
    weights = 7 * weights_of(3, 4)
    weights[2] /= 30
    network = networkx.from_numpy_array(weights.numpy(), create_using=networkx.DiGraph)
    expected = networkx.pagerank(network, tol=1e-12, max_iter=1000)
    assert graphs.pagerank(weights).tolist() == pytest.approx(list(expected.values()), abs=1e-8)


def test_directionality_by_hand() -> None:
    """One row of norms 1 (eight times), 3.2 and 5: mean 1.62, deviation 1.374.

    Above the mean and 2 deviations, 4.37, lies 5 alone; the row's own norm is sqrt(43.24), above
    0.658 + 2 * 2.079; 3 deviations would let neither pass.
    """
    M = torch.zeros(10, 10, dtype=torch.float64)
    M[0] = torch.tensor([1.0] * 8 + [3.2, 5.0])
    row = math.sqrt(8 + 3.2**2 + 5**2)
    assert float(graphs.directionality(M)) == pytest.approx((5 - row) / (5 + row))
    assert float(graphs.directionality(M.T)) == pytest.approx((row - 5) / (row + 5))
    assert float(graphs.directionality(M, spread=1.0)) == pytest.approx((8.2 - row) / (8.2 + row))
