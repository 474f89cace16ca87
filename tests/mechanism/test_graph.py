"""AttentionGraph: what it holds and what it turns into."""

from __future__ import annotations

import math

import networkx
import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import headloom


def by_hand() -> headloom.AttentionGraph:
    """One head, two queries, three keys; weights 1/2, 1/4 (1/4 left) and 1 (one key allowed)."""
    return headloom.AttentionGraph(
        keys=torch.tensor([[[2, 0], [1, -1]]], dtype=torch.int32),
        scores=torch.tensor([[[math.log(2), 0.0], [5.0, -math.inf]]]),
        weights=torch.tensor([[[0.5, 0.25], [1.0, 0.0]]]),
        lse=torch.tensor([[math.log(4), 5.0]]),
        entropy=torch.tensor([[1.5 * math.log(2), 0.0]]),
        rest=torch.tensor([[0.25, 0.0]]),
        count=torch.tensor([[3, 1]], dtype=torch.int32),
        length=3,
    )


def random_graph(
    seed: int, k: int, queries: int = 4, keys: int = 5, batched: bool = False
) -> tuple[headloom.AttentionGraph, Tensor]:
    """A graph, and the dense weights it was taken from."""
    generator = torch.Generator().manual_seed(seed)
    leading = (3, 2) if batched else (2,)
    q = torch.randn(*leading, queries, 3, generator=generator)
    k_, v = torch.randn(2, *leading, keys, 3, generator=generator)
    mask = torch.rand(queries, keys, generator=generator) < 0.7
    _, graph = headloom.attend(q, k_, v, mask=mask, keep=headloom.Top(k))
    _, weights = headloom.attend(q, k_, v, mask=mask, keep=headloom.All())
    return graph, weights


def test_shape_and_representation() -> None:
    graph = by_hand()
    assert graph.shape == (1, 2, 3)
    assert graph.k == 2
    assert not graph.batched
    assert repr(graph) == "AttentionGraph(shape=(1, 2, 3), k=2, edges=3)"


def test_a_row() -> None:
    row = by_hand()[0, 1]
    assert row.keys.tolist() == [1]
    assert row.weights.tolist() == [1.0]
    assert row.scores.tolist() == [5.0]
    assert (row.lse, row.entropy, row.rest, row.count) == (5.0, 0.0, 0.0, 1)
    row = by_hand()[0, 0]
    assert row.keys.tolist() == [2, 0]
    assert row.rest == 0.25
    assert row.count == 3


def test_adjacency() -> None:
    matrix = by_hand().adjacency(0)
    assert isinstance(matrix, scipy.sparse.csr_array)
    assert matrix.toarray().tolist() == [[0.25, 0, 0.5], [0, 1, 0]]
    assert matrix.indices.tolist() == [0, 2, 1]
    scores = by_hand().adjacency(0, of="scores")
    assert scores.nnz == 3  # the score 0 is an edge like the others
    np.testing.assert_allclose(scores.toarray(), [[0, 0, math.log(2)], [0, 5, 0]], rtol=1e-6)


def test_dense_and_strength() -> None:
    graph = by_hand()
    assert graph.to_dense().tolist() == [[[0.25, 0, 0.5], [0, 1, 0]]]
    assert graph.strength().tolist() == [[0.25, 1.0, 0.5]]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**20), st.integers(0, 7), st.booleans())
def test_dense_is_the_matrix_without_its_weak_edges(seed: int, k: int, batched: bool) -> None:
    graph, weights = random_graph(seed, k, batched=batched)
    dense = graph.to_dense()
    assert dense.shape == weights.shape == graph.shape
    kept = dense > 0
    torch.testing.assert_close(dense[kept], weights[kept])
    assert int(kept.sum()) == int(graph.count.clamp(max=k).sum())
    # No edge left out is stronger than one kept.
    for row, whole in zip(dense.flatten(0, -2), weights.flatten(0, -2), strict=True):
        if k and bool((row > 0).any()):
            left_out = whole[row == 0]
            assert not len(left_out) or left_out.max() <= row[row > 0].min()
    torch.testing.assert_close(graph.strength(), dense.sum(-2))
    torch.testing.assert_close(graph.rest, weights.sum(-1) - dense.sum(-1), rtol=0, atol=1e-6)
    if not batched:
        for head in range(2):
            np.testing.assert_allclose(graph.adjacency(head).toarray(), dense[head], rtol=1e-6)
            np.testing.assert_allclose(graph.adjacency(head - 2).toarray(), dense[head], rtol=1e-6)


def test_a_batch_is_taken_apart_by_index() -> None:
    graph, weights = random_graph(0, 2, batched=True)
    assert graph.batched
    assert len(graph) == 3
    one = graph[1]
    assert not one.batched
    assert one.shape == (2, 4, 5)
    assert torch.equal(one.keys, graph.keys[1])
    assert torch.equal(one.rest, graph.rest[1])
    np.testing.assert_array_less(one.to_dense(), weights[1] + 1e-6)
    assert len(list(graph)) == 3  # iteration ends
    assert torch.equal(graph[-1].keys, graph.keys[2])


class TestNetworkx:
    def test_two_sequences(self) -> None:
        graph = by_hand().to_networkx(0)
        assert isinstance(graph, networkx.DiGraph)
        assert set(graph.nodes) == {
            *(("query", 0), ("query", 1)),
            *(("key", 0), ("key", 1), ("key", 2)),
        }
        assert set(graph.edges) == {
            (("query", 0), ("key", 2)),
            (("query", 0), ("key", 0)),
            (("query", 1), ("key", 1)),
        }
        edge = graph.edges[("query", 0), ("key", 2)]
        assert edge["weight"] == 0.5
        assert edge["score"] == pytest.approx(math.log(2))

    def test_one_sequence(self) -> None:
        tokens, other = torch.randn(2, 1, 3, 2)
        _, caught = headloom.attend(tokens, other, other, mask=headloom.causal())
        graph = caught.to_networkx(0)
        assert graph.is_directed()
        assert list(graph.nodes) == [0, 1, 2]
        assert set(graph.edges) == {(0, 0), (1, 0), (1, 1), (2, 0), (2, 1), (2, 2)}
        received = {node: value for node, value in graph.in_degree(weight="weight")}  # noqa: C416
        for node, value in enumerate(caught.strength()[0].tolist()):
            assert received[node] == pytest.approx(value)

    def test_a_symmetric_score_gives_an_undirected_graph(self) -> None:
        tokens = torch.randn(1, 3, 2)
        _, caught = headloom.attend(tokens, tokens, tokens)
        graph = caught.to_networkx(0)
        assert not graph.is_directed()
        assert graph.number_of_edges() == 6  # 3 pairs and 3 loops
        expected = tokens[0] @ tokens[0].T / math.sqrt(2)
        for i, j, data in graph.edges(data=True):
            assert data["score"] == pytest.approx(float(expected[i, j]), abs=1e-6)
            assert "weight" not in data

    def test_a_symmetric_score_under_a_causal_mask_has_a_direction(self) -> None:
        tokens = torch.randn(1, 4, 2)
        _, caught = headloom.attend(tokens, tokens, tokens, mask=headloom.causal())
        assert caught.symmetric
        graph = caught.to_networkx(0)
        assert set(graph.edges) == {(i, j) for i in range(4) for j in range(i + 1)}
        graph.remove_edges_from([(i, i) for i in range(4)])
        assert networkx.is_directed_acyclic_graph(graph)
