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


def same_parts(first: np.ndarray, second: np.ndarray) -> bool:
    pairs = set(zip(first.tolist(), second.tolist(), strict=True))
    return len(pairs) == len(set(first.tolist())) == len(set(second.tolist()))


@pytest.mark.parametrize("number", [1, 2, 5])
def test_eigenvalues_and_cut(case, number) -> None:
    found = token_clusters(case.matrix, number)
    for head, weights in enumerate(case.dense.double().numpy()):
        assert found.number[head] == number == found.labels[head].max() + 1
        expected = eigenvalues(weights)[: number + 1]
        assert np.allclose(found.eigenvalues[head], expected, atol=2e-6)
        assert float(found.cut.lower[head]) == float(found.cut.upper[head])
        assert abs(float(found.cut.upper[head]) - cut(weights, found.labels[head])) < 1e-5
        assert float(found.least[head]) <= float(found.cut.upper[head]) + 1e-6
        # Each is numbered by where it begins.
        firsts = [found.labels[head].tolist().index(label) for label in range(number)]
        assert firsts == sorted(firsts)


def test_of_the_mean_of_heads(case) -> None:
    found = token_clusters(case.matrix, 3, together=True)
    mean = case.dense.double().mean(0).numpy()
    assert found.labels.shape == (1, len(mean))
    assert np.allclose(found.eigenvalues[0], eigenvalues(mean)[:4], atol=2e-6)
    assert abs(float(found.cut.upper[0]) - cut(mean, found.labels[0])) < 1e-5
    kept = token_clusters(case.graph, 3, together=True)
    assert kept.cut.lower[0] <= cut(mean, kept.labels[0]) <= kept.cut.upper[0]


def test_no_division_is_below_the_least() -> None:
    matrix, _ = planted(9, 2, 1.0)
    found = token_clusters(matrix, 2)
    for head in range(2):
        weights = matrix.dense()[head].double().numpy()
        cuts = [
            cut(weights, np.array((0, *others)))
            for others in itertools.product((0, 1), repeat=8)
            if any(others)
        ]
        assert found.least[head] <= min(cuts) + 1e-6
        assert float(found.cut.upper[head]) == pytest.approx(min(cuts), abs=1e-5)


@pytest.mark.parametrize("number", [None, 5])
def test_planted_parts_are_found_both_ways(monkeypatch, number) -> None:
    """Formed, and by products alone; the number too, by the eigenvalues."""
    matrix, labels = planted(900, 5, 2.5)
    directly = token_clusters(matrix, number)
    monkeypatch.setattr(module, "DENSE", 8)
    products = token_clusters(matrix, number, tolerance=1e-4)
    for found in (directly, products):
        assert found.number.tolist() == [5, 5]
        assert all(same_parts(found.labels[head], labels) for head in range(2))
    assert torch.allclose(directly.eigenvalues, products.eigenvalues, atol=1e-4)
    assert float(products.bound.max()) <= 1e-4
    for off, own in zip(products.bound, products.eigenvalues, strict=True):
        assert bool((off > 0).all()) and len(off) == len(own) == 6
    with pytest.raises(
        headloom.InputError, match=r"after 1 products, and .* for more steps= than 4"
    ):
        token_clusters(matrix, number, tolerance=1e-9, steps=4)


def test_what_is_below_none_is_below_none(monkeypatch) -> None:
    """A narrow window, whose eigenvalues are close to each other and to 0: ended early."""
    queries, keys = torch.randn(2, 1, 900, 8, generator=torch.Generator().manual_seed(0))
    mask = headloom.causal() & headloom.window(8, 0)
    matrix = headloom.AttentionMatrix(queries, keys, mask=mask)
    true = eigenvalues(matrix.dense()[0].double().numpy())[:6].sum()
    monkeypatch.setattr(module, "DENSE", 8)
    for tolerance in (1e-2, 1e-3):
        found = token_clusters(matrix, 6, tolerance=tolerance)
        assert float(found.least[0]) <= true
    assert 0 < float(token_clusters(matrix, 6).least[0]) <= true


