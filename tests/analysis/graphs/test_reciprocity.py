"""Reciprocity against dense weights, NetworkX and known values."""

from __future__ import annotations

import pytest
import torch

import headloom
from headloom.analysis.graphs.reciprocity import reciprocity
from headloom.mechanism.reference import graphs as reference

networkx = pytest.importorskip("networkx")


def test_exact_and_between_bounds(case) -> None:
    expected = torch.stack([reference.reciprocity(weights) for weights in case.dense]).float()
    exact, kept = reciprocity(case.matrix), reciprocity(case.graph)
    assert torch.allclose(exact.lower, expected, atol=1e-5)
    assert bool((kept.lower <= expected + 1e-6).all())
    assert bool((expected <= kept.upper + 1e-6).all())


def test_all_edges_leave_no_doubt(minilm_trace, minilm_weights) -> None:
    for layer, weights in zip(minilm_trace.layers, minilm_weights, strict=True):
        found = reciprocity(layer.graph)
        expected = torch.stack([reference.reciprocity(head) for head in weights])
        assert torch.allclose(found.lower, expected, atol=1e-5)
        assert float(found.width.max()) < 1e-5


def test_minilm_known_values(minilm_trace) -> None:
    """The mean over heads of each layer, as measured once by another program."""
    means = [round(float(reciprocity(layer.matrix).lower.mean()), 4)
             for layer in minilm_trace.layers]  # fmt: skip
    assert means == [0.4599, 0.1730, 0.1607, 0.2014, 0.1414, 0.3029]


def test_random_weights_are_nearly_mutual(minilm) -> None:
    """Weights of random matrices are nearly uniform, so that everyone looks back: 0.985."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(minilm[0].config)
    text = "the quick brown fox jumps over the lazy dog because the dog did not see it ."
    trace = headloom.trace(model, text, tokenizer=minilm[1])
    means = torch.stack([reciprocity(layer.matrix).lower.mean() for layer in trace.layers])
    assert round(float(means.mean()), 2) == 0.99
    assert float((means - 0.985).abs().max()) < 0.003
    # Their rows are almost uniform over the 19 tokens: log 19 = 2.944.
    entropies = torch.stack([layer.graph.entropy.mean() for layer in trace.layers])
    assert round(float(entropies.mean()), 3) == 2.937


def test_networkx_counts_the_same_where_weights_are_one() -> None:
    """With one edge a row, all of weight 1, it is the share of edges that lead back."""
    looks = torch.tensor([1, 0, 3, 2, 4, 0, 1])
    queries = 999 * torch.nn.functional.one_hot(looks, 7).float()[None]
    _, graph = headloom.attend(
        queries, torch.eye(7)[None], queries, scale=1.0, keep=headloom.Top(1)
    )
    other = graph.to_networkx(0)
    other.remove_edges_from(list(networkx.selfloop_edges(other)))
    of_all = networkx.overall_reciprocity(other)
    # NetworkX counts no loops; ours does: 4 leads to itself.
    assert float(reciprocity(graph).lower[0]) == pytest.approx((of_all * 6 + 1) / 7)


def test_two_sequences_have_none(pair_trace) -> None:
    with pytest.raises(headloom.ShapeError, match="4 queries and 7 keys"):
        reciprocity(pair_trace.layer("cross", 0).graph)


def test_without_any_edge_nothing_is_known() -> None:
    graph = headloom.from_weights(torch.eye(3)[None], keep=headloom.Top(0)).layers[0].graph
    between = reciprocity(graph)
    assert (float(between.lower[0]), float(between.upper[0])) == (0, 1)
