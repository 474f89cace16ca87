"""PageRank against the linear system, NetworkX and a known value."""

from __future__ import annotations

import pytest
import torch

import weft
from weft.analysis.pagerank import pagerank
from weft.mechanism.reference import graphs as reference

networkx = pytest.importorskip("networkx")


@pytest.mark.parametrize("damping", [0.5, 0.85])
def test_exact_and_within_bounds(case, damping):
    expected = torch.stack([reference.pagerank(weights, damping) for weights in case.dense])
    of_mean = reference.pagerank(case.dense.mean(0), damping)
    for found in (
        pagerank(case.matrix, damping=damping),
        pagerank(case.matrix, damping=damping, edges=case.graph),
    ):
        assert torch.allclose(found.heads.double(), expected, atol=2e-6)
        assert torch.allclose(found.mean.double(), of_mean, atol=2e-6)
        assert bool(((found.heads - expected).abs() <= found.bound + 1e-7).all())
        assert float(found.bound.max()) < 1e-5
    kept = pagerank(case.graph, damping=damping)
    assert bool(((kept.heads - expected).abs() <= kept.bound + 1e-7).all())
    assert bool(((kept.mean - of_mean).abs() <= kept.mean_bound + 1e-7).all())
    # What is missing is spread evenly: the estimate is much closer than the bound.
    assert float((kept.mean - of_mean).abs().max()) < 0.02


def test_minilm_known_value(minilm_trace):
    """[CLS] on the last layer's mean over heads."""
    found = pagerank(minilm_trace.layers[-1].matrix)
    assert round(float(found.mean[0]), 4) == 0.2767
    kept = pagerank(minilm_trace.layers[-1].graph)
    assert round(float(kept.mean[0]), 4) == 0.2767
    assert float(kept.mean_bound.max()) < 1e-4


def test_networkx_agrees():
    generator = torch.Generator().manual_seed(4)
    queries = torch.randn(2, 12, 4, generator=generator)
    _, graph = weft.attend(queries, queries + 1, queries, keep=weft.Top(12))
    found = pagerank(graph)
    for head in range(2):
        ranks = networkx.pagerank(graph.to_networkx(head), weight="weight", tol=1e-12)
        expected = torch.tensor([ranks[node] for node in range(12)])
        assert torch.allclose(found.heads[head], expected.float(), atol=1e-6)


def test_a_reader_who_sees_nothing_starts_anew():
    queries = torch.randn(1, 4, 2, generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[0, 0, 0, 0], [1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 0, 0]]).bool()
    matrix = weft.AttentionMatrix(queries, queries, mask=mask)
    _, graph = weft.attend(queries, queries, queries, mask=mask, keep=weft.Top(2))
    expected = reference.pagerank(matrix.dense()[0].double()).float()
    assert torch.allclose(pagerank(matrix).heads[0], expected, atol=1e-6)
    assert torch.allclose(pagerank(graph).heads[0], expected, atol=1e-6)


def test_what_is_no_damping(case):
    with pytest.raises(weft.InputError, match=r"damping=1\.0"):
        pagerank(case.graph, damping=1.0)


def test_of_no_positions_there_is_none():
    tokens = torch.zeros(2, 0, 4)
    _, graph = weft.attend(tokens, tokens, tokens, keep=weft.Top(2))
    for source in (graph, weft.AttentionMatrix(tokens, tokens)):
        found = pagerank(source)
        assert found.heads.shape == (2, 0)
        assert found.mean.shape == (0,)
