"""PageRank against the linear system, NetworkX and a known value."""

from __future__ import annotations

import pytest
import torch

import headloom
from headloom.analysis.graphs.spectrum import pagerank
from headloom.mechanism.reference import graphs as reference

networkx = pytest.importorskip("networkx")


@pytest.mark.parametrize("damping", [0.5, 0.85])
def test_of_all_weights_and_of_the_kept_edges(case, damping) -> None:
    for source, weights in (
        (case.matrix, case.dense),
        (case.graph, case.graph.to_dense().double()),
    ):
        found = pagerank(source, damping=damping)
        expected = torch.stack([reference.pagerank(head, damping) for head in weights])
        assert torch.allclose(found.heads.double(), expected, atol=2e-6)
        of_mean = reference.pagerank(weights.mean(0), damping)
        assert torch.allclose(found.mean.double(), of_mean, atol=2e-6)
    ranks = networkx.pagerank(case.graph.to_networkx(0), damping, weight="weight", tol=1e-12)
    of_networkx = torch.tensor([ranks[node] for node in range(60)]).float()
    assert torch.allclose(found.heads[0], of_networkx, atol=1e-6)


def test_minilm_known_value(minilm_trace) -> None:
    """[CLS] on the last layer's mean over heads."""
    layer = minilm_trace.layers[-1]
    for source in (layer.matrix, layer.graph):
        assert round(float(pagerank(source).mean[0]), 4) == 0.2767


def test_a_reader_who_sees_nothing_starts_anew() -> None:
    queries = torch.randn(1, 4, 2, generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[0, 0, 0, 0], [1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 0, 0]]).bool()
    matrix = headloom.AttentionMatrix(queries, queries, mask=mask)
    _, graph = headloom.attend(queries, queries, queries, mask=mask, keep=headloom.Top(2))
    expected = reference.pagerank(matrix.to_dense()[0].double()).float()
    for source in (matrix, graph):
        assert torch.allclose(pagerank(source).heads[0], expected, atol=1e-6)


def _scores(name: str, n: int = 40) -> torch.Tensor:
    """Scores whose weights mix slowly, or not at all."""
    place = torch.arange(n)
    far = -30.0 * torch.ones(n, n)
    if name == "two blocks":  # of which one in e^-12 leaves
        return torch.where((place[:, None] < n // 2) == (place < n // 2), 0.0, -12.0)
    if name == "chain":  # to a neighbour, nearly always the next
        far[place[:-1], place[1:]] = 0.0
        far[place[1:], place[:-1]] = -2.0
        return far
    if name == "cycle":  # of period n: powers of the weights never settle
        far[place, (place + 1) % n] = 0.0
        return far
    far[:, 0] = 0.0  # all look at the first, which looks at the last
    far[0] = far[0].flip(0)
    return far


@pytest.mark.parametrize("name", ["two blocks", "chain", "cycle", "star"])
@pytest.mark.parametrize("edges", [False, True])
def test_slow_walks(edges: bool, name: str) -> None:
    queries, keys = _scores(name)[None], torch.eye(40)[None]
    _, graph = headloom.attend(queries, keys, keys, scale=1.0, keep=headloom.Top(40))
    source = graph if edges else headloom.AttentionMatrix(queries, keys, scale=1.0)
    for damping in (0.85, 0.99):
        expected = reference.pagerank(queries[0].double().softmax(-1), damping)
        found = pagerank(source, damping=damping, tolerance=1e-5)
        assert float((found.heads[0] - expected).abs().sum()) < 1e-4
