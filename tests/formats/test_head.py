"""Layers and heads of a trace, as users index them."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import torch

import headloom
from headloom.api.trace import Trace


@pytest.fixture
def trace(pair_trace: Trace) -> Trace:
    names = ("encoder.0.attention", "decoder.0.attention", "decoder.0.cross")
    layers = zip(names, pair_trace.layers, strict=True)
    return replace(pair_trace, layers=tuple(replace(layer, name=name) for name, layer in layers))


def test_layers_and_heads_are_indexed(trace: Trace) -> None:
    encoder, decoder, cross = trace.layers
    assert len(trace) == 3
    assert list(trace) == [encoder, decoder, cross]
    for place, layer in (
        (0, encoder), (-1, cross), (np.int64(1), decoder), ("decoder.0.cross", cross),
        (("cross", 0), cross), (("decoder", 0), decoder), ("encoder.0", encoder),
    ):  # fmt: skip
        assert trace[place] is layer
    for head in (
        trace[2, 1], trace["cross", 0, 1], trace["decoder.0.cross", 1], cross[1],
        trace.head(layer=2, head=1), trace.head(2, 1 - cross.heads),
    ):  # fmt: skip
        assert head.layer is cross
        assert head.number == 1
    assert [head.number for head in cross] == list(range(len(cross)))


def test_a_place_that_is_none_says_what_there_is(trace: Trace) -> None:
    for place, message in (
        (9, "no layer 9; the trace has layers 0 to 2"),
        (("cross", 1), 'no layer cross 1; it has "encoder" 0 to 0, "decoder" 0 to 0, "cross"'),
        ("decoder.0", "layer decoder.0: no such layer; the trace has layers 0 to 2"),
        ("nowhere", "layer nowhere: no such layer; the trace has layers 0 to 2"),
        ((0, 9), "no head 9; the layer has heads 0 to"),
        ((0, 1, 2), r"trace\[5, 2\]\[:10, :10\]"),
    ):
        with pytest.raises(headloom.InputError, match=message):
            trace[place]
    for what, name, remedy in (
        (trace[0, 0], "to_frame", "to_pandas()"), (trace[0], "weights", "layer[head].weights"),
        (headloom.causal(), "shape", "dense(queries, keys)"),
        (trace[0].graph, "sum", 'keep="all"'), (trace[0].graph, "edges", "to_networkx(head)"),
    ):  # fmt: skip
        with pytest.raises(AttributeError, match=rf"has no {name}; use .*{re.escape(remedy)}"):
            getattr(what, name)


def test_a_head_is_its_weights_with_tokens(pair_trace: Trace) -> None:
    cross = pair_trace["cross", 0]
    head = cross[1]
    exact = cross.matrix.to_dense()[1]
    assert head.exact
    assert head.shape == (4, 7) == tuple(exact.shape)
    assert torch.equal(head.weights, exact)
    assert torch.equal(pair_trace.weights(2, 1), exact)
    assert np.array_equal(np.asarray(head), exact.numpy())
    assert torch.equal(pair_trace.attentions[2][0, 1], exact)
    assert torch.equal(head.sum(-1), exact.sum(-1))  # a tensor's methods are those of its weights
    assert torch.equal(head[1:3, -1], exact[1:3, -1])
    table = head.to_pandas()
    assert list(table.index) == cross.query_tokens
    assert list(table.columns) == cross.key_tokens
    assert np.array_equal(table.to_numpy(), exact.numpy())


def test_a_head_of_kept_edges_says_so() -> None:
    weights = torch.randn(1, 6, 6).softmax(-1)
    tokens = ["a", "b", "a", "b", "c", "c"]
    trace = headloom.from_weights([weights], tokens=tokens, keep=headloom.Top(1))
    head = trace[0, 0]
    assert not head.exact
    assert "1 kept edges of each query" in repr(head)
    assert torch.equal(head.weights, trace.layers[0].graph.to_dense()[0])
    assert head.to_pandas()["a"].shape == (6, 2)
    strongest = headloom.from_weights([weights], tokens=tokens)[0, 0]
    assert strongest.exact
    network = strongest.to_networkx(threshold=0.3)
    strong = strongest.weights.numpy()
    assert {(i, j): values["weight"] for i, j, values in network.edges(data=True)} == {
        (i, j): strong[i, j] for i, j in zip(*np.nonzero(strong >= 0.3), strict=True)
    }
    assert [values["token"] for _, values in network.nodes(data=True)] == tokens
