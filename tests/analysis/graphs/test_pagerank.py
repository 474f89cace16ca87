"""PageRank against the linear system, NetworkX and a known value."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.analysis.conftest import TEXT

import headloom
from headloom.analysis.graphs import pagerank as module
from headloom.analysis.graphs.pagerank import pagerank
from headloom.mechanism.reference import graphs as reference

networkx = pytest.importorskip("networkx")


@pytest.mark.parametrize("damping", [0.5, 0.85])
def test_exact_and_within_bounds(case, damping) -> None:
    expected = torch.stack([reference.pagerank(weights, damping) for weights in case.dense])
    of_mean = reference.pagerank(case.dense.mean(0), damping)
    for found in (
        pagerank(case.matrix, damping=damping),
        pagerank(case.matrix, damping=damping, edges=case.graph),
    ):
        assert torch.allclose(found.heads.double(), expected, atol=2e-6)
        assert torch.allclose(found.mean.double(), of_mean, atol=2e-6)
        assert bool(((found.heads - expected).abs() <= found.bound + 1e-7).all())
        # Of a product, and of scores of up to 35.
        assert float(found.bound.max()) < 5e-5
    kept = pagerank(case.graph, damping=damping)
    assert bool(((kept.heads - expected).abs() <= kept.bound + 1e-7).all())
    assert bool(((kept.mean - of_mean).abs() <= kept.mean_bound + 1e-7).all())
    # What is missing is spread evenly: the estimate is much closer than the bound.
    assert float((kept.mean - of_mean).abs().max()) < 0.02


def test_minilm_known_value(minilm_trace) -> None:
    """[CLS] on the last layer's mean over heads."""
    found = pagerank(minilm_trace.layers[-1].matrix)
    assert round(float(found.mean[0]), 4) == 0.2767
    kept = pagerank(minilm_trace.layers[-1].graph)
    assert round(float(kept.mean[0]), 4) == 0.2767
    assert float(kept.mean_bound.max()) < 1e-4


def test_networkx_agrees() -> None:
    generator = torch.Generator().manual_seed(4)
    queries = torch.randn(2, 12, 4, generator=generator)
    _, graph = headloom.attend(queries, queries + 1, queries, keep=headloom.Top(12))
    found = pagerank(graph)
    for head in range(2):
        ranks = networkx.pagerank(graph.to_networkx(head), weight="weight", tol=1e-12)
        expected = torch.tensor([ranks[node] for node in range(12)])
        assert torch.allclose(found.heads[head], expected.float(), atol=1e-6)


def test_a_reader_who_sees_nothing_starts_anew() -> None:
    queries = torch.randn(1, 4, 2, generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[0, 0, 0, 0], [1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 0, 0]]).bool()
    matrix = headloom.AttentionMatrix(queries, queries, mask=mask)
    _, graph = headloom.attend(queries, queries, queries, mask=mask, keep=headloom.Top(2))
    expected = reference.pagerank(matrix.dense()[0].double()).float()
    assert torch.allclose(pagerank(matrix).heads[0], expected, atol=1e-6)
    assert torch.allclose(pagerank(graph).heads[0], expected, atol=1e-6)


def test_what_is_no_damping(case) -> None:
    with pytest.raises(headloom.InputError, match=r"damping=1\.0"):
        pagerank(case.graph, damping=1.0)


def test_of_no_positions_there_is_none() -> None:
    tokens = torch.zeros(2, 0, 4)
    _, graph = headloom.attend(tokens, tokens, tokens, keep=headloom.Top(2))
    for source in (graph, headloom.AttentionMatrix(tokens, tokens)):
        found = pagerank(source)
        assert found.heads.shape == (2, 0)
        assert found.mean.shape == (0,)


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