def test_kept_edges_give_intervals(case) -> None:
    kept = token_clusters(case.graph, 4)
    for head, weights in enumerate(case.dense.double().numpy()):
        true = cut(weights, kept.labels[head])
        assert kept.cut.lower[head] <= true <= kept.cut.upper[head]
    some = token_clusters(case.graph)
    fewer = some.number.max() - some.number
    assert some.leaving.lower.isnan().sum(-1).tolist() == fewer.tolist()
    assert bool((some.cut.upper <= torch.from_numpy(some.number)).all())


def test_positions_left_out(case) -> None:
    found = token_clusters(case.matrix, 3, without=[0, -1])
    for head, weights in enumerate(case.dense.double().numpy()):
        labels = found.labels[head]
        assert labels[0] == labels[-1] == -1 and (labels[1:-1] >= 0).all()
        inner = weights[1:-1, 1:-1]
        assert np.allclose(found.eigenvalues[head], eigenvalues(inner)[:4], atol=2e-6)
        assert abs(float(found.cut.upper[head]) - cut(inner, labels[1:-1])) < 1e-5


@pytest.mark.parametrize("dense", [1024, 8])
@pytest.mark.parametrize("number", [None, 7])
def test_positions_that_are_left_out_are_no_part_of_the_graph(monkeypatch, dense, number) -> None:
    """As of the graph without them: no eigenvalue, no coordinate, no cluster is theirs."""
    monkeypatch.setattr(module, "DENSE", dense)
    length = 10 if dense > 8 else 320
    for seed in range(4):
        draw = np.random.default_rng(seed).dirichlet(np.full(length, 0.3), length)
        whole, part = (
            headloom.from_weights(
                [torch.tensor(weights)[None].float()], partial=True, keep=headloom.All()
            )
            for weights in (draw, draw[2:, 2:])
        )
        found = token_clusters(whole.layers[0].graph, number, without=[0, 1])
        expected = token_clusters(part.layers[0].graph, number)
        assert found.labels[0, :2].tolist() == [-1, -1]
        assert found.number.tolist() == expected.number.tolist()
        assert found.least == pytest.approx(expected.least, abs=2e-3)
        there = min(found.eigenvalues.shape[1], expected.eigenvalues.shape[1])
        torch.testing.assert_close(
            found.eigenvalues[:, :there], expected.eigenvalues[:, :there], rtol=0, atol=2e-4
        )
        assert found.eigenvalues[:, there:].isnan().all()


def test_what_is_next_to_nothing() -> None:
    one = headloom.AttentionMatrix(torch.ones(1, 1, 2), torch.ones(1, 1, 2))
    assert token_clusters(one, 5).labels.tolist() == [[0]]
    two = headloom.AttentionMatrix(torch.ones(1, 2, 2), torch.ones(1, 2, 2))
    assert token_clusters(two, 2, without=[0, 1]).labels.tolist() == [[-1, -1]]
    empty = headloom.AttentionMatrix(torch.ones(1, 0, 2), torch.ones(1, 0, 2))
    assert token_clusters(empty).labels.shape == (1, 0)
    alike = token_clusters(two, 2)  # nothing tells them apart
    assert alike.number.tolist() in ([1], [2])


def test_bad_input(case, pair_trace) -> None:
    for given, error in (
        ({"number": 0}, "number is 0"), ({"number": 65}, "number is 65"),
        ({"without": [99]}, "no position 99"), ({"tolerance": 0}, "tolerance=0"),
        ({"steps": 0}, "steps is 0"), ({"seed": -1}, "seed is -1"),
    ):  # fmt: skip
        with pytest.raises(headloom.InputError, match=error):
            token_clusters(case.matrix, **given)
    with pytest.raises(headloom.ShapeError, match="4 queries and 7 keys"):
        token_clusters(pair_trace.layer("cross", 0).graph)
