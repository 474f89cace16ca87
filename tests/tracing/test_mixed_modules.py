"""Modules in which headloom's layers stand beside other attention, or read numbers instead of
ids."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from tests.tracing.module_weights import TOLERANCE, check_unchanged, dense, traced
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

import headloom

IDS = torch.tensor([[1, 2, 3, 4, 5]])

pytestmark = pytest.mark.usefixtures("without_fast_paths")


class Mixed(nn.Module):
    """A layer of headloom, and attention that is taken in some other way."""

    def __init__(self, other: str) -> None:
        super().__init__()
        self.embedding = nn.Embedding(9, 8)
        self.first = headloom.MultiHeadAttention(8, 2)
        self.second = nn.MultiheadAttention(8, 1, batch_first=True)
        self.other = other

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        x = x + self.first(x)
        if self.other == "torch":
            return scaled_dot_product_attention(x, x, x)
        if self.other == "headloom":
            return headloom.attention(x, x, x)
        if self.other == "layer of torch":
            return self.second(x, x, x)[0]
        return (x @ x.mT / 8**0.5).softmax(-1) @ x


def quietly(run: Any) -> tuple[Any, list[str]]:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        return run(), [str(warning.message) for warning in said]


def watched(model: nn.Module) -> headloom.Trace:
    with headloom.watch(model, keep=headloom.All()) as seen:
        model(IDS)
    return seen.trace


@pytest.mark.parametrize("how", [lambda model: traced(model, IDS), watched], ids=["trace", "watch"])
@pytest.mark.parametrize("other", ["torch", "headloom", "layer of torch"])
def test_attention_beside_a_layer_of_headloom_is_traced_too(other: str, how: Any) -> None:
    model = Mixed(other).eval()
    trace, said = quietly(lambda: how(model))
    assert not said and not trace.not_traced
    second = "second" if other == "layer of torch" else "Mixed"
    assert [layer.name for layer in trace.layers] == ["first", second]
    assert trace.layers[0].query_tokens == ["#1", "#2", "#3", "#4", "#5"]
    with torch.no_grad():
        x = model.embedding(IDS)
        x = (x + model.first(x)).double()[0]
        if other == "layer of torch":
            part = model.second.in_proj_weight.double(), model.second.in_proj_bias.double()
            queries, keys, _ = (x @ part[0].T + part[1]).chunk(3, -1)
        else:
            queries = keys = x
        expected = (queries @ keys.T / 8**0.5).softmax(-1)
    assert float((dense(trace.layers[1])[0] - expected).abs().max()) <= TOLERANCE
    check_unchanged(model, IDS)


def test_a_graph_is_verified_whole() -> None:
    read: list[tuple[int, ...]] = []

    class Nodes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = headloom.GATConv(8, 4)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            read.append(tuple(edge_index.shape))
            return self.layer(x, edge_index)

    edges = torch.randint(0, 100, (2, 300), generator=torch.Generator().manual_seed(0))
    trace = headloom.trace(Nodes().eval(), (torch.randn(100, 8), edges))
    assert set(read) == {(2, 300)}
    assert trace.verification["whole"]
    assert "over the edges of a graph" in trace.layers[0].no_matrix
