"""The reference's scores against answers worked out by hand.

`tests/mechanism/test_scores.py` holds the fast forms to these; nothing here calls those.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from headloom.mechanism.reference import scores


def exact(numbers: list[list[float]] | list[float]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


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
