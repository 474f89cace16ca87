"""Attention flow against NetworkX."""

from __future__ import annotations

import pytest
import torch
from tests.analysis.dense_layer import layer_of_weights

import headloom
from headloom.analysis.graphs.flow import attention_flow
from headloom.errors import InputError
from headloom.formats.trace import TraceData
from headloom.mechanism.reference import graphs as reference

networkx = pytest.importorskip("networkx")


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
        (None, [layer.matrix.to_dense() for layer in trace.layers]),
        (False, [layer.graph.to_dense() for layer in trace.layers]),
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
    dense = {layer.kind: layer.graph.to_dense().mean(0) for layer in pair_trace.layers}
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


def test_bad_input_is_refused_in_a_line(make_trace) -> None:
    layer = layer_of_weights(torch.full((1, 3, 3), 1 / 3))
    trace = TraceData({"tokens": list("abc")}, (layer,))
    broken = torch.full((1, 3, 3), 1 / 3)
    broken[0, 1] = torch.nan
    lost = TraceData({"tokens": list("abc")}, (layer_of_weights(broken),))
    for of, end, options, error in (
        (trace, 3, {}, "position 3; the sequence has"),
        (trace, 0, {"kind": "cross"}, "no cross layer; it has encoder"),
        (make_trace(["a", "b", "c"], keep=1), 0, {"exact": True}, "queries and keys were not kept"),
        (lost, 0, {}, "not numbers"),
    ):
        with pytest.raises(InputError, match=error):
            attention_flow(of, 0, end, **options)
