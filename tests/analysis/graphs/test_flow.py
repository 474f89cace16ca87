"""Attention flow against NetworkX, and the strongest paths against all paths multiplied out."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

import headloom
from headloom.analysis.dense_layer import layer_of_weights
from headloom.analysis.graphs.flow import attention_flow
from headloom.analysis.graphs.paths import strongest_paths
from headloom.errors import InputError
from headloom.formats.trace import TraceData
from headloom.mechanism.reference import graphs as reference

networkx = pytest.importorskip("networkx")
Array = np.ndarray[Any, Any]


@pytest.fixture
def trace(language_model) -> headloom.Trace:
    """Two decoder layers over 12 tokens, the three strongest edges of each query."""
    tokens = torch.tensor([3, 9, 14, 27, 5, 2, 9, 9, 31, 8, 40, 3])
    with torch.no_grad():
        for layer in language_model.layers:
            layer.w_q.weight *= 4
    return headloom.trace(language_model, tokens, keep=headloom.Top(3))


def test_networkx_finds_the_same_flows(trace) -> None:
    for exact, dense in (
        (None, [layer.matrix.dense() for layer in trace.layers]),
        (False, [layer.graph.dense() for layer in trace.layers]),
    ):
        layers = [reference.with_residual(weights.mean(0).double()) for weights in dense]
        for position in (4, 11):
            expected = reference.flow(layers, position)
            found = attention_flow(trace, position, range(12), exact=exact)
            assert torch.allclose(found, expected, atol=1e-6)


def test_two_ways_by_hand() -> None:
    """Position 1 reaches position 0 two ways, each as wide as its narrowest edge."""
    rows = [[0.25, 0.75], [0.5, 0.5]], [[1.0, 0.0], [0.5, 0.5]]
    trace = headloom.from_weights([torch.tensor([of]) for of in rows], kind="encoder")
    found = attention_flow(trace, 1, [0, 1], residual=0.0)
    assert found.tolist() == pytest.approx([0.75, 1.0], abs=1e-6)


def test_flows_between_two_sequences(pair_trace) -> None:
    dense = {layer.kind: layer.graph.dense().mean(0) for layer in pair_trace.layers}
    network = networkx.DiGraph()

    def add(start: str, end: str, weights: torch.Tensor) -> None:
        for i, row in enumerate((0.5 * weights).tolist()):
            for j, capacity in enumerate(row):
                before = network.get_edge_data((start, i), (end, j), {"capacity": 0})["capacity"]
                network.add_edge((start, i), (end, j), capacity=before + capacity)

    add("source 1", "source 0", dense["encoder"] + torch.eye(7))
    add("target 1", "target 0", dense["decoder"] + torch.eye(4))
    add("target 2", "target 1", torch.eye(4))
    add("target 2", "source 1", dense["cross"])
    expected = [
        networkx.maximum_flow_value(network, ("target 2", 3), ("source 0", j)) for j in range(7)
    ]
    assert attention_flow(pair_trace, 3, range(7)).tolist() == pytest.approx(expected, abs=1e-6)


def random_weights(seed: int, heads: int, length: int, causal: bool = False) -> Array:
    scores = np.random.default_rng(seed).normal(0, 2, (heads, length, length))
    if causal:
        scores = np.where(np.tri(length, dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def by_hand(steps: list[Array], start: int, end: int) -> list[tuple[float, tuple[int, ...]]]:
    """Every path from (L, start) to (0, end) and its product, largest first. steps: A_1 ... A_L."""
    found = []
    inner = [range(step.shape[0]) for step in steps[:-1]]
    for between in itertools.product(*reversed(inner)):
        path = (start, *between, end)
        factors = [step[path[place], path[place + 1]] for place, step in enumerate(reversed(steps))]
        found.append((float(np.prod(factors)), path))
    return sorted(found, key=lambda one: (-one[0], one[1]))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("residual", [0.5, 0.0])
def test_paths_of_one_sequence(causal: bool, residual: float) -> None:
    weights = [random_weights(seed, 3, 5, causal) for seed in range(4)]
    mask = "causal" if causal else "all"
    layers = [layer_of_weights(torch.from_numpy(of), mask=mask) for of in weights]
    trace = TraceData({"tokens": list("abcde")}, tuple(layers))
    steps = [residual * np.eye(5) + (1 - residual) * of.mean(0) for of in weights]
    rollout = steps[3] @ steps[2] @ steps[1] @ steps[0]
    for start, end in ((4, 0), (3, 1), (2, 2), (-1, -4)):
        expected = [one for one in by_hand(steps, start % 5, end % 5) if one[0] > 0][:7]
        found = strongest_paths(trace, start, end, count=7, residual=residual)
        products = [path.product for path in found.paths]
        assert products == pytest.approx([one for one, _ in expected], rel=1e-5)
        places = [tuple(place for _, place in path.steps) for path in found.paths]
        assert places == [path for _, path in expected]
        assert found.together == pytest.approx(rollout[start, end], rel=1e-5)
        assert found.rest == 0
    if causal:
        ahead = strongest_paths(trace, 1, 3)
        assert (ahead.paths, ahead.together) == ([], 0)


def test_paths_between_two_sequences(pair_trace: Any) -> None:
    """Of an encoder, a decoder and a cross layer: the target holds the source through all three."""
    encoder, decoder, cross = (
        layer.graph.dense().double().mean(0).numpy() for layer in pair_trace.layers
    )
    # Nodes: 7 of the source, then 4 of the target.
    steps = []
    for own, other, mean in ((0, 0, encoder), (7, 7, decoder), (7, 0, cross)):
        step = np.eye(11)
        rows = slice(own, own + len(mean))
        step[rows] *= 0.5
        step[rows, other : other + mean.shape[1]] += mean / 2
        steps.append(step)
    found = strongest_paths(pair_trace, 3, 6, count=4)
    expected = by_hand(steps, 7 + 3, 6)[:4]
    assert [path.product for path in found.paths] == pytest.approx(
        [one for one, _ in expected], rel=1e-5
    )
    first = found.paths[0]
    assert tuple(at + 7 * (name == "target") for name, at in first.steps) == expected[0][1]
    held = (steps[2] @ steps[1] @ steps[0])[10]
    assert found.together == pytest.approx(held[6], rel=1e-5)


def test_of_kept_edges_paths_are_along_these_and_what_is_lacking_is_said() -> None:
    weights = [random_weights(seed, 2, 6) for seed in range(3)]
    kept = [layer_of_weights(torch.from_numpy(of), keep=3) for of in weights]
    trace = TraceData({"tokens": list("abcdef")}, tuple(kept))
    few = [np.where(of >= np.sort(of, -1)[..., -3:-2], of, 0).mean(0) for of in weights]
    steps = [np.eye(6) / 2 + mean / 2 for mean in few]
    rollout = steps[2] @ steps[1] @ steps[0]
    for start, end in ((0, 5), (3, 3), (5, 1)):
        found = strongest_paths(trace, start, end, count=3)
        assert found.together == pytest.approx(rollout[start, end], rel=1e-5)
        assert found.rest == pytest.approx(1 - rollout[start].sum(), rel=1e-5)
        expected = [one for one, _ in by_hand(steps, start, end)[:3] if one > 0]
        assert [path.product for path in found.paths] == pytest.approx(expected, rel=1e-5)


def test_equal_products_do_not_try_every_path() -> None:
    """Of even weights every path has the same product: the first ones come at once."""
    even = layer_of_weights(torch.full((1, 40, 40), 1 / 40))
    trace = TraceData({"tokens": ["t"] * 40}, (even,) * 12)
    found = strongest_paths(trace, 7, 9, count=3, residual=0.0)
    assert [path.product for path in found.paths] == pytest.approx([40.0**-12] * 3)
    assert [place for _, place in found.paths[0].steps] == [7, *[0] * 11, 9]
    assert found.together == pytest.approx(1 / 40)


def test_bad_input_is_refused_in_a_line(make_trace) -> None:
    layer = layer_of_weights(torch.full((1, 3, 3), 1 / 3))
    trace = TraceData({"tokens": list("abc")}, (layer,))
    few = make_trace(["a", "b", "c"], keep=1)
    broken = torch.full((1, 3, 3), 1 / 3)
    broken[0, 1] = torch.nan
    lost = TraceData({"tokens": list("abc")}, (layer_of_weights(broken),))
    for ask in (strongest_paths, attention_flow):
        for of, end, options, error in (
            (trace, 3, {}, "position 3; the sequence has"),
            (trace, 0, {"kind": "cross"}, "no cross layer; it has encoder"),
            (few, 0, {"exact": True}, "queries and keys were not kept"),
            (lost, 0, {}, "not numbers"),
        ):
            with pytest.raises(InputError, match=error):
                ask(of, 0, end, **options)
