"""Traces that keep what each key receives: against weights that the models give themselves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from tests.formats.conftest import assert_same
from tests.tracing.conftest import as_list, dense_weights, spans
from torch import Tensor, nn

import headloom
from headloom.api.trace import Trace

LAST = 3


def assert_received(
    graph: headloom.AttentionGraph, weights: Tensor, last: int | None = LAST
) -> None:
    """weights: (heads, queries, keys)."""
    assert torch.allclose(graph.received.double(), weights.double().sum(1), atol=1e-5)
    assert torch.allclose(graph.received_most.double(), weights.double().amax(1), atol=1e-5)
    if last is None:
        assert graph.received_last is None
    else:
        window = weights[:, -last:].double().sum(1)
        assert torch.allclose(graph.received_last.double(), window, atol=1e-5)


@pytest.mark.parametrize("name", ["BERT", "Llama", "gpt-oss", "BART", "ViT"])
@pytest.mark.parametrize("queries_keys", [True, False])
def test_what_models_say_themselves(family_named, name, queries_keys) -> None:
    """Padded batches too: what rows of padding give is not in it."""
    pytest.importorskip("transformers")
    family = family_named(name)
    model, inputs = family.build(), family.inputs()
    expected = dense_weights(model, inputs)
    options = {"queries_keys": queries_keys, "received": headloom.LastQueries(LAST)}
    traces = as_list(headloom.trace(model, inputs, keep=headloom.Top(2), **options))
    for sample, trace in enumerate(traces):
        where = spans(inputs, sample)
        for layer in trace.layers:
            group = layer.kind if layer.kind in expected else "all"
            weights = expected[group][layer.index][sample]
            rows = where.get(layer.queries_from, slice(None))
            columns = where.get(layer.keys_from, slice(None))
            assert_received(layer.graph, weights[:, rows, columns])


class Plain(nn.Module):
    """One layer of torch's attention."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)


class Own(nn.Module):
    """One that calls headloom, and asks it what keys receive."""

    def forward(self, x: Tensor) -> Tensor:
        output, graph = headloom.attend(x, x, x, mask=headloom.causal(), received=True)
        return output + graph.received[..., None]


@pytest.mark.parametrize("model", [Plain(), Own()])
def test_modules(model: nn.Module) -> None:
    x = torch.randn(1, 2, 9, 4, generator=torch.Generator().manual_seed(0))
    trace = headloom.trace(model, {"x": x}, keep=headloom.Top(1), received=True)
    scores = x[0].double() @ x[0].double().mT / 2
    ahead = torch.ones(9, 9, dtype=torch.bool).triu(1)
    weights = scores.masked_fill(ahead, -torch.inf).softmax(-1)
    assert_received(trace.layers[0].graph, weights, last=None)


def saved(trace: Trace, path: Path) -> Trace:
    trace.save(path)
    return headloom.open(path)


@pytest.mark.parametrize("asked", [True, headloom.LastQueries(2)])
def test_it_comes_back_from_disk(language_model, asked, tmp_path) -> None:
    ids = torch.tensor([3, 9, 14, 27, 5, 8])
    trace = headloom.trace(language_model, ids, keep=headloom.Top(2), received=asked)
    again = saved(trace, tmp_path / "t.loom")
    assert_same(trace, again)
    for one, other in zip(trace.layers, again.layers, strict=True):
        for name in ("received", "received_most", "received_last"):
            mine, its = getattr(one.graph, name), getattr(other.graph, name)
            assert (mine is None) == (its is None)
            assert mine is None or torch.equal(mine, its)
    heads, queries, keys = trace.layers[0].shape
    for source in (trace, again):
        table = source.query(
            "select layer, head, sum(received) as mass, max(received_most) as most, "
            "count(*) as keys from received group by all order by all"
        )
        assert len(table) == heads * len(trace.layers)
        assert np.allclose(table["mass"], queries, atol=1e-4) and set(table["keys"]) == {keys}
        assert np.all(table["most"] <= 1)
    # Saved again it is the same, and other tools read it.
    again.save(tmp_path / "again.loom")
    file = "received.parquet"
    assert (tmp_path / "t.loom" / file).read_bytes() == (
        tmp_path / "again.loom" / file
    ).read_bytes()
    assert pq.read_table(tmp_path / "t.loom" / file).num_rows == heads * keys * len(trace.layers)
