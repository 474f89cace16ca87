from __future__ import annotations

from typing import Never

import pytest
import torch
from torch import nn

import headloom
from headloom.api.trace import Trace
from headloom.mechanism.watching import layers_of
from headloom.tracing.recording.layers import cut, proven_mask


def one(found) -> Trace:
    assert isinstance(found, Trace)
    return found


def test_layers_of_an_encoder_decoder(pair_trace) -> None:
    kinds = [(layer.name, layer.kind, layer.index, layer.shape) for layer in pair_trace.layers]
    assert kinds == [
        ("encoder", "encoder", 0, (4, 7, 7)),
        ("decoder", "decoder", 0, (4, 4, 4)),
        ("cross", "cross", 0, (4, 4, 7)),
    ]
    cross = pair_trace.layer("cross", 0)
    assert cross.query_tokens == pair_trace.sequences["target"] == ["#1", "#8", "#30", "#41"]
    assert cross.key_tokens == pair_trace.tokens
    assert [layer.mask for layer in pair_trace.layers] == ["all", "causal", "all"]
    assert "1 encoder + 1 decoder + 1 cross" in repr(pair_trace)


def test_everything_kept_is_the_dense_matrix_of_the_layer(translator) -> None:
    source, target = torch.tensor([[3, 9, 14, 27]]), torch.tensor([[1, 8, 30]])
    inputs = {"source": source, "target": target}
    trace = one(headloom.trace(translator, inputs, keep=headloom.All()))
    # The layers by hand, from the queries and keys that they project.
    translator.eval()
    with torch.no_grad():
        memory = translator.embedding(source)
        encoder = translator.encoder
        queries = encoder._split(encoder.w_q(memory), 4)
        keys = encoder._split(encoder.w_k(memory), 4)
        _, dense = headloom.attend(queries, keys, keys, keep=headloom.All())
    graph = trace.layers[0].graph
    assert graph.k == 4
    assert torch.allclose(graph.to_dense(), dense[0], atol=1e-6)
    assert torch.allclose(graph.to_dense().sum(-1), torch.ones(4, 4), atol=1e-6)
    assert torch.equal(trace.layers[0].queries, queries[0])
    assert torch.equal(trace.layers[0].keys, keys[0])
    # In every layer, scores are scale * queries . keys: the kept ones are among them.
    for layer in trace.layers:
        repeated = layer.keys.repeat_interleave(4 // layer.keys.shape[0], 0)
        scores = layer.scale * layer.queries @ repeated.mT
        kept = layer.graph.keys.clamp(min=0).long()
        there = layer.graph.keys >= 0
        assert torch.allclose(layer.graph.scores[there], scores.gather(-1, kept)[there], atol=1e-5)


def test_top_k_are_the_strongest_of_all(language_model) -> None:
    tokens = torch.arange(1, 13)
    every = one(headloom.trace(language_model, tokens, keep=headloom.All()))
    few = one(headloom.trace(language_model, tokens, keep=headloom.Top(3)))
    for all_of, top_of in zip(every.layers, few.layers, strict=True):
        assert top_of.graph.k == 3
        assert torch.equal(all_of.graph.keys[..., :3], top_of.graph.keys)
        assert torch.allclose(all_of.graph.weights[..., :3], top_of.graph.weights)
        left = 1 - top_of.graph.weights.sum(-1)
        assert torch.allclose(top_of.graph.rest, left, atol=1e-6)
        assert top_of.mask == "causal"
    assert every.sequences.keys() == {"tokens"}
    assert [layer.index for layer in every.layers] == [0, 1]
    assert every.layers[0].positions == "rotary"


def test_padding_is_cut_off_each_sample(translator) -> None:
    source = torch.tensor([[3, 9, 14, 27, 5], [7, 6, 0, 0, 0], [0, 0, 4, 11, 12]])
    target = torch.tensor([[1, 8, 30], [1, 9, 0], [1, 2, 3]])
    traces = headloom.trace(translator, {"source": source, "target": target})
    assert [len(trace.sequences["source"]) for trace in traces] == [5, 2, 3]
    assert [len(trace.sequences["target"]) for trace in traces] == [3, 2, 3]
    assert traces[1].layers[2].shape == (4, 2, 2)
    assert traces[2].sequences["source"] == ["#4", "#11", "#12"]
    for trace in traces:
        for layer in trace.layers:
            graph = layer.graph
            assert int(graph.keys.max()) < layer.shape[2]
            assert torch.allclose(graph.weights.sum(-1), torch.ones(()), atol=1e-5)
            assert layer.queries.shape[1] == layer.shape[1]
    # As if it had been traced without its padding.
    alone = one(headloom.trace(translator, {"source": source[1, :2], "target": target[1, :2]}))
    for padded, bare in zip(traces[1].layers, alone.layers, strict=True):
        assert torch.equal(padded.graph.keys, bare.graph.keys)
        assert torch.allclose(padded.graph.weights, bare.graph.weights, atol=1e-6)
        assert torch.allclose(padded.graph.lse, bare.graph.lse, atol=1e-5)


def test_mass_on_cut_keys_becomes_rest() -> None:
    queries = torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(0))
    _, graph = headloom.attend(queries, queries, queries, keep=headloom.Top(5))
    part = cut(graph, slice(0, 3), slice(1, 4))
    dense = graph.to_dense()[:, :3, 1:4]
    assert torch.allclose(part.to_dense(), dense)
    assert torch.allclose(part.rest, 1 - dense.sum(-1), atol=1e-6)
    assert (part.weights[..., :-1] >= part.weights[..., 1:]).all()


