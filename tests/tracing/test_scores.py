"""Modules that attend by other scores than products, and over a graph, held against float64."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.tracing.module_weights import TOLERANCE, by_heads, check_unchanged, dense, run, traced
from torch import Tensor, nn
from torch.nn.functional import elu, leaky_relu, normalize

import headloom

HEADS, DEPTH, LENGTH = 2, 4, 7


class Attends(nn.Module):
    """Attention by a score, with whatever else is given."""

    def __init__(self, score: headloom.Score, **rules: Any) -> None:
        super().__init__()
        self.queries, self.keys = (nn.Linear(8, HEADS * DEPTH, bias=False) for _ in range(2))
        self.score, self.rules = score, rules

    def forward(self, x: Tensor) -> Tensor:
        queries, keys = (
            part(x).unflatten(-1, (-1, DEPTH)).transpose(1, 2) for part in (self.queries, self.keys)
        )
        return headloom.attention(queries, keys, keys, score=self.score, **self.rules)


class Cosine(headloom.Score):
    """Somebody's own, with a layer in it that knows one type of numbers alone."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(DEPTH, DEPTH).requires_grad_(False)

    def __call__(self, queries: Tensor, keys: Tensor) -> Tensor:
        return normalize(self.layer(queries), dim=-1) @ normalize(keys, dim=-1).mT


def traced_all(model: nn.Module, x: Tensor) -> list[headloom.Trace]:
    traces = headloom.trace(model, x, keep=headloom.All())
    assert isinstance(traces, list)
    return traces


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


A, S = drawn(HEADS, DEPTH, DEPTH), drawn(DEPTH, DEPTH)
W, U, V = drawn(5, DEPTH), drawn(6, DEPTH)[:5], drawn(5)
FIRST, SECOND = drawn(HEADS, DEPTH), drawn(DEPTH)
COSINE = Cosine()

#: From queries and keys in float64 to scores, as the papers have them.
SCORES: dict[str, tuple[headloom.Score, Any]] = {
    "bilinear": (
        headloom.Bilinear(A), lambda q, k: torch.einsum("bhid,hde,bhje->bhij", q, A.double(), k)
    ),
    "symmetric": (
        headloom.Bilinear(S, symmetric=True),
        lambda q, k: (
            torch.einsum("bhid,de,bhje->bhij", q, S.double(), k)
            + torch.einsum("bhid,ed,bhje->bhij", q, S.double(), k)
        ) / 2,
    ),
    "additive": (
        headloom.Additive(W, U, V),
        lambda q, k: torch.einsum(
            "n,bhijn->bhij",
            V.double(),
            ((q @ W.double().T)[:, :, :, None] + (k @ U.double().T)[:, :, None]).tanh(),
        ),
    ),
    "graph attention": (
        headloom.GraphAttention(FIRST, SECOND),
        lambda q, k: leaky_relu(
            torch.einsum("hd,bhid->bhi", FIRST.double(), q)[..., None]
            + (k @ SECOND.double())[:, :, None],
            0.2,
        ),
    ),
    "graph attention 2": (
        headloom.GraphAttentionV2(FIRST),
        lambda q, k: torch.einsum(
            "hd,bhijd->bhij",
            FIRST.double(),
            leaky_relu(q[:, :, :, None] + k[:, :, None], 0.2),
        ),
    ),
    "somebody's own": (
        COSINE,
        lambda q, k: (
            normalize(q @ COSINE.layer.weight.double().T + COSINE.layer.bias.double(), dim=-1)
            @ normalize(k, dim=-1).mT
        ),
    ),
}  # fmt: skip
BIAS, SINKS, CAP, SCALE = drawn(1, HEADS, LENGTH, LENGTH), drawn(HEADS), 2.0, 0.7


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("ruled", [False, True])
def test_every_score_is_traced(name: str, ruled: bool, tmp_path: Path) -> None:
    score, formula = SCORES[name]
    rules: dict[str, Any] = {}
    if ruled:
        rules = {"mask": headloom.causal(), "bias": BIAS, "sinks": SINKS, "softcap": CAP}
        rules["scale"] = SCALE
    model, x = Attends(score, **rules).eval(), drawn(1, LENGTH, 8)
    q, k = (by_heads(part(x), HEADS).detach() for part in (model.queries, model.keys))
    scores = formula(q, k)
    if ruled:
        scores = CAP * (SCALE * scores / CAP).tanh() + BIAS
        scores = scores.masked_fill(torch.ones(LENGTH, LENGTH).triu(1).bool(), -torch.inf)
        column = SINKS.double()[None, :, None, None].expand(1, HEADS, LENGTH, 1)
        scores = torch.cat((scores, column), -1)
    expected = scores.softmax(-1)[0, ..., :LENGTH]
    trace = traced(model, x, save=tmp_path / "trace.loom")
    for one in (trace, headloom.open(tmp_path / "trace.loom")):
        [layer] = one.layers
        assert float((dense(layer) - expected).abs().max()) <= TOLERANCE
        assert layer.kind == ("decoder" if ruled else "encoder")
        assert layer.deviation is not None and layer.deviation <= TOLERANCE
        if name in ("bilinear", "symmetric"):
            assert layer.matrix is not None
            assert float((layer.matrix.to_dense() - expected).abs().max()) <= TOLERANCE
        else:
            said = f"its score, {type(score).__name__}, is not a product of queries and keys"
            assert layer.matrix is None and layer.no_matrix == said
        norms = layer.value_norms
        assert norms is not None
        torch.testing.assert_close(norms.double(), k[0].norm(dim=-1), atol=1e-5, rtol=1e-5)
    check_unchanged(model, x)


