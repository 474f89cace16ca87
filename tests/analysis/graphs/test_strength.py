"""In-strength, heavy hitters, reciprocity, parts: against dense weights and NetworkX."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import headloom
from headloom.analysis.graphs.spectrum import effective_rank, energy_rank, pagerank
from headloom.analysis.graphs.strength import (
    components,
    heavy_hitters,
    received,
    reciprocity,
)
from headloom.errors import InputError, ShapeError
from headloom.mechanism.reference import graphs as reference

networkx = pytest.importorskip("networkx")


def kept(case) -> torch.Tensor:
    """The dense matrix of the kept edges, float64."""
    return case.graph.to_dense().double()


def test_received_is_the_sum_of_columns(case) -> None:
    for source, weights in ((case.matrix, case.dense), (case.graph, kept(case))):
        expected = torch.stack([reference.in_strength(head) for head in weights])
        assert torch.allclose(received(source).double(), expected, atol=1e-5)
    degrees = dict(case.graph.to_networkx(0).in_degree(weight="weight"))
    of_networkx = torch.tensor([degrees[node] for node in range(60)])
    assert torch.allclose(received(case.graph)[0], of_networkx.float(), atol=1e-6)


def smallest_set(weights: torch.Tensor, share: float) -> int:
    """By trying: how many keys, largest first, until they hold the share."""
    got = sorted(weights.sum(0).tolist(), reverse=True)
    total, count = sum(got), 0
    while sum(got[:count]) < share * total * (1 - 1e-7):
        count += 1
    return count


@pytest.mark.parametrize("share", [0.1, 0.9])
def test_heavy_hitters_are_the_smallest_set(case, share) -> None:
    for source, weights in ((case.matrix, case.dense), (case.graph, kept(case))):
        found = heavy_hitters(source, share)
        for head, of_head in enumerate(weights):
            assert int(found.count[head]) == smallest_set(of_head, share)
            got = of_head.sum(0)
            assert float(got[found.of(head)].sum()) >= share * float(got.sum()) * (1 - 1e-5)
        together = heavy_hitters(source, share, together=True)
        assert int(together.count[0]) == smallest_set(weights.sum(0), share)


def test_reciprocity_is_that_of_dense_weights(case) -> None:
    for source, weights in ((case.matrix, case.dense), (case.graph, kept(case))):
        expected = torch.stack([reference.reciprocity(head) for head in weights]).float()
        assert torch.allclose(reciprocity(source), expected, atol=1e-5)


def test_minilm_known_values(minilm_trace) -> None:
    """The mean reciprocity over heads of each layer, as measured once by another program."""
    for sources in ("matrix", "graph"):
        means = [float(reciprocity(getattr(x, sources)).mean()) for x in minilm_trace.layers]
        expected = [0.4599, 0.1730, 0.1607, 0.2014, 0.1414, 0.3029]
        assert means == pytest.approx(expected, abs=6e-5)


@pytest.mark.parametrize("strong", [False, True])
@pytest.mark.parametrize("threshold", [0.08, 0.2])
def test_networkx_finds_the_same_parts(case, threshold, strong) -> None:
    find = (
        networkx.strongly_connected_components if strong else networkx.weakly_connected_components
    )

    def parts(weights: torch.Tensor) -> set[frozenset[int]]:
        graph = networkx.DiGraph()
        graph.add_nodes_from(range(len(weights)))
        graph.add_edges_from((weights >= threshold).nonzero().tolist())
        return {frozenset(part) for part in find(graph)}

    def labelled(labels: np.ndarray) -> set[frozenset[int]]:
        return {frozenset(np.flatnonzero(labels == n).tolist()) for n in set(labels.tolist())}

    for source, weights in ((case.matrix, case.dense), (case.graph, kept(case))):
        found = components(source, threshold, strong=strong)
        for head, of_head in enumerate(weights):
            expected = parts(of_head)
            assert labelled(found.labels[head]) == expected
            assert found.count[head] == len(expected)
            assert found.largest[head] == max(map(len, expected))
        together = components(source, threshold, strong=strong, together=True)
        assert labelled(together.labels[0]) == parts(weights.max(0).values)


@pytest.mark.parametrize("length", [0, 3])
def test_nobody_who_may_look_needs_no_key(length) -> None:
    tokens = torch.randn(2, length, 4, generator=torch.Generator().manual_seed(0))
    nobody = torch.zeros(length, length, dtype=torch.bool)
    _, graph = headloom.attend(tokens, tokens, tokens, mask=nobody, keep=headloom.Top(2))
    for source in (graph, headloom.AttentionMatrix(tokens, tokens, mask=nobody)):
        assert not heavy_hitters(source).count.any()
        assert not heavy_hitters(source, together=True).count.any()
        assert reciprocity(source).tolist() == energy_rank(source).tolist() == [0, 0]
        assert effective_rank(source).tolist() == [0, 0]
        assert pagerank(source).heads.shape == (2, length)


MEASURES = {
    "components": components,
    "effective_rank": effective_rank,
    "energy_rank": energy_rank,
    "heavy_hitters": heavy_hitters,
    "pagerank": pagerank,
    "received": received,
    "reciprocity": reciprocity,
}


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("of_edges", [False, True])
def test_weights_that_are_not_numbers_are_refused(measure, of_edges) -> None:
    tokens = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(0))
    broken = tokens.clone()
    broken[1, 3] = torch.nan
    _, graph = headloom.attend(broken, tokens, tokens, keep=headloom.Top(2))
    source = graph if of_edges else headloom.AttentionMatrix(broken, tokens)
    with pytest.raises(InputError, match=r"head 1, query 3 are not numbers .* isnan\(lse\)"):
        MEASURES[measure](source)


@pytest.mark.parametrize("measure", [components, pagerank, reciprocity])
def test_two_sequences_are_refused_where_positions_must_correspond(measure, pair_trace) -> None:
    with pytest.raises(ShapeError, match="4 queries and 7 keys"):
        measure(pair_trace.layer("cross", 0).graph)