@pytest.mark.parametrize("damping", [0.85, 0.99])
@pytest.mark.parametrize("name", ["two blocks", "chain", "cycle", "star"])
@pytest.mark.parametrize("way", ["dense", "products", "products and edges", "edges"])
def test_hard_cases_meet_their_bound(
    way: str, name: str, damping: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores, n = _scores(name), 40
    queries, keys = torch.stack((scores, scores[:, torch.arange(n) - 1]))[:, :, :], torch.eye(n)
    keys = torch.stack((keys, keys))
    weights = queries.double().softmax(-1)
    expected = torch.stack([reference.pagerank(of, damping) for of in weights])
    _, graph = headloom.attend(queries, keys, keys, scale=1.0, keep=headloom.Top(n))
    matrix = headloom.AttentionMatrix(queries, keys, scale=1.0)
    if way != "dense":
        monkeypatch.setattr(module, "DENSE_CELLS", 0)
    found = pagerank(
        graph if way == "edges" else matrix,
        damping=damping,
        edges=graph if way == "products and edges" else None,
    )
    for ranks, bound, of, true in zip(
        (*found.heads, found.mean),
        (*found.bound, found.mean_bound),
        (*weights, weights.mean(0)),
        (*expected, reference.pagerank(weights.mean(0), damping)),
        strict=True,
    ):
        error = (ranks - true).abs()
        assert bool((error <= bound + 6e-8).all())
        assert float(error.sum()) < 1e-6 + 2 * module.ROUNDING / (1 - damping)
        walk = networkx.from_numpy_array(of.numpy(), create_using=networkx.DiGraph)
        try:
            ranks_there = networkx.pagerank(walk, damping, max_iter=20_000, tol=1e-12)
        except networkx.PowerIterationFailedConvergence:  # below what float64 rounds
            continue
        theirs = torch.tensor([ranks_there[node] for node in range(n)])
        assert torch.allclose(ranks, theirs.float(), atol=float(bound.max()) + 1e-7)


def test_minilm_meets_the_tolerance_however_it_is_solved(
    minilm: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of layer 0, whose conjugate residuals stand still."""
    model, tokenizer = minilm
    trace = headloom.trace(model, 6 * TEXT, tokenizer=tokenizer)
    weights = trace.layers[0].matrix.dense().double()
    expected = torch.stack([reference.pagerank(of) for of in weights])
    assert float((pagerank(trace.layers[0].matrix).heads - expected).abs().sum(-1).max()) < 1e-6
    monkeypatch.setattr(module, "DENSE_CELLS", 0)
    found = pagerank(trace.layers[0].matrix)
    assert float((found.heads - expected).abs().sum(-1).max()) < 1e-5


@pytest.mark.parametrize("kept", [False, True])
def test_a_tolerance_that_was_not_reached_is_an_error(
    kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "DENSE_CELLS", 0)
    scores, keys = _scores("chain")[None], torch.eye(40)[None]
    source = (
        headloom.attend(scores, keys, keys, scale=1.0, keep=headloom.Top(40))[1]
        if kept
        else headloom.AttentionMatrix(scores, keys, scale=1.0)
    )
    with pytest.raises(headloom.InputError, match=r"after 5 steps, above tolerance=.*steps="):
        pagerank(source, damping=0.99, steps=5)


def test_of_heads_whose_rows_have_different_masses_the_mean_is_within_its_bound() -> None:
    generator = torch.Generator().manual_seed(3)
    for _ in range(40):
        weights = torch.rand(8, 3, 3, generator=generator).pow(3)
        weights /= weights.sum(-1, keepdim=True)
        seen = torch.nn.functional.one_hot(torch.randint(8, (3,), generator=generator), 8)
        weights *= seen.T[..., None]  # each row is seen by one head alone
        mean = weights.double().mean(0)
        walk = mean / mean.sum(-1, keepdim=True)
        right = torch.linalg.solve(
            torch.eye(3, dtype=torch.float64) - 0.85 * walk.T, torch.full((3,), 0.05).double()
        )
        found = pagerank(headloom.from_weights(weights, keep=headloom.Top(1)).layers[0].graph)
        off = (found.mean.double() - right).abs()
        assert bool((off <= found.mean_bound.double() + 1e-6).all())


def test_of_heads_with_sinks_every_entry_is_within_its_bound() -> None:
    """Where a sink has a part of what was left out, the kept edges have more of the row."""
    generator = torch.Generator().manual_seed(6)
    for _ in range(60):
        queries, keys = torch.randn(2, 2, 6, 3, generator=generator) * 2
        sinks = torch.randn(2, generator=generator)
        scores = (queries.double() @ keys.double().transpose(1, 2)).exp()
        weights = scores / (scores.sum(-1, keepdim=True) + sinks.double().exp()[:, None, None])
        for kept in (1, 4, 6):
            _, graph = headloom.attend(
                queries, keys, keys, scale=1.0, sinks=sinks, keep=headloom.Top(kept)
            )
            found = pagerank(graph, damping=0.5)
            for head, of_head in enumerate(weights):
                off = (found.heads[head] - reference.pagerank(of_head, 0.5)).abs()
                assert bool((off <= found.bound[head] + 1e-6).all())
            off = (found.mean - reference.pagerank(weights.mean(0), 0.5)).abs()
            assert bool((off <= found.mean_bound + 1e-6).all())
            if kept == 6:
                # Every key is there: a sink then has what is left for certain.
                assert float(found.bound.max()) < 1e-5
