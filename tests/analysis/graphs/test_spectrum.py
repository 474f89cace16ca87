"""Effective ranks against all singular values."""

from __future__ import annotations

import pytest
import torch

import headloom
from headloom.analysis.graphs import spectrum
from headloom.analysis.graphs.spectrum import effective_rank, energy_rank
from headloom.mechanism.reference import graphs as reference


def test_effective_rank_is_that_of_the_dense_matrix(case) -> None:
    expected = torch.stack([reference.effective_rank(weights) for weights in case.dense])
    assert torch.allclose(effective_rank(case.matrix).double(), expected, rtol=1e-3)
    kept = torch.stack(
        [reference.effective_rank(case.graph.dense()[head].double()) for head in range(3)]
    )
    assert torch.allclose(effective_rank(case.graph).double(), kept, rtol=1e-3)


def by_energy(weights: torch.Tensor) -> float:
    energy = torch.linalg.svdvals(weights.double()).square()
    share = energy / energy.sum()
    return float(torch.exp(-torch.xlogy(share, share).sum()))


@pytest.mark.parametrize("leading", [1, 4, 16, 60])
def test_energy_rank_lies_between_its_bounds(case, leading) -> None:
    exact, kept = (
        energy_rank(source, leading, exact_up_to=0) for source in (case.matrix, case.graph)
    )
    for head, weights in enumerate(case.dense):
        expected = by_energy(weights)
        for found in (exact, kept):
            assert float(found.lower[head]) <= expected * 1.001
            assert expected <= float(found.upper[head]) * 1.001
    if leading == 60:
        assert torch.allclose(exact.lower, exact.upper, rtol=1e-3)


def test_more_directions_narrow_the_bounds(case) -> None:
    widths = [
        float(energy_rank(case.matrix, leading, exact_up_to=0).width.mean())
        for leading in (2, 16, 50)
    ]
    assert widths[0] > widths[1] > widths[2]


@pytest.mark.parametrize("more", [0, 1])
def test_up_to_so_many_positions_the_rank_is_that_of_all_singular_values(case, more) -> None:
    """The case has 60 tokens; of kept edges the doubt about the others remains."""
    found = energy_rank(case.matrix, 1, exact_up_to=59 + more)
    assert torch.equal(found.lower, found.upper) == bool(more)
    expected = torch.tensor([by_energy(weights) for weights in case.dense])
    if more:
        torch.testing.assert_close(found.lower, expected, rtol=1e-4, atol=0)
    every = (
        headloom.from_weights(case.dense.float(), keep=headloom.All(), partial=True).layers[0].graph
    )
    whole, few = (energy_rank(graph, exact_up_to=60) for graph in (every, case.graph))
    torch.testing.assert_close(whole.lower, expected, rtol=1e-4, atol=0)
    assert torch.equal(whole.lower, whole.upper)
    assert bool((few.lower <= expected).all() and (expected <= few.upper).all())
    assert bool((few.width <= energy_rank(case.graph, 1, exact_up_to=0).width + 1e-4).all())


@pytest.mark.parametrize("shape", [(3, 40), (40, 3)])
def test_of_fewer_queries_than_keys_the_rank_is_of_the_smaller_side(shape) -> None:
    weights = torch.rand(1, *shape, generator=torch.Generator().manual_seed(1)).softmax(-1)
    graph = headloom.from_weights(weights, keep=headloom.All(), kind="cross").layers[0].graph
    found = energy_rank(graph)
    assert float(found.lower) == pytest.approx(by_energy(weights[0]), rel=1e-5)
    assert torch.equal(found.lower, found.upper)


def test_too_many_positions_for_all_singular_values(case, monkeypatch) -> None:
    monkeypatch.setattr(spectrum, "DENSE", 59)
    with pytest.raises(headloom.InputError, match="Take energy_rank"):
        effective_rank(case.matrix)


@pytest.mark.parametrize("length", [0, 3])
def test_without_weights_no_direction_is_in_use(length) -> None:
    tokens = torch.randn(2, length, 4, generator=torch.Generator().manual_seed(0))
    nobody = torch.zeros(length, length, dtype=torch.bool)
    _, graph = headloom.attend(tokens, tokens, tokens, mask=nobody, keep=headloom.Top(2))
    for source in (graph, headloom.AttentionMatrix(tokens, tokens, mask=nobody)):
        found = energy_rank(source)
        assert found.lower.tolist() == found.upper.tolist() == [0, 0]
        assert effective_rank(source).tolist() == [0, 0]


def test_weights_that_are_not_finite_are_refused_in_a_line() -> None:
    tokens = torch.randn(1, 6, 4)
    # As forged: queries that are no numbers beside a log-sum-exp that is one.
    queries = tokens.clone()
    queries[0, 2] = torch.nan
    matrix = headloom.AttentionMatrix(queries, tokens, lse=torch.zeros(1, 6))
    for measure in (effective_rank, energy_rank):
        with pytest.raises(headloom.InputError, match="infinite or NaN"):
            measure(matrix)


@pytest.mark.parametrize("rows", [[[0.51, 0.49], [0.49, 0.51]], [[1.0, 0.0], [0.5, 0.5]]])
def test_of_two_tokens_and_one_edge_of_each_the_rank_is_between_its_bounds(rows) -> None:
    weights = torch.tensor([rows])
    energy = torch.linalg.svdvals(weights[0].double()).square()
    share = energy / energy.sum()
    exact = float((-(share * share.log()).sum()).exp())
    rank = energy_rank(headloom.from_weights(weights, keep=headloom.Top(1)).layers[0].graph)
    assert float(rank.lower[0]) - 1e-5 <= exact <= float(rank.upper[0]) + 1e-5


@pytest.mark.parametrize("length", range(1, 12))
def test_the_lower_end_is_never_above_the_upper(length: int) -> None:
    """Of one direction, whose entropy of 0 is rounded to either side."""
    alike = headloom.AttentionMatrix(torch.zeros(1, length, 2), torch.zeros(1, length, 2))
    rank = energy_rank(alike)
    assert bool((rank.lower <= rank.upper).all())
    assert float(rank.upper) == pytest.approx(1, abs=1e-6)
