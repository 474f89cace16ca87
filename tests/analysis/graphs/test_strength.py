"""In-strength and heavy hitters against dense weights."""

from __future__ import annotations

import pytest
import torch

import headloom
from headloom.analysis.graphs.strength import heavy_hitters, received
from headloom.mechanism.reference import graphs as reference

networkx = pytest.importorskip("networkx")


def test_received_is_the_sum_of_columns(case) -> None:
    expected = torch.stack([reference.in_strength(weights) for weights in case.dense]).float()
    exact, kept = received(case.matrix), received(case.graph)
    assert torch.allclose(exact.lower, expected, atol=1e-5)
    assert torch.equal(exact.lower, exact.upper)
    assert bool((kept.lower <= expected + 1e-5).all())
    assert bool((expected <= kept.upper + 1e-5).all())


def test_bounds_are_narrower_than_all_that_is_missing(case) -> None:
    kept = received(case.graph)
    missing = case.graph.rest.sum(-1, keepdim=True)
    assert bool((kept.width <= missing + 1e-5).all())
    assert float(kept.width.mean()) < 0.9 * float(missing.mean())


def test_networkx_gives_the_same_strength() -> None:
    generator = torch.Generator().manual_seed(2)
    queries = torch.randn(1, 9, 4, generator=generator)
    _, graph = headloom.attend(queries, queries + 1, queries, keep=headloom.Top(9))
    degrees = dict(graph.to_networkx(0).in_degree(weight="weight"))
    expected = torch.tensor([degrees[node] for node in range(9)])
    assert torch.allclose(received(graph).lower[0], expected.float(), atol=1e-6)


def test_norms_of_values_weigh_what_is_received(case) -> None:
    norms = torch.rand(3, 60, generator=torch.Generator().manual_seed(1))
    given = received(case.matrix, norms).lower
    assert torch.allclose(given, (case.dense.sum(1) * norms).float(), atol=1e-5)
    shared = received(case.matrix, norms[:1]).lower
    assert torch.allclose(shared, (case.dense.sum(1) * norms[0]).float(), atol=1e-5)


def smallest_set(weights: torch.Tensor, share: float) -> int:
    """By trying: how many keys, largest first, until they hold the share."""
    got = sorted(weights.sum(0).tolist(), reverse=True)
    total, count = sum(got), 0
    while sum(got[:count]) < share * total * (1 - 1e-7):
        count += 1
    return count


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_heavy_hitters_are_the_smallest_set(case, share) -> None:
    exact, kept = heavy_hitters(case.matrix, share), heavy_hitters(case.graph, share)
    for head, weights in enumerate(case.dense):
        expected = smallest_set(weights, share)
        assert int(exact.count.lower[head]) == int(exact.count.upper[head]) == expected
        got = weights.sum(0)
        assert float(got[exact.of(head)].sum()) >= share * float(got.sum()) * (1 - 1e-5)
        assert int(kept.count.lower[head]) <= expected <= int(kept.count.upper[head])
        if int(kept.count.upper[head]) < 60:
            assert float(got[kept.of(head)].sum()) >= share * float(got.sum()) * (1 - 1e-5)
    together = heavy_hitters(case.matrix, share, together=True)
    assert int(together.count.upper[0]) == smallest_set(case.dense.sum(0), share)


def test_a_share_that_is_none(case) -> None:
    with pytest.raises(
        headloom.InputError, match=r"share=1\.5; expected a number above 0, at most 1"
    ):
        heavy_hitters(case.graph, 1.5)


@pytest.mark.parametrize("length", [0, 3])
def test_nobody_who_may_look_needs_no_key(length) -> None:
    tokens = torch.randn(2, length, 4, generator=torch.Generator().manual_seed(0))
    nobody = torch.zeros(length, length, dtype=torch.bool)
    _, graph = headloom.attend(tokens, tokens, tokens, mask=nobody, keep=headloom.Top(2))
    for source in (graph, headloom.AttentionMatrix(tokens, tokens, mask=nobody)):
        for together in (False, True):
            count = heavy_hitters(source, together=together).count
            assert not count.lower.any()
            assert not count.upper.any()


def test_of_kept_edges_and_a_sink_as_many_heavy_hitters_as_are_certain() -> None:
    zeros = torch.zeros(1, 9, 4)
    options = {"mask": headloom.causal(), "sinks": torch.tensor([2.0])}
    trace = headloom.from_queries_keys(zeros, zeros, keep=headloom.Top(3), **options)
    exact = heavy_hitters(trace.layers[0].matrix, 0.5).count
    bounds = heavy_hitters(trace.layers[0].graph, 0.5).count
    assert int(exact.lower[0]) == int(exact.upper[0]) == 3
    assert int(bounds.lower[0]) <= 3 <= int(bounds.upper[0])
