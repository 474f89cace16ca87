"""From weights to links, and from links to error rates, against enumeration and by hand."""

from __future__ import annotations

from itertools import product

import pytest
import torch

import headloom
from headloom.analysis.alignment.links import METHODS, argmax, mutual
from headloom.formats.pharaoh import GoldLinks


def test_links_are_those_of_a_search_cell_by_cell() -> None:
    weights = torch.rand(3, 5, 4, generator=torch.Generator().manual_seed(1))
    weights[1, 2] = 0
    for head, t, s in product(range(3), range(5), range(4)):
        row, column = weights[head, t].tolist(), weights[head, :, s].tolist()
        best = row[s] == max(row) and row[s] > 0
        assert bool(argmax(weights)[head, t, s]) == best
        both = best and column[t] == max(column)
        assert bool(mutual(weights)[head, t, s]) == both
    assert not argmax(weights)[1, 2].any()
    for method in METHODS.values():
        assert method(torch.zeros(2, 0, 4)).shape == (2, 0, 4)
        assert method(torch.zeros(2, 3, 0)).shape == (2, 3, 0)


def test_the_error_rate_is_that_worked_out_by_hand() -> None:
    gold = [GoldLinks.of_line("0-0 1-1 2?3"), GoldLinks.of_line("0-0")]
    links = [[(0, 0), (2, 3), (3, 3)], [(0, 1)]]
    rate = headloom.alignment_error_rate(links, gold)
    # |A| = 4, |S| = 3, A and S: 0-0; A and P: 0-0, 2-3.
    assert rate.precision == 2 / 4
    assert rate.recall == 1 / 3
    assert rate.aer == pytest.approx(1 - (1 + 2) / (4 + 3))
    perfect = headloom.alignment_error_rate([[(0, 0), (1, 1)], [(0, 0)]], gold)
    assert (perfect.aer, perfect.precision, perfect.recall) == (0, 1, 1)
    assert headloom.alignment_error_rate([[]], [GoldLinks.of_line("")]).aer == 0
    assert str(perfect) == "AER 0.000, precision 1.000, recall 1.000"
    with pytest.raises(headloom.InputError, match="1 lines of links and 2 of gold"):
        headloom.alignment_error_rate([[]], gold)