@pytest.mark.parametrize("kv_heads", [2, 1])
@pytest.mark.parametrize("relative", ["shaw", "alibi"])
def test_a_bilinear_score_beside_positions(relative: str, kv_heads: int) -> None:
    """Shaw's positions meet the queries, not what A makes of them; ALiBi's meet neither."""
    table, slopes, x = drawn(5, DEPTH), torch.tensor([0.5, 0.25]), drawn(2, LENGTH, 8)
    rule = headloom.Shaw(table) if relative == "shaw" else headloom.ALiBi(slopes)
    model = Attends(headloom.Bilinear(A), relative=rule).eval()
    model.keys = nn.Linear(8, kv_heads * DEPTH, bias=False)
    q, k = by_heads(model.queries(x), HEADS), by_heads(model.keys(x), kv_heads)
    k = k.repeat_interleave(HEADS // kv_heads, 1)
    scores = torch.einsum("bhid,hde,bhje->bhij", q, A.double(), k).detach()
    away = torch.arange(LENGTH)[None] - torch.arange(LENGTH)[:, None]
    if relative == "shaw":
        places = table.double()[away.clamp(-2, 2) + 2]
        scores = scores + torch.einsum("bhid,ijd->bhij", q, places).detach()
    else:
        scores = scores - slopes.double()[:, None, None] * away.abs()
    for trace, expected in zip(traced_all(model, x), scores.softmax(-1), strict=True):
        [layer] = trace.layers
        assert float((dense(layer) - expected).abs().max()) <= TOLERANCE
        if relative == "shaw":
            assert (
                layer.matrix is None and "positions apply to the queries before" in layer.no_matrix
            )
        else:
            assert float((layer.matrix.to_dense() - expected).abs().max()) <= TOLERANCE


EDGES = torch.tensor([[0, 1, 2, 3, 4, 5, 0, 2], [1, 2, 3, 4, 5, 0, 3, 0]])


def over_edges(layer: Any, x: Tensor, y: Tensor, edges: Tensor) -> Tensor:
    """The weights of a graph layer in float64, node by node: (heads, targets, sources)."""
    layer = copy.deepcopy(layer).double()
    heads, depth = layer.heads, layer.out_channels
    with torch.no_grad():
        if isinstance(layer, headloom.GATConv):
            projections = (layer.lin or layer.lin_src, layer.lin or layer.lin_dst)
            source, target = (
                part(nodes.double()).view(-1, heads, depth)
                for part, nodes in zip(projections, (x, y), strict=True)
            )
            by_source, by_target = (
                (source * layer.att_src).sum(-1),
                (target * layer.att_dst).sum(-1),
            )
            scores = leaky_relu(by_target[:, None] + by_source[None], 0.2)
        else:
            source = layer.lin_l(x.double()).view(-1, heads, depth)
            target = layer.lin_r(y.double()).view(-1, heads, depth)
            scores = (leaky_relu(target[:, None] + source[None], 0.2) * layer.att).sum(-1)
    loops = torch.arange(min(len(x), len(y)))
    times = torch.zeros(len(y), len(x), dtype=torch.float64)
    for one, other in edges.T.tolist():
        if one != other:
            times[other, one] += 1
    times[loops, loops] = 1
    shares = times[..., None] * scores.exp()
    return (shares / shares.sum(1, keepdim=True)).permute(2, 0, 1)


@pytest.mark.parametrize("kind", [headloom.GATConv, headloom.GATv2Conv])
def test_the_graph_layers_of_headloom_in_a_module(kind: Any) -> None:
    class Nodes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = kind(8, 4, heads=2), kind(8, 4, heads=1)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.second(elu(self.first(x, edge_index)), edge_index)

    # Two edges from 0 to 1: one, with the sum of their weights.
    edges = torch.cat((EDGES, torch.tensor([[0], [1]])), 1)
    model, x = Nodes().eval(), drawn(6, 8)
    trace = traced(model, (x, edges))
    hidden = x
    for layer, module in zip(trace.layers, (model.first, model.second), strict=True):
        assert layer.kind == "encoder" and layer.queries_from == layer.keys_from
        expected = over_edges(module, hidden, hidden, edges)
        assert float((dense(layer) - expected).abs().max()) <= TOLERANCE
        assert layer.graph.count[0].tolist() == [3, 2, 2, 3, 2, 2]
        hidden = elu(run(module, (hidden, edges)))
    assert [layer.name for layer in trace.layers] == ["first", "second"]
    kept = headloom.trace(model, (x, edges), keep=headloom.Top(1)).layers[0].graph
    strongest = over_edges(model.first, x, x, edges).amax(-1)
    torch.testing.assert_close(kept.weights[..., 0].double(), strongest, atol=1e-6, rtol=0)
    torch.testing.assert_close(kept.rest.double(), 1 - strongest, atol=1e-6, rtol=0)
    check_unchanged(model, (x, edges))
    assert model.first.observer is None


@pytest.mark.parametrize("kind", [headloom.GATConv, headloom.GATv2Conv])
@pytest.mark.parametrize("targets", [6, 3])
def test_a_graph_layer_between_two_kinds_of_nodes(kind: Any, targets: int) -> None:
    layer = kind((8, 5), 4, heads=2).eval()
    x, y, edges = drawn(6, 8), drawn(targets, 5), EDGES[:, EDGES[1] < targets]
    [found] = traced(layer, {"x": (x, y), "edge_index": edges}).layers
    assert found.name == kind.__name__ and found.kind == "cross"
    assert float((dense(found) - over_edges(layer, x, y, edges)).abs().max()) <= TOLERANCE
