"""Ranks against all singular values."""

from __future__ import annotations

import pytest
import torch

import headloom
from headloom.analysis.graphs import spectrum
from headloom.analysis.graphs.spectrum import effective_rank, energy_rank
from headloom.mechanism.reference import graphs as reference


def by_energy(weights: torch.Tensor) -> float:
    energy = torch.linalg.svdvals(weights.double()).square()
    share = energy / energy.sum()
    return float(torch.exp(-torch.xlogy(share, share).sum()))


def test_ranks_are_those_of_the_dense_matrix(case) -> None:
    for source, weights in (
        (case.matrix, case.dense),
        (case.graph, case.graph.to_dense().double()),
    ):
        expected = torch.stack([reference.effective_rank(head) for head in weights])
        assert torch.allclose(effective_rank(source).double(), expected, rtol=1e-3)
        expected = torch.tensor([by_energy(head) for head in weights])
        torch.testing.assert_close(energy_rank(source), expected, rtol=1e-4, atol=0)


@pytest.mark.parametrize("shape", [(3, 40), (40, 3)])
def test_of_fewer_queries_than_keys_the_rank_is_of_the_smaller_side(shape) -> None:
    weights = torch.rand(1, *shape, generator=torch.Generator().manual_seed(1)).softmax(-1)
    graph = headloom.from_weights(weights, keep=headloom.All(), kind="cross").layers[0].graph
    assert float(energy_rank(graph)) == pytest.approx(by_energy(weights[0]), rel=1e-5)


@pytest.mark.parametrize("rank", [effective_rank, energy_rank])
def test_too_many_positions_and_weights_that_are_not_finite(case, rank, monkeypatch) -> None:
    monkeypatch.setattr(spectrum, "DENSE", 59)
    with pytest.raises(headloom.InputError, match=r"60 x 60 weights; .* too long"):
        rank(case.matrix)
    # As forged: queries that are no numbers beside a log-sum-exp that is one.
    queries = torch.randn(1, 6, 4)
    queries[0, 2] = torch.nan
    forged = headloom.AttentionMatrix(queries, torch.randn(1, 6, 4), lse=torch.zeros(1, 6))
    with pytest.raises(headloom.InputError, match="infinite or NaN"):
        rank(forged)
