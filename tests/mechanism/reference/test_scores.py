"""The reference's scores against answers worked out by hand.

`tests/mechanism/test_scores.py` holds the fast forms to these; nothing here calls those.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from headloom.mechanism.reference import scores

QUERIES = torch.tensor([[1.0, 2.0], [-3.0, 0.5]], dtype=torch.float64)
KEYS = torch.tensor([[4.0, -1.0], [0.0, 2.0], [1.0, 1.0]], dtype=torch.float64)


def exact(numbers: list[list[float]] | list[float]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def test_products() -> None:
    assert scores.dot(QUERIES, KEYS).tolist() == [[2, 4, 3], [-12.5, 1, -2.5]]
    A = exact([[0.0, 1.0], [3.0, 0.0]])  # q^T A k = q_1 k_2 + 3 q_2 k_1
    assert scores.bilinear(QUERIES, KEYS, A).tolist() == [[23, 2, 7], [9, -6, -1.5]]
    # The symmetric part of A has 2 and 2: 2 (q_1 k_2 + q_2 k_1).
    symmetric = scores.symmetric_bilinear(QUERIES, KEYS, A)
    assert symmetric.tolist() == [[14, 4, 6], [10, -12, -5]]
    wide = exact([[1.0, 0.0, 2.0], [0.0, 1.0, 0.0]])  # keys of another depth
    assert scores.bilinear(QUERIES, exact([[1.0, 2.0, 3.0]]), wide).tolist() == [[11], [-20]]


def test_additive() -> None:
    W, U = exact([[1.0, 0.0], [0.0, 2.0]]), exact([[0.5], [-1.0]])
    v = exact([2.0, -3.0])
    found = scores.additive(QUERIES, exact([[2.0]]), W, U, v)
    for row, (a, b) in zip(found.tolist(), QUERIES.tolist(), strict=True):
        expected = 2 * math.tanh(a + 1) - 3 * math.tanh(2 * b - 2)
        assert row == pytest.approx([expected], abs=1e-14)


@pytest.mark.parametrize("slope", [0.2, 0.0, 0.5])
def test_graph_attention_bends_at_0(slope: float) -> None:
    """One number each: sums of -2, -0.5, 0, 0.5 and 3."""
    query, keys = exact([[1.0]]), exact([[-3.0], [-1.5], [-1.0], [-0.5], [2.0]])
    bent = [-2 * slope, -0.5 * slope, 0, 0.5, 3]
    ones = exact([1.0, 1.0])
    assert scores.graph_attention(query, keys, ones, slope=slope).tolist() == [bent]
    # The first half of a is the query's, the other the keys'.
    halves = scores.graph_attention(query, keys, exact([-1.0, 2.0]), slope=slope)
    assert halves.tolist() == [[-7 * slope, -4 * slope, -3 * slope, -2 * slope, 3]]
    # Version 2 bends before it weighs.
    second = scores.graph_attention_v2(query, keys, exact([-2.0]), slope=slope)
    assert second.tolist() == [[-2 * x for x in bent]]
    if slope == 0.2:  # that of the papers, where nobody says
        assert scores.graph_attention(query, keys, ones).tolist() == [bent]
        assert scores.graph_attention_v2(query, keys, exact([-2.0])).tolist() == second.tolist()


def test_two_numbers_in_version_2() -> None:
    found = scores.graph_attention_v2(QUERIES, KEYS, exact([10.0, 1.0]))
    # q + k: (5, 1), (1, 4), (2, 3); (1, -0.5), (-3, 2.5), (-2, 1.5).
    expected = exact([[51.0, 14.0, 23.0], [9.9, -3.5, -2.5]])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-14)


def test_no_queries_and_no_keys() -> None:
    for few, many in ((0, 3), (2, 0), (0, 0)):
        assert scores.dot(QUERIES[:few], KEYS[:many]).shape == (few, many)
        found = scores.graph_attention(QUERIES[:few], KEYS[:many], torch.ones(4).double())
        assert found.shape == (few, many) and found.dtype == torch.float64
