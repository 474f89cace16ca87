"""Weights that were given, every edge kept: analyses are exact, as dense sums in float64 say."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import headloom
from headloom.analysis.compare import compare
from headloom.analysis.graphs.flow import attention_flow
from headloom.analysis.graphs.paths import strongest_paths
from headloom.analysis.graphs.rollout import rollout, rollout_columns, rollout_rows
from headloom.analysis.graphs.table import graph_measures


def causal_weights(seed: int) -> torch.Tensor:
    """(layers, heads, queries, keys), float32."""
    scores = torch.randn(2, 3, 7, 7, generator=torch.Generator().manual_seed(seed))
    hidden = ~torch.ones(7, 7, dtype=torch.bool).tril()
    return scores.masked_fill(hidden, -torch.inf).softmax(-1)


@pytest.fixture(params=["all", "top"])
def trace(request) -> headloom.Trace:
    keep = headloom.All() if request.param == "all" else headloom.Top(7)
    return headloom.from_weights(causal_weights(0), keep=keep)


def dense_rollout(weights: torch.Tensor) -> np.ndarray:
    held = np.eye(7)
    for layer in weights.double().mean(1).numpy():
        held = (layer / 2 + np.eye(7) / 2) @ held
    return held


def test_rollouts_are_exact(trace) -> None:
    expected = dense_rollout(causal_weights(0))
    assert np.allclose(trace.rollout(exact=True), expected, atol=1e-6)
    assert np.allclose(rollout(trace), expected, atol=1e-6)
    rows = rollout_rows(trace, [6, 2], exact=True)
    assert np.allclose(rows.values, expected[[6, 2]], atol=1e-6) and float(rows.bound.max()) < 1e-5
    columns = rollout_columns(trace, 1, exact=True)
    assert np.allclose(columns.values[:, 0], expected[:, 1], atol=1e-6)


def test_paths_and_flows_are_exact(trace) -> None:
    expected = dense_rollout(causal_weights(0))
    found = strongest_paths(trace, 6, 1, exact=True)
    assert found.least == found.most == pytest.approx(expected[6, 1], abs=1e-6)
    flow = attention_flow(trace, 6, range(7), exact=True, edges=1)
    assert float(flow.width.max()) < 1e-5 and float(flow.lower.min()) > 0


def test_graph_measures_are_exact(trace) -> None:
    table = graph_measures(trace, exact=True)
    assert set(table["source"]) == {"exact"} == set(graph_measures(trace)["source"])
    for row in table.itertuples():
        weights = causal_weights(0)[row.layer, row.head].double().numpy()
        received = weights.sum(0)
        assert row.received_key == received.argmax()
        assert row.received_share == pytest.approx(received.max() / 7, abs=1e-6)
        assert row.received_share == row.received_share_high and row.hitters == row.hitters_high
        both = (weights * weights.T).sum() / (weights**2).sum()
        assert row.reciprocity == pytest.approx(both, abs=1e-6)
        assert row.reciprocity_high == pytest.approx(both, abs=1e-6)
        matrix = np.eye(7) - 0.85 * weights.T
        ranks = np.linalg.solve(matrix, np.full(7, 0.15 / 7))
        assert row.pagerank == pytest.approx(ranks.max(), abs=1e-5) and row.pagerank_bound < 1e-5
    few = headloom.from_weights(causal_weights(0), keep=headloom.Top(3))
    assert set(graph_measures(few)["source"]) == {"kept"}
    with pytest.raises(headloom.InputError, match="were not kept"):
        graph_measures(few, exact=True)


def test_a_comparison_is_exact_also_with_a_trace_of_queries_and_keys(trace) -> None:
    queries, keys = torch.randn(2, 2, 3, 7, 4, generator=torch.Generator().manual_seed(5))
    hidden = ~torch.ones(7, 7, dtype=torch.bool).tril()
    scores = (queries.double() @ keys.double().mT) / 2
    theirs = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    other = headloom.from_queries_keys(queries, keys, mask=headloom.causal(), keep=headloom.Top(2))
    expected = (causal_weights(0).double() - theirs).abs().sum(-1).mean(-1) / 2
    for pair in ((trace, other), (other, trace)):
        found = compare(*pair, exact=True)
        for layer, heads in enumerate(found.heads):
            assert torch.allclose(heads.lower.double(), expected[layer], atol=1e-6)
            assert torch.allclose(heads.upper.double(), expected[layer], atol=1e-6)
    with pytest.raises(headloom.InputError, match="were not kept"):
        compare(headloom.from_weights(causal_weights(0), keep=headloom.Top(2)), trace, exact=True)
