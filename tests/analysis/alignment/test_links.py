"""From weights to links, and from links to error rates, against enumeration and by hand."""

from __future__ import annotations

from itertools import product

import pytest
import torch

import headloom
from headloom.analysis.alignment.links import METHODS, argmax, dtw, links_by, mutual, pairs_of
from headloom.formats.pharaoh import GoldLinks


def paths(rows: int, columns: int) -> list[list[tuple[int, int]]]:
    """Every path from the first cell to the last that never goes back."""
    if (rows, columns) == (1, 1):
        return [[(0, 0)]]
    before = []
    for step in ((1, 1), (1, 0), (0, 1)):
        if rows > step[0] and columns > step[1]:
            before += paths(rows - step[0], columns - step[1])
    return [[*path, (rows - 1, columns - 1)] for path in before]


def test_the_number_of_paths_is_that_of_delannoy() -> None:
    # The central Delannoy numbers: 1, 3, 13, 63.
    assert [len(paths(n, n)) for n in (1, 2, 3, 4)] == [1, 3, 13, 63]


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (1, 4), (3, 1), (3, 4), (5, 3)])
def test_the_path_is_the_cheapest_of_all(rows: int, columns: int) -> None:
    generator = torch.Generator().manual_seed(rows * 10 + columns)
    weights = torch.rand(6, rows, columns, generator=generator)
    links = dtw(weights)
    for head in range(6):
        found = sorted((t, s) for s, t in pairs_of(links[head]))
        costs = {
            tuple(path): sum(1 - float(weights[head, t, s]) for t, s in path)
            for path in paths(rows, columns)
        }
        assert costs[tuple(found)] == pytest.approx(min(costs.values()))


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
    with pytest.raises(headloom.InputError, match="no method 'hmm'; there are mutual, argmax, dtw"):
        links_by("hmm")


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


def test_without_possible_links_it_is_one_less_f1() -> None:
    gold = [GoldLinks.of_line("0-0 1-1 2-2 3-3")]
    rate = headloom.alignment_error_rate([[(0, 0), (1, 1), (2, 0)]], gold)
    f1 = 2 * rate.precision * rate.recall / (rate.precision + rate.recall)
    assert rate.aer == pytest.approx(1 - f1)
