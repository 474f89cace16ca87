"""What keys give, weighed by the norms of their values."""

from __future__ import annotations

import pytest
import torch

import headloom
from headloom.analysis.graphs.norms import given_by_edges, given_by_rows, norms_of_heads


def test_edges_and_rows_against_dense_weights(case) -> None:
    norms = torch.rand(3, 60, generator=torch.Generator().manual_seed(3)) * 5
    expected = (case.dense * norms[:, None]).float()
    edges = given_by_edges(case.graph, norms)
    there = case.graph.keys >= 0
    at = expected.gather(-1, case.graph.keys.clamp(min=0).long())
    assert torch.allclose(edges[there], at[there], atol=1e-5)
    assert float(edges[~there].abs().sum()) == 0
    exact, kept = given_by_rows(case.matrix, norms), given_by_rows(case.graph, norms)
    assert torch.allclose(exact.lower, expected.sum(-1), atol=1e-4)
    assert bool((kept.lower <= expected.sum(-1) + 1e-4).all())
    assert bool((expected.sum(-1) <= kept.upper + 1e-4).all())


def test_the_norms_of_a_trace_are_those_of_its_values(language_model) -> None:
    tokens = torch.tensor([3, 4, 5, 6])
    trace = headloom.trace(language_model, tokens)
    layer = language_model.layers[0]
    states = language_model.embedding(tokens)
    values = layer.w_v(states).reshape(4, 4, 4).transpose(0, 1)
    assert torch.allclose(norms_of_heads(trace.layers[0]), values.norm(dim=-1), atol=1e-5)


def test_heads_that_share_values_share_norms(pair_trace) -> None:
    cross = pair_trace.layer("cross", 0)
    norms = norms_of_heads(cross)
    assert norms.shape == (4, 7)
    assert torch.equal(norms[0], norms[1])
    assert not torch.equal(norms[1], norms[2])


def test_an_output_is_no_longer_than_what_its_keys_give() -> None:
    generator = torch.Generator().manual_seed(6)
    queries, keys, values = torch.randn(3, 2, 20, 8, generator=generator)
    output, graph = headloom.attend(queries, keys, values, keep=headloom.Top(20))
    most = given_by_rows(graph, values.norm(dim=-1)).lower
    assert bool((output.norm(dim=-1) <= most + 1e-5).all())


def test_what_does_not_fit(case, make_trace) -> None:
    with pytest.raises(headloom.ShapeError, match=r"a number for each head and key, \(3, 60\)"):
        given_by_edges(case.graph, torch.ones(1, 60))
    with pytest.raises(headloom.InputError, match="norms of its values were not kept"):
        norms_of_heads(make_trace(["a"]).layers[0])
