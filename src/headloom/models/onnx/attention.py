"""Attention as operations of ONNX, by the plain formulas.

    scores = Q K^T scale + relative positions, minus infinity where the mask hides a key
    output = softmax(scores) V,  0 for a query that may look at no key

Sources: those of `headloom.mechanism.multihead` and `headloom.mechanism.positions`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn

from headloom.mechanism.multihead import MultiHeadAttention
from headloom.mechanism.positions import Buckets
from headloom.models.onnx.graph import OnnxGraph

__all__ = ["KeysValues", "Places", "attended", "keys_values", "linear", "multi_head"]


@dataclass(frozen=True)
class KeysValues:
    """The names of keys and values, (batch, kv_heads, keys, depth) each."""

    keys: str
    values: str


@dataclass(frozen=True)
class Places:
    """Where queries and keys stand, and who may look at whom.

    mask: bool, broadcastable to (batch, heads, queries, keys); None: all may.
    distances: key - query, (queries, keys); None: relative positions do not act.
    positions: of the new tokens, (batch or 1, positions); None: they have none.
    longest: how many positions there are tables for.
    """

    mask: str | None = None
    distances: str | None = None
    positions: str | None = None
    longest: int = 0


def linear(graph: OnnxGraph, layer: nn.Linear, inputs: str) -> str:
    """``x W^T + b``."""
    output = graph.op("MatMul", inputs, graph.transposed(layer.weight))
    return output if layer.bias is None else graph.op("Add", output, graph.weight(layer.bias))


def keys_values(
    graph: OnnxGraph, layer: MultiHeadAttention, inputs: str, places: Places
) -> KeysValues:
    """Keys and values of some positions; rotary keys are turned."""
    keys, values = (
        _split(graph, layer, linear(graph, part, inputs), layer.kv_heads)
        for part in (layer.w_k, layer.w_v)
    )
    return KeysValues(_turned(graph, layer, keys, places), values)


def multi_head(
    graph: OnnxGraph, layer: MultiHeadAttention, inputs: str, source: KeysValues, places: Places
) -> str:
    """What a `MultiHeadAttention` gives, (batch, queries, width), of keys and values that it made.

    Args: inputs: what queries are made from, (batch, queries, width).
    """
    queries = _split(graph, layer, linear(graph, layer.w_q, inputs), layer.heads)
    queries = _turned(graph, layer, queries, places)
    if layer.kv_heads != layer.heads:
        shared = layer.heads // layer.kv_heads
        heads = graph.numbers(*(head // shared for head in range(layer.heads)))
        source = KeysValues(
            graph.op("Gather", source.keys, heads, axis=1),
            graph.op("Gather", source.values, heads, axis=1),
        )
    scale = 1 / math.sqrt(layer.depth) if layer.scale is None else layer.scale
    if layer.relative in ("shaw", "shaw-keys"):
        output = _shaw(graph, layer, queries, source, scale, places)
    elif layer.relative == "alibi":
        slopes = graph.weight(-layer.slopes[:, None, None], "slopes of ALiBi, times -1")
        far = graph.cast(graph.op("Abs", _there(places.distances)), torch.float32)
        bias = graph.op("Mul", slopes, far)
        output = attended(graph, queries, source, scale, places.mask, bias)
    elif layer.relative == "buckets":
        bias = _bucket_bias(graph, layer, places)
        output = attended(graph, queries, source, scale, places.mask, bias)
    else:
        output = attended(graph, queries, source, scale, places.mask)
    output = graph.op("Transpose", output, perm=[0, 2, 1, 3])
    joined = graph.op("Reshape", output, graph.numbers(0, 0, layer.heads * layer.depth))
    return linear(graph, layer.w_o, joined)


def attended(
    graph: OnnxGraph,
    queries: str,
    source: KeysValues,
    scale: float,
    mask: str | None = None,
    bias: str | None = None,
) -> str:
    """``softmax(Q K^T scale + bias) V`` of every head, (batch, heads, queries, value_depth)."""
    scores = _products(graph, queries, source.keys)
    scores = graph.op("Mul", scores, graph.real(scale))
    if bias is not None:
        scores = graph.op("Add", scores, bias)
    return graph.op("MatMul", _softmax(graph, scores, mask), source.values)


def _products(graph: OnnxGraph, queries: str, keys: str) -> str:
    return graph.op("MatMul", queries, graph.op("Transpose", keys, perm=[0, 1, 3, 2]))


def _softmax(graph: OnnxGraph, scores: str, mask: str | None) -> str:
    if mask is None:
        return graph.op("Softmax", scores, axis=-1)
    hidden = graph.op("Where", mask, scores, graph.real(-math.inf))
    weights = graph.op("Softmax", hidden, axis=-1)
    # A row that may look at no key is not a number yet.
    return graph.op("Where", mask, weights, graph.real(0.0))


def _shaw(
    graph: OnnxGraph,
    layer: MultiHeadAttention,
    queries: str,
    source: KeysValues,
    scale: float,
    places: Places,
) -> str:
    """Attention with Shaw's tables: see `headloom.mechanism.positions.Shaw`."""
    scores = _products(graph, queries, source.keys)
    clip = len(layer.key_table) // 2
    clipped = graph.op("Clip", _there(places.distances), graph.number(-clip), graph.number(clip))
    rows = graph.op("Add", clipped, graph.number(clip))
    index = graph.op("Expand", rows, graph.op("Shape", scores))
    by_distance = graph.op("MatMul", queries, graph.transposed(layer.key_table))
    scores = graph.op("Add", scores, graph.op("GatherElements", by_distance, index, axis=-1))
    scores = graph.op("Mul", scores, graph.real(scale))
    weights = _softmax(graph, scores, places.mask)
    output = graph.op("MatMul", weights, source.values)
    table = layer.value_table
    if table is None:
        return output
    # Each row's weights are summed by distance first, as in headloom's formula.
    empty = graph.op("Mul", by_distance, graph.real(0.0))
    summed = graph.op("ScatterElements", empty, index, weights, axis=-1, reduction="add")
    return graph.op("Add", output, graph.op("MatMul", summed, graph.weight(table)))


