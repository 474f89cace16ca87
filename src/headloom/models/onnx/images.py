"""Models that name the class of an image, as ONNX graphs.

    pixel_values, (batch, channels, rows, columns), 0 to 1, to logits, (batch, classes)

The pixels are normalised by the mean and deviation of the training data within the graph.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headloom.models.convolutional import ConvolutionalClassifier
from headloom.models.image_attention import ImageSelfAttention
from headloom.models.onnx.attention import KeysValues, Places, attended, linear
from headloom.models.onnx.blocks import encoder_blocks, normed
from headloom.models.onnx.graph import OnnxGraph
from headloom.models.vision_transformer import VisionTransformer

__all__ = ["image_classifier"]


def image_classifier(
    model: VisionTransformer | ConvolutionalClassifier, mean: Tensor, deviation: Tensor
) -> dict[str, OnnxGraph]:
    """The graph of a model, by the name of its file.

    Args: mean, deviation: of the channels, broadcastable to (channels, rows, columns).
    """
    graph = OnnxGraph("image classifier", model)
    shape = model.shape
    sizes = ("batch", shape.channels, shape.rows, shape.columns)
    pixels = graph.input("pixel_values", sizes, torch.float32)
    centred = graph.op("Sub", pixels, graph.weight(mean, "mean of the pixels"))
    images = graph.op("Div", centred, graph.weight(deviation, "deviation of the pixels"))
    vector = (
        _of_patches(graph, model, images)
        if isinstance(model, VisionTransformer)
        else _of_convolutions(graph, model, images)
    )
    scores = linear(graph, model.class_scores, vector)
    graph.output("logits", scores, ("batch", model.class_scores.out_features))
    return {"model": graph}


def _of_patches(graph: OnnxGraph, model: VisionTransformer, images: str) -> str:
    width, architecture = model.architecture.width, model.architecture
    patches = _convolved(graph, "patches", model.patches, images)
    by_place = graph.op("Reshape", patches, graph.numbers(0, width, -1))
    vectors = graph.op("Transpose", by_place, perm=[0, 2, 1])
    if model.grid.before:
        batch = graph.op("Shape", images, start=0, end=1)
        sizes = graph.op("Concat", batch, graph.numbers(1, width), axis=0)
        first = graph.op("Expand", graph.weight(model.class_token), sizes)
        vectors = graph.op("Concat", first, vectors, axis=1)
    if architecture.positions == "learned":
        vectors = graph.op("Add", vectors, graph.weight(model.positions))
    elif architecture.positions == "sinusoidal":
        table = graph.weight(model.sinusoids, "sinusoidal positions")
        vectors = graph.op("Add", vectors, table)
    outputs = encoder_blocks(graph, model.encoder, vectors, Places())
    outputs = normed(graph, model.encoder_norm, outputs)
    if model.grid.before:
        return graph.op("Gather", outputs, graph.number(0), axis=1)
    return graph.op("ReduceMean", outputs, axes=[1], keepdims=0)


def _of_convolutions(graph: OnnxGraph, model: ConvolutionalClassifier, images: str) -> str:
    choices, features = model.choices, images
    layers = zip(model.convolutions, model.norms, strict=True)
    for number, (convolution, norm) in enumerate(layers, 1):
        if not isinstance(convolution, nn.Conv2d):
            raise TypeError("a convolution is a Conv2d")
        features = _convolved(graph, f"convolutions.{number - 1}", convolution, features)
        if isinstance(norm, nn.BatchNorm2d):
            features = _batch_normed(graph, f"norms.{number - 1}", norm, features)
        features = graph.op("Relu", features)
        if model.attention is not None and number == choices.attention:
            features = _looked_around(graph, model.attention, features)
        if number in choices.halved:
            features = graph.op("MaxPool", features, kernel_shape=[2, 2], strides=[2, 2])
    region = choices.region
    if region is not None:
        end = region.row + region.rows, region.column + region.columns
        features = graph.op(
            "Slice", features, graph.numbers(region.row, region.column), graph.numbers(*end),
            graph.numbers(2, 3),
        )  # fmt: skip
    return graph.op("ReduceMean", features, axes=[2, 3], keepdims=0)


def _convolved(graph: OnnxGraph, name: str, convolution: nn.Conv2d, images: str) -> str:
    """A convolution; its weight is that after spectral norm, where it has one."""
    parts = [graph.weight(convolution.weight, f"{name}.weight")]
    if convolution.bias is not None:
        parts.append(graph.weight(convolution.bias))
    rows, columns = (int(size) for size in convolution.padding)
    return graph.op(
        "Conv", images, *parts, kernel_shape=list(convolution.kernel_size),
        strides=list(convolution.stride), pads=[rows, columns, rows, columns],
    )  # fmt: skip


def _batch_normed(graph: OnnxGraph, name: str, norm: nn.BatchNorm2d, images: str) -> str:
    mean, variance = norm.running_mean, norm.running_var
    if mean is None or variance is None:
        raise TypeError("a batch norm of headloom keeps its mean and variance")
    parts = (norm.weight, "weight"), (norm.bias, "bias"), (mean, "mean"), (variance, "variance")
    inputs = [graph.weight(tensor, f"{name}.{part}") for tensor, part in parts]
    return graph.op("BatchNormalization", images, *inputs, epsilon=norm.eps)


def _looked_around(graph: OnnxGraph, block: ImageSelfAttention, images: str) -> str:
    """SAGAN's block: see `headloom.models.image_attention`."""
    queries, keys, values = (
        _convolved(graph, f"attention.{name}", convolution, images)
        for name, convolution in (("g", block.g), ("f", block.f), ("h", block.h))
    )
    if block.pooled:
        keys, values = (
            graph.op("MaxPool", part, kernel_shape=[2, 2], strides=[2, 2])
            for part in (keys, values)
        )
    queries, keys, values = (
        _as_sequence(graph, part, convolution.out_channels)
        for part, convolution in ((queries, block.g), (keys, block.f), (values, block.h))
    )
    output = attended(graph, queries, KeysValues(keys, values), 1.0)
    flat = graph.op("Transpose", output, perm=[0, 1, 3, 2])  # (batch, 1, channels, places)
    sizes = graph.op(
        "Concat", graph.op("Shape", images, start=0, end=1), graph.numbers(block.h.out_channels),
        graph.op("Shape", images, start=2, end=4), axis=0,
    )  # fmt: skip
    seen = _convolved(graph, "attention.v", block.v, graph.op("Reshape", flat, sizes))
    scaled = graph.op("Mul", graph.weight(block.gamma), seen)
    return graph.op("Add", images, scaled)


def _as_sequence(graph: OnnxGraph, images: str, channels: int) -> str:
    """(batch, channels, rows, columns) to (batch, 1, rows * columns, channels)."""
    flat = graph.op("Reshape", images, graph.numbers(0, 1, channels, -1))
    return graph.op("Transpose", flat, perm=[0, 1, 3, 2])
