"""Embeddings, and the blocks that Transformers are stacked from, as operations of ONNX."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import nn

from headloom.models.blocks import DecoderBlock, EncoderBlock, FeedForward
from headloom.models.configuration import ActivationKind
from headloom.models.embeddings import Embedding
from headloom.models.onnx.attention import KeysValues, Places, keys_values, linear, multi_head
from headloom.models.onnx.graph import OnnxGraph
from headloom.models.stock_parts import position_table

__all__ = [
    "decoder_blocks",
    "embedded",
    "encoder_blocks",
    "logits",
    "normed",
    "padding_mask",
    "places_after",
]


def embedded(graph: OnnxGraph, embedding: Embedding, ids: str, places: Places) -> str:
    """Token embeddings, times sqrt(width) where they are scaled, plus absolute positions."""
    architecture = embedding.architecture
    vectors = graph.op("Gather", graph.weight(embedding.tokens.weight), ids, axis=0)
    vectors = graph.op("Mul", vectors, graph.real(architecture.embedding_factor))
    if architecture.positions not in ("learned", "sinusoidal") or places.positions is None:
        return vectors
    table = graph.weight(position_table(embedding), f"{architecture.positions} positions")
    return graph.op("Add", vectors, graph.op("Gather", table, places.positions, axis=0))


def normed(graph: OnnxGraph, norm: nn.Module, inputs: str) -> str:
    """See `headloom.models.norms`; the inputs themselves where there is none."""
    if isinstance(norm, nn.Identity):
        return inputs
    if isinstance(norm, nn.RMSNorm):
        square = graph.op("ReduceMean", graph.op("Mul", inputs, inputs), axes=[-1])
        root = graph.op("Sqrt", graph.op("Add", square, graph.real(norm.eps or 0.0)))
        return graph.op("Mul", graph.op("Div", inputs, root), graph.weight(norm.weight))
    if not isinstance(norm, nn.LayerNorm):
        raise TypeError(f"{type(norm).__name__} is no norm of headloom's blocks")
    parts = graph.weight(norm.weight), graph.weight(norm.bias)
    return graph.op("LayerNormalization", inputs, *parts, axis=-1, epsilon=norm.eps)


def logits(graph: OnnxGraph, output_map: nn.Linear, embedding: Embedding, outputs: str) -> str:
    """Scores of every token, (batch, positions, vocabulary)."""
    if output_map.weight is embedding.tokens.weight:  # not twice in the file
        matrix = graph.op("Transpose", graph.weight(output_map.weight), perm=[1, 0])
        scores = graph.op("MatMul", outputs, matrix)
        bias = output_map.bias
        return scores if bias is None else graph.op("Add", scores, graph.weight(bias))
    return linear(graph, output_map, outputs)


def padding_mask(graph: OnnxGraph, attention_mask: str) -> str:
    """Real keys of (batch, keys), 1 or 0, as bool (batch, 1, 1, keys)."""
    return graph.op("Unsqueeze", graph.cast(attention_mask, torch.bool), graph.numbers(1, 2))


def places_after(
    graph: OnnxGraph, ids: str, past: str | None, *, causal: bool, real: str | None, longest: int
) -> Places:
    """The places of new tokens, which follow those of a cache.

    Args:
        graph: that grows.
        ids: of the new tokens, (batch, positions).
        past: keys of a cache, (batch, kv_heads, past, depth); None: there is no cache.
        causal: whether tokens look at none after them.
        real: 1 at real tokens, 0 at padding, (batch, past + positions): padding may stand at
            either end, the first real token has position 0; None: all are real.
        longest: how many positions there are tables for.
    """
    start = graph.number(0) if past is None else graph.length(past, 2)
    end = graph.op("Add", start, graph.length(ids, 1))
    keys = graph.op("Range", graph.number(0), end, graph.number(1))
    queries = graph.op("Range", start, end, graph.number(1))
    column = graph.op("Unsqueeze", queries, graph.numbers(1))
    distances = graph.op("Sub", keys, column)
    if real is None:
        positions = graph.op("Unsqueeze", queries, graph.numbers(0))
    else:
        counted = graph.op("CumSum", real, graph.number(1))
        before = graph.op("Sub", counted, graph.number(1))
        every = graph.op("Max", before, graph.number(0))
        positions = graph.op("Gather", every, queries, axis=1)
    mask = None if real is None else padding_mask(graph, real)
    if causal:
        earlier = graph.op("LessOrEqual", distances, graph.number(0))
        mask = earlier if mask is None else graph.op("And", mask, earlier)
    return Places(mask, distances, positions, longest)


def encoder_blocks(
    graph: OnnxGraph, blocks: Iterable[nn.Module], inputs: str, places: Places
) -> str:
    """What a stack of encoder blocks gives, (batch, positions, width)."""
    outputs = inputs
    for block in blocks:
        if not isinstance(block, EncoderBlock):
            raise TypeError("an encoder is made of encoder blocks")
        outputs = _encoder_block(graph, block, outputs, places)
    return outputs


def _encoder_block(graph: OnnxGraph, block: EncoderBlock, inputs: str, places: Places) -> str:
    layer = block.self_attention

    def look(x: str) -> str:
        return multi_head(graph, layer, x, keys_values(graph, layer, x, places), places)

    outputs = _added(graph, block, block.self_attention_norm, inputs, look)
    return _fed_forward(graph, block, outputs)


def decoder_blocks(
    graph: OnnxGraph,
    blocks: Iterable[nn.Module],
    inputs: str,
    places: Places,
    past: Iterable[KeysValues],
    sources: Iterable[KeysValues | None] | None = None,
    source_places: Places | None = None,
) -> tuple[str, list[KeysValues]]:
    """What a stack of decoder blocks gives, and the keys and values of each with the new ones.

    Args:
        graph: that grows.
        blocks: of the decoder.
        inputs: of new tokens, (batch, positions, width).
        places: of these.
        past: of each block: keys and values of earlier tokens.
        sources: of each block: those of the source, where there is one.
        source_places: who may look at whom there.
    """
    outputs, present = inputs, []
    every = list(blocks)
    looked_at = [None] * len(every) if sources is None else list(sources)
    for block, own, source in zip(every, past, looked_at, strict=True):
        if not isinstance(block, DecoderBlock):
            raise TypeError("a decoder is made of decoder blocks")
        outputs, joined = _decoder_block(
            graph, block, outputs, places, own, source, source_places or Places()
        )
        present.append(joined)
    return outputs, present


def _decoder_block(
    graph: OnnxGraph, block: DecoderBlock, inputs: str, places: Places, past: KeysValues,
    source: KeysValues | None, source_places: Places,
) -> tuple[str, KeysValues]:  # fmt: skip
    joined: list[KeysValues] = []

    def look_back(x: str) -> str:
        new = keys_values(graph, block.self_attention, x, places)
        joined.append(
            KeysValues(
                graph.op("Concat", past.keys, new.keys, axis=2),
                graph.op("Concat", past.values, new.values, axis=2),
            )
        )
        return multi_head(graph, block.self_attention, x, joined[0], places)

    outputs = _added(graph, block, block.self_attention_norm, inputs, look_back)
    cross, cross_norm = block.cross_attention, block.cross_attention_norm
    if cross is not None and cross_norm is not None and source is not None:
        outputs = _added(
            graph, block, cross_norm, outputs,
            lambda x: multi_head(graph, cross, x, source, source_places),
        )  # fmt: skip
    return _fed_forward(graph, block, outputs), joined[0]


def _added(
    graph: OnnxGraph,
    block: EncoderBlock | DecoderBlock,
    norm: nn.Module,
    inputs: str,
    sublayer: Callable[[str], str],
) -> str:
    if block.pre_norm:
        return graph.op("Add", inputs, sublayer(normed(graph, norm, inputs)))
    return normed(graph, norm, graph.op("Add", inputs, sublayer(inputs)))


def _fed_forward(graph: OnnxGraph, block: EncoderBlock | DecoderBlock, inputs: str) -> str:
    return _added(
        graph, block, block.feed_forward_norm, inputs,
        lambda x: _feed_forward(graph, block.feed_forward, x),
    )  # fmt: skip


def _feed_forward(graph: OnnxGraph, layer: FeedForward, inputs: str) -> str:
    """See `headloom.models.blocks.FeedForward`."""
    risen = linear(graph, layer.rise, inputs)
    if layer.gate is None:
        hidden = _activated(graph, risen, layer.activation)
    else:
        gate = _activated(graph, linear(graph, layer.gate, inputs), layer.activation)
        hidden = graph.op("Mul", gate, risen)
    return linear(graph, layer.fall, hidden)


def _activated(graph: OnnxGraph, hidden: str, kind: ActivationKind) -> str:
    """See `headloom.models.blocks.activated`."""
    if kind == "relu":
        return graph.op("Relu", hidden)
    if kind == "silu":
        return graph.op("Mul", hidden, graph.op("Sigmoid", hidden))
    if kind == "gelu":
        bent = graph.op("Erf", graph.op("Mul", hidden, graph.real(math.sqrt(0.5))))
    else:
        cube = graph.op("Mul", hidden, graph.op("Mul", hidden, hidden))
        inner = graph.op("Add", hidden, graph.op("Mul", cube, graph.real(0.044715)))
        bent = graph.op("Tanh", graph.op("Mul", inner, graph.real(math.sqrt(2 / math.pi))))
    half = graph.op("Mul", hidden, graph.real(0.5))
    return graph.op("Mul", half, graph.op("Add", bent, graph.real(1.0)))