def _bucket_bias(graph: OnnxGraph, layer: MultiHeadAttention, places: Places) -> str:
    """``B``, (heads, queries, keys): see `headloom.mechanism.positions.Buckets`."""
    relative, far = layer.relative_positions(), layer.max_distance
    if not isinstance(relative, Buckets):
        raise TypeError("the layer has buckets of distances")
    # All keys farther away than that share one number.
    by_distance = relative.bias_of(torch.arange(-far, far + 1)).T
    name = f"{graph.name_of(layer.bucket_table)}, by distance"
    near = graph.op("Clip", _there(places.distances), graph.number(-far), graph.number(far))
    rows = graph.op("Add", near, graph.number(far))
    bias = graph.op("Gather", graph.weight(by_distance, name), rows)
    return graph.op("Transpose", bias, perm=[2, 0, 1])


def _split(graph: OnnxGraph, layer: MultiHeadAttention, projected: str, heads: int) -> str:
    """(batch, positions, heads * depth) to (batch, heads, positions, depth)."""
    by_head = graph.op("Reshape", projected, graph.numbers(0, 0, heads, layer.depth))
    return graph.op("Transpose", by_head, perm=[0, 2, 1, 3])


def _turned(graph: OnnxGraph, layer: MultiHeadAttention, vectors: str, places: Places) -> str:
    """Queries or keys turned by their positions: see `headloom.mechanism.rotary`."""
    if layer.relative != "rotary":
        return vectors
    half = layer.depth // 2
    # What becomes of (1, 0) is (cos, sin).
    ones = torch.ones(places.longest, layer.depth) * (torch.arange(2 * half) < half)
    table = layer.turned(ones)
    cosines, sines = (
        graph.op(
            "Unsqueeze",
            graph.op("Gather", graph.weight(part, f"rotary {name}"), _there(places.positions)),
            graph.numbers(1),
        )
        for name, part in zip(("cosines", "sines"), table.chunk(2, -1), strict=True)
    )
    first, second = (
        graph.op("Slice", vectors, graph.numbers(a), graph.numbers(b), graph.numbers(3))
        for a, b in ((0, half), (half, layer.depth))
    )
    turned = (
        graph.op("Sub", graph.op("Mul", first, cosines), graph.op("Mul", second, sines)),
        graph.op("Add", graph.op("Mul", second, cosines), graph.op("Mul", first, sines)),
    )
    return graph.op("Concat", *turned, axis=-1)


def _there(name: str | None) -> str:
    if name is None:
        raise TypeError("these positions ask for places that were not made")
    return name
