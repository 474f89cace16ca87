"""Connected parts against NetworkX."""

from __future__ import annotations

import numpy as np
import pytest

import headloom
from headloom.analysis.graphs.components import components

networkx = pytest.importorskip("networkx")


def parts_of(labels: np.ndarray) -> set[frozenset[int]]:
    return {frozenset(np.flatnonzero(labels == label).tolist()) for label in set(labels.tolist())}


def thresholded(weights, threshold) -> networkx.DiGraph:
    graph = networkx.DiGraph()
    graph.add_nodes_from(range(len(weights)))
    graph.add_edges_from((weights >= threshold).nonzero().tolist())
    return graph


@pytest.mark.parametrize("strong", [False, True])
@pytest.mark.parametrize("threshold", [0.08, 0.2])
def test_networkx_finds_the_same_parts(case, threshold, strong) -> None:
    find = (
        networkx.strongly_connected_components if strong else networkx.weakly_connected_components
    )
    exact = components(case.matrix, threshold, strong=strong)
    kept = components(case.graph, threshold, strong=strong)
    for head, weights in enumerate(case.dense):
        expected = {frozenset(part) for part in find(thresholded(weights, threshold))}
        assert parts_of(exact.labels[head]) == expected
        assert exact.count[head] == len(expected)
        assert exact.largest[head] == max(map(len, expected))
        if kept.complete[head]:
            assert parts_of(kept.labels[head]) == expected
    assert exact.complete.all()
    assert (components(case.graph, 0.2).complete).all()  # a row has fewer than 8 such edges
    together = components(case.matrix, threshold, strong=strong, together=True)
    union = find(thresholded(case.dense.max(0).values, threshold))
    assert parts_of(together.labels[0]) == {frozenset(part) for part in union}


def test_kept_edges_say_when_they_may_not_be_all(case) -> None:
    kept = components(case.graph, 0.001)
    assert not kept.complete.any()


def test_what_is_no_threshold(case, pair_trace) -> None:
    with pytest.raises(headloom.InputError, match="threshold=0"):
        components(case.graph, 0)
    with pytest.raises(headloom.ShapeError, match="4 queries and 7 keys"):
        components(pair_trace.layer("cross", 0).graph)
