"""Models of texts as ONNX graphs: translators, language models, classifiers.

Names of inputs and outputs are those that Optimum and transformers.js give such models:

    translator       encoder.onnx: input_ids, attention_mask to keys and values of the source;
                     decoder.onnx: input_ids, encoder_attention_mask, these, and those of the
                     tokens before, to logits and those of all tokens
    language model   model.onnx: input_ids, attention_mask and past keys and values, likewise
    classifier       model.onnx: input_ids, attention_mask to logits

The past has length 0 at first, so that one graph reads a prefix and writes the next token.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from headloom.errors import InputError
from headloom.models.blocks import DecoderBlock
from headloom.models.classifier import Classifier
from headloom.models.language_model import LanguageModel
from headloom.models.onnx.attention import KeysValues, Places, keys_values, linear
from headloom.models.onnx.blocks import (
    decoder_blocks,
    embedded,
    encoder_blocks,
    logits,
    normed,
    padding_mask,
    places_after,
)
from headloom.models.onnx.graph import OnnxGraph
from headloom.models.transformer import Transformer

__all__ = ["classifier", "language_model", "translator"]

BATCH = "batch"


def translator(model: Transformer) -> dict[str, OnnxGraph]:
    """The graphs of an encoder-decoder, by the names of their files."""
    return {"encoder": _encoder(model), "decoder": _decoder(model)}


def _decoders(blocks: Iterable[nn.Module]) -> list[DecoderBlock]:
    return [block for block in blocks if isinstance(block, DecoderBlock)]


def _encoder(model: Transformer) -> OnnxGraph:
    graph = OnnxGraph("encoder", model)
    ids = graph.input("input_ids", (BATCH, "source"), torch.int64)
    real = graph.input("attention_mask", (BATCH, "source"), torch.int64)
    places = places_after(
        graph, ids, None, causal=False, real=real, longest=model.architecture.max_length
    )
    outputs = embedded(graph, model.source_embedding, ids, places)
    outputs = encoder_blocks(graph, model.encoder, outputs, places)
    outputs = normed(graph, model.encoder_norm, outputs)
    for number, block in enumerate(_decoders(model.decoder)):
        if block.cross_attention is not None:
            both = keys_values(graph, block.cross_attention, outputs, Places())
            _hand_out(graph, block, f"past_key_values.{number}.encoder", "source", both)
    return graph


def _decoder(model: Transformer) -> OnnxGraph:
    graph = OnnxGraph("decoder", model)
    ids = graph.input("input_ids", (BATCH, "new"), torch.int64)
    real = graph.input("encoder_attention_mask", (BATCH, "source"), torch.int64)
    blocks = _decoders(model.decoder)
    pairs = [
        tuple(
            _handed_in(graph, block, f"past_key_values.{number}.{part}", length)
            for part, length in (("decoder", "past"), ("encoder", "source"))
        )
        for number, block in enumerate(blocks)
    ]
    past, sources = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    longest = model.architecture.max_length
    places = places_after(graph, ids, past[0].keys, causal=True, real=None, longest=longest)
    outputs = embedded(graph, model.target_embedding, ids, places)
    outputs, present = decoder_blocks(
        graph, blocks, outputs, places, past, sources, Places(padding_mask(graph, real))
    )
    outputs = normed(graph, model.decoder_norm, outputs)
    scores = logits(graph, model.output_embedding, model.target_embedding, outputs)
    graph.output("logits", scores, (BATCH, "new", model.output_embedding.out_features))
    for number, (block, both) in enumerate(zip(blocks, present, strict=True)):
        _hand_out(graph, block, f"present.{number}.decoder", "past + new", both)
    return graph


def language_model(model: LanguageModel) -> dict[str, OnnxGraph]:
    """The graph of a language model, by the name of its file."""
    graph = OnnxGraph("language model", model)
    ids = graph.input("input_ids", (BATCH, "new"), torch.int64)
    real = graph.input("attention_mask", (BATCH, "past + new"), torch.int64)
    blocks = _decoders(model.decoder)
    past = [
        _handed_in(graph, block, f"past_key_values.{number}", "past")
        for number, block in enumerate(blocks)
    ]
    longest = model.architecture.max_length
    places = places_after(graph, ids, past[0].keys, causal=True, real=real, longest=longest)
    outputs = embedded(graph, model.embedding, ids, places)
    outputs, present = decoder_blocks(graph, blocks, outputs, places, past)
    outputs = normed(graph, model.decoder_norm, outputs)
    scores = logits(graph, model.output_embedding, model.embedding, outputs)
    graph.output("logits", scores, (BATCH, "new", model.output_embedding.out_features))
    for number, (block, both) in enumerate(zip(blocks, present, strict=True)):
        _hand_out(graph, block, f"present.{number}", "past + new", both)
    return {"model": graph}


def classifier(model: Classifier) -> dict[str, OnnxGraph]:
    """The graph of a classifier of texts, by the name of its file."""
    graph = OnnxGraph("classifier", model)
    ids = graph.input("input_ids", (BATCH, "positions"), torch.int64)
    real = graph.input("attention_mask", (BATCH, "positions"), torch.int64)
    places = places_after(
        graph, ids, None, causal=False, real=real, longest=model.architecture.max_length
    )
    outputs = embedded(graph, model.embedding, ids, places)
    outputs = encoder_blocks(graph, model.encoder, outputs, places)
    outputs = normed(graph, model.encoder_norm, outputs)
    vector = _pooled(graph, model, outputs, real)
    graph.output("logits", linear(graph, model.output, vector), (BATCH, model.output.out_features))
    return {"model": graph}


def _pooled(graph: OnnxGraph, model: Classifier, outputs: str, attention_mask: str) -> str:
    """See `headloom.models.classifier.pooled`."""
    if model.pooling == "first":
        return graph.op("Gather", outputs, graph.number(0), axis=1)
    real = graph.op("Unsqueeze", graph.cast(attention_mask, torch.bool), graph.numbers(2))
    if model.pooling == "max":
        seen = graph.op("Where", real, outputs, graph.real(-torch.inf))
        return graph.op("ReduceMax", seen, axes=[1], keepdims=0)
    if model.pooling == "mean":
        kept = graph.op("Where", real, outputs, graph.real(0.0))
        total = graph.op("ReduceSum", kept, graph.numbers(1), keepdims=0)
        count = graph.op("ReduceSum", graph.cast(real, torch.float32), graph.numbers(1), keepdims=0)
        return graph.op("Div", total, count)
    raise InputError(f"export: pooling {model.pooling!r} is not known.")


def _handed_in(graph: OnnxGraph, block: DecoderBlock, name: str, length: str) -> KeysValues:
    layer = block.self_attention
    sizes = (BATCH, layer.kv_heads, length, layer.depth)
    return KeysValues(
        *(graph.input(f"{name}.{part}", sizes, torch.float32) for part in ("key", "value"))
    )


def _hand_out(
    graph: OnnxGraph, block: DecoderBlock, name: str, length: str, both: KeysValues
) -> None:
    layer = block.self_attention
    sizes = (BATCH, layer.kv_heads, length, layer.depth)
    graph.output(f"{name}.key", both.keys, sizes)
    graph.output(f"{name}.value", both.values, sizes)
