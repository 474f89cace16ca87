"""Attention flow against NetworkX on the dense network."""

from __future__ import annotations

import json

import pytest
import torch

import headloom
from headloom.analysis.graphs.flow import attention_flow
from headloom.cli import main
from headloom.cli.verbs import flow as flow_verb
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
    dense = [layer.matrix.dense().mean(0).double() for layer in trace.layers]
    layers = [reference.with_residual(weights) for weights in dense]
    for position in (4, 11):
        expected = reference.flow(layers, position)
        found = attention_flow(trace, position, range(12))
        assert torch.allclose(found.middle, expected, atol=1e-6)
        assert float(found.width.max()) < 1e-5
        assert bool((found.lower <= expected).all()) and bool((expected <= found.upper).all())


@pytest.mark.parametrize("large", [False, True])
def test_from_all_weights_the_interval_holds_the_flow_of_float64(large: bool) -> None:
    """What float32 rounds of a weight is more than 2^-30, the unit of a capacity."""
    generator = torch.Generator().manual_seed(2)
    queries, keys = 3 * torch.randn(2, 2, 2, 8, 4, generator=generator)
    if large:
        queries[..., 0], keys[..., 0] = 40, 40
    trace = headloom.from_queries_keys(
        queries, keys, mask=headloom.causal(), kind="decoder", scale=0.5, keep=headloom.Top(8)
    )
    ahead = torch.ones(8, 8, dtype=torch.bool).triu(1)
    layers = [
        reference.with_residual(
            (q @ k.transpose(1, 2) / 2).masked_fill(ahead, -torch.inf).softmax(-1).mean(0)
        )
        for q, k in zip(queries.double(), keys.double(), strict=True)
    ]
    expected = reference.flow(layers, 7)
    for exact in (True, False):
        found = attention_flow(trace, 7, range(8), exact=exact)
        assert bool((found.lower <= expected).all()) and bool((expected <= found.upper).all())
        assert float(found.width.max()) < 1e-3


def test_kept_edges_give_an_interval(trace) -> None:
    dense = [layer.matrix.dense().mean(0).double() for layer in trace.layers]
    expected = reference.flow([reference.with_residual(weights) for weights in dense], 11)
    widths = []
    for edges in (1, 3, None):
        found = attention_flow(trace, 11, range(12), exact=False, edges=edges)
        assert bool((found.lower <= expected + 1e-7).all())
        assert bool((expected <= found.upper + 1e-7).all())
        widths.append(float(found.width.mean()))
    assert widths[0] > widths[1] > widths[2] > 0.01


def test_two_ways_by_hand() -> None:
    """Position 1 reaches position 0 two ways, each as wide as its narrowest edge."""
    from headloom.api.trace import Trace
    from headloom.formats.trace import LayerInMemory, TraceLayer

    layers = []
    for number, rows in enumerate(([[0.25, 0.75], [0.5, 0.5]], [[1.0, 0.0], [0.5, 0.5]])):
        scores = torch.tensor(rows).log()[None]
        _, graph = headloom.attend(
            torch.zeros(1, 2, 1), torch.zeros(1, 2, 1), torch.zeros(1, 2, 1), bias=scores,
            keep=headloom.Top(2),
        )  # fmt: skip
        layers.append(
            TraceLayer(
                name=str(number),
                kind="encoder",
                index=number,
                shape=(1, 2, 2),
                queries_from="tokens",
                keys_from="tokens",
                query_tokens=["a", "b"],
                key_tokens=["a", "b"],
                scale=1.0,
                data=LayerInMemory(graph),
            )
        )
    trace = Trace({"tokens": ["a", "b"]}, tuple(layers))
    found = attention_flow(trace, 1, [0, 1], residual=0.0)
    assert torch.allclose(found.lower, torch.tensor([0.75, 1.0]).double(), atol=1e-6)


def test_between_two_sequences(pair_trace) -> None:
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
    found = attention_flow(pair_trace, 3, range(7))
    assert found.lower.tolist() == pytest.approx(expected, abs=1e-6)


def test_what_there_is_not(trace, make_trace) -> None:
    with pytest.raises(headloom.InputError, match="flow: no input position 12"):
        attention_flow(trace, 0, 12)
    with pytest.raises(headloom.InputError, match="queries and keys were not kept"):
        attention_flow(make_trace(["a", "b"], keep=1), 0, 0, exact=True)


def run(*arguments: object) -> int:
    try:
        main([str(argument) for argument in arguments])
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def test_the_command(trace, tmp_path, capsys, monkeypatch) -> None:
    trace.save(tmp_path / "t")
    words = ("flow", tmp_path / "t", "--token", "-1", "--limit", "3")
    assert run(*words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert run(*words, "--json") == 0
    said = json.loads(capsys.readouterr().out)
    expected = attention_flow(trace, 11, range(12))
    assert torch.allclose(torch.tensor(said["lower"]).double(), expected.lower)
    best = int(expected.lower.argmax())
    *both, place = lines[1].split()[:3]
    assert place == str(best)
    assert float(both[0]) <= float(expected.lower[best]) <= float(both[0]) + 1.1e-6
    assert float(both[1]) - 1.1e-6 <= float(expected.upper[best]) <= float(both[1])
    assert run("flow", tmp_path / "t", "--from", "-1", "--from", "2", "--kept", "--json") == 0
    assert json.loads(capsys.readouterr().out)["targets"] == [-1, 2]
    monkeypatch.setattr(flow_verb, "FLOWS", 11)
    for options, said in (
        (("--from", "12"), "no input position 12"),
        ((), "12 input positions"),
    ):
        assert run("flow", tmp_path / "t", *options) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert said in line


def test_what_no_path_leads_to_is_0_and_what_is_small_is_not(tmp_path, capsys) -> None:
    """Of one layer: half of each weight, and half more of the token itself."""
    weights = torch.tensor([[[1.0, 0, 0, 0], [1 - 2e-5, 2e-5, 0, 0], [0.5, 0, 0.5, 0], [0.25] * 4]])
    headloom.from_weights(weights, keep=headloom.All(), save=tmp_path / "t")
    for verb, numbers in (("rollout", 1), ("flow", 2)):
        for token, expected in ((0, [1, 0, 0, 0]), (1, [0.49999, 0.50001, 0, 0])):
            assert run(verb, tmp_path / "t", "--token", str(token)) == 0
            rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:5]]
            by_place = [row[:numbers] for row in sorted(rows, key=lambda row: int(row[numbers]))]
            for row, number in zip(by_place, expected, strict=True):
                assert [float(end) for end in row] == pytest.approx([number] * numbers, abs=1.1e-6)
                assert number or row == ["0"] * numbers
    weights = torch.tensor([[[1.0, 0, 0], [1 - 2e-5, 2e-5, 0], [1 - 4e-5, 2e-5, 2e-5]]])
    headloom.from_weights(weights, keep=headloom.All(), save=tmp_path / "small")
    assert run("rollout", tmp_path / "small") == 0
    # A lower bound: rounded down.
    assert "\n  9.99999e-06       1  " in capsys.readouterr().out
