"""Bounds of what kept edges say hold the true values, and are no wider than they need be."""

from __future__ import annotations

import pytest
import torch

import headloom
from headloom.analysis.bounds import Interval, bounds
from headloom.analysis.heads.patterns import Classes, Diagonals


def holds(found: Interval, expected: torch.Tensor) -> None:
    assert bool((found.lower <= expected + 1e-5).all())
    assert bool((expected <= found.upper + 1e-5).all())


def test_they_hold_the_truth(case) -> None:
    received = bounds(case.graph, "received")
    holds(received, case.dense.sum(1))
    missing = case.graph.rest.sum(-1, keepdim=True)
    assert float((received.upper - received.lower).mean()) < 0.9 * float(missing.mean())
    tokens = torch.arange(60) % 7
    for pattern in (Diagonals(-1, 2), Classes(tokens, tokens, 0)):
        inside = pattern.contains(torch.arange(60)[:, None], torch.arange(60))
        holds(bounds(case.graph, pattern), (case.dense * inside).sum(-1))


def test_of_two_graphs_the_total_variation(case) -> None:
    generator = torch.Generator().manual_seed(3)
    queries, keys = torch.randn(2, 3, 60, 8, generator=generator)
    _, other = headloom.attend(queries, keys, keys, keep=headloom.Top(5))
    _, dense = headloom.attend(queries, keys, keys, keep=headloom.All())
    if float(case.dense.sum(-1).min()) > 0.99:  # without sinks
        expected = (case.dense - dense.double()).abs().sum(-1).mean(-1) / 2
        found = bounds(case.graph, other)
        holds(found, expected)
        assert float(found.upper.max()) <= 1
    same = bounds(case.graph, case.graph)
    assert not same.lower.any()


def test_all_edges_leave_no_doubt(minilm_trace, minilm_weights) -> None:
    for layer, weights in zip(minilm_trace.layers, minilm_weights, strict=True):
        found = bounds(layer.graph, "received")
        assert torch.allclose(found.lower, found.upper)
        assert torch.allclose(found.lower.float(), weights.sum(1), atol=1e-5)


def test_without_any_edge_nothing_is_known() -> None:
    graph = headloom.from_weights(torch.eye(3)[None], keep=headloom.Top(0)).layers[0].graph
    between = bounds(graph, "received")
    assert not between.lower.any() and bool((between.upper >= 1).all())
    with pytest.raises(headloom.InputError, match="of='rank'"):
        bounds(graph, "rank")  # type: ignore[arg-type]