def test_a_batch_of_several_is_a_list_and_one_is_not(language_model) -> None:
    several = headloom.trace(language_model, torch.tensor([[1, 2], [3, 4]]))
    assert isinstance(several, list)
    assert len(several) == 2
    assert isinstance(headloom.trace(language_model, torch.tensor([1, 2])), Trace)
    assert isinstance(headloom.trace(language_model, torch.tensor([[1, 2]])), Trace)
    empty = one(headloom.trace(language_model, torch.tensor([0, 0])))
    assert empty.tokens == []
    assert empty.layers[0].shape == (4, 0, 0)


def test_the_model_is_left_as_it_was(translator) -> None:
    translator.train()
    translator.decoder.eval()
    seen = []

    class Watcher:
        keep = headloom.Top(1)

        def __call__(self, layer, observation):
            seen.append(layer)

    watcher = Watcher()
    translator.encoder.observer = watcher
    inputs = {"source": torch.tensor([3, 4]), "target": torch.tensor([1, 2])}
    first = one(headloom.trace(translator, inputs))
    second = one(headloom.trace(translator, inputs))
    # Dropout is off while tracing, so that the same input gives the same graph.
    assert torch.equal(first.layers[2].graph.weights, second.layers[2].graph.weights)
    assert not first.layers[0].graph.weights.requires_grad
    assert not seen

    def broken(*_, **__) -> Never:
        raise RuntimeError("broken")

    translator.cross.forward = broken
    with pytest.raises(headloom.InputError, match="RuntimeError: broken"):
        headloom.trace(translator, inputs)
    for _, layer in layers_of(translator):
        assert layer.observer is (watcher if layer is translator.encoder else None)
    assert translator.training
    assert translator.encoder.training
    assert not translator.decoder.training


def test_wrong_inputs_say_what_was_expected(language_model) -> None:
    for model, inputs, line in (
        (nn.Linear(2, 2), torch.rand(1, 2), "Linear called no attention function"),
        (language_model, "text", "Give the tokenizer of its vocabulary too"),
        (language_model, torch.rand(2, 3), "hold no token ids"),
    ):
        with pytest.raises(headloom.InputError, match=line):
            headloom.trace(model, inputs)


def test_a_mask_is_named_only_where_the_graph_proves_it() -> None:
    queries = torch.randn(1, 4, 4, generator=torch.Generator().manual_seed(3))

    def rule(mask, k):
        return proven_mask(
            headloom.attend(queries, queries, queries, mask=mask, keep=headloom.Top(k))[1]
        )

    assert rule(None, 1) == "all"
    assert rule(headloom.causal(), 4) == "causal"
    assert rule(headloom.causal(), 3) is None
    assert rule(headloom.window(1, 1), 4) is None
