"""Spectral clustering against NumPy's eigenvalues, NetworkX's cuts and every division there is."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

import headloom
from headloom.analysis.graphs import token_clusters as module
from headloom.analysis.graphs.token_clusters import token_clusters

networkx = pytest.importorskip("networkx")


def eigenvalues(weights: np.ndarray) -> np.ndarray:
    shared = (weights + weights.T) / 2
    root = np.sqrt(shared.sum(1))
    return np.linalg.eigvalsh(np.eye(len(root)) - shared / root[:, None] / root)


def cut(weights: np.ndarray, labels: np.ndarray) -> float:
    """The normalized cut, by NetworkX: an edge counts half to either end."""
    graph = networkx.DiGraph(weights)
    total = 0.0
    for label in set(labels.tolist()) - {-1}:
        members = set(np.flatnonzero(labels == label).tolist())
        others = set(np.flatnonzero((labels != label) & (labels >= 0)).tolist())
        crossing = networkx.cut_size(graph, members, others, weight="weight")
        nodes = graph.subgraph(members | others)
        ends = sum(
            nodes.out_degree(node, weight="weight") + nodes.in_degree(node, weight="weight")
            for node in members
        )
        total += crossing / ends
    return total


def planted(
    length: int, parts: int, strength: float
) -> tuple[headloom.AttentionMatrix, np.ndarray]:
    """Tokens of each part look at those of their part, in a random order; two heads."""
    random = np.random.default_rng(0)
    labels = random.permutation(np.arange(length) % parts)
    places = torch.eye(parts)[labels] * strength
    noise = torch.randn(2, length, parts, generator=torch.Generator().manual_seed(1))
    return headloom.AttentionMatrix(places + noise / 4, places + noise / 4, scale=1.0), labels


@pytest.mark.parametrize("number", [1, 2, 5])
@pytest.mark.parametrize("head", [None, 0, 2])
def test_eigenvalues_and_cut(case, number, head) -> None:
    for source, dense in ((case.matrix, case.dense), (case.graph, case.graph.to_dense())):
        weights = (dense.mean(0) if head is None else dense[head]).double().numpy()
        found = token_clusters(source, number, head=head)
        assert found.number == number == found.labels.max() + 1
        assert np.allclose(found.eigenvalues, eigenvalues(weights)[: number + 1], atol=2e-6)
        assert found.cut == pytest.approx(cut(weights, found.labels), abs=1e-5)
        assert found.least <= found.cut + 1e-6
        # Each is numbered by where it begins.
        firsts = [found.labels.tolist().index(label) for label in range(number)]
        assert firsts == sorted(firsts)


def test_no_division_is_below_the_least() -> None:
    matrix, _ = planted(9, 2, 1.0)
    found = token_clusters(matrix, 2, head=1)
    weights = matrix.to_dense()[1].double().numpy()
    divisions = (np.array((0, *rest)) for rest in itertools.product((0, 1), repeat=8) if any(rest))
    least = min(cut(weights, labels) for labels in divisions)
    assert found.least <= least + 1e-6
    assert found.cut == pytest.approx(least, abs=1e-5)


@pytest.mark.parametrize("number", [None, 5])
def test_planted_parts_are_found_both_ways(monkeypatch, number) -> None:
    """Formed, and by products alone; the number too, by the eigenvalues."""
    matrix, labels = planted(900, 5, 2.5)
    directly = token_clusters(matrix, number)
    monkeypatch.setattr(module, "DENSE", 8)
    products = token_clusters(matrix, number)
    for found in (directly, products):
        pairs = set(zip(found.labels.tolist(), labels.tolist(), strict=True))
        assert found.number == len(pairs) == 5
    assert np.allclose(directly.eigenvalues, products.eigenvalues, atol=1e-4)


@pytest.mark.parametrize("number", [None, 3])
def test_positions_that_are_left_out_are_no_part_of_the_graph(case, number) -> None:
    """As of the graph without them: no eigenvalue, no cluster is theirs."""
    found = token_clusters(case.matrix, number, without=[0, -1])
    inner = case.dense.double().mean(0).numpy()[1:-1, 1:-1]
    assert found.labels[0] == found.labels[-1] == -1 and (found.labels[1:-1] >= 0).all()
    expected = eigenvalues(inner)[: found.number + 1]
    assert np.allclose(found.eigenvalues, expected, atol=2e-6)
    assert found.cut == pytest.approx(cut(inner, found.labels[1:-1]), abs=1e-5)


def test_what_is_next_to_nothing_and_bad_input(case, pair_trace) -> None:
    one, two, empty = (
        headloom.AttentionMatrix(torch.ones(1, n, 2), torch.ones(1, n, 2)) for n in (1, 2, 0)
    )
    assert token_clusters(one, 5).labels.tolist() == [0]
    assert token_clusters(two, 2, without=[0, 1]).labels.tolist() == [-1, -1]
    assert token_clusters(empty).labels.shape == (0,)
    for options, error in (
        ({"number": 0}, "number is 0"), ({"number": 65}, "number is 65"),
        ({"without": [99]}, "no position 99"),
    ):  # fmt: skip
        with pytest.raises(headloom.InputError, match=error):
            token_clusters(case.matrix, **options)
    with pytest.raises(headloom.ShapeError, match="4 queries and 7 keys"):
        token_clusters(pair_trace.layer("cross", 0).graph)
