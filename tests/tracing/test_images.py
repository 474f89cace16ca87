"""Traces of models that see images: their positions are places with a row and a column."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import headloom
from headloom.models.images import (
    ConvolutionalClassifier,
    ImageShape,
    VisionTransformer,
)

SHAPE = ImageShape(1, 8, 12)


@pytest.fixture
def convolutional() -> ConvolutionalClassifier:
    torch.manual_seed(1)
    model = ConvolutionalClassifier(
        SHAPE, 3, channels=(16, 16), halved=(2,), attention=2, pooled=True, value_channels=8,
        batch_norm=False,
    )  # fmt: skip
    assert model.attention is not None
    model.attention.gamma.data.fill_(1.0)
    return model


@pytest.fixture
def transformer() -> VisionTransformer:
    torch.manual_seed(1)
    return VisionTransformer(SHAPE, 3, width=16, heads=2, feed_forward=16, layers=2)


def test_a_block_of_convolutions_is_traced(convolutional, tmp_path) -> None:
    images = torch.rand(1, 1, 8, 12)
    trace = headloom.trace(convolutional, images, keep=headloom.All(), save=tmp_path / "t.loom")
    (layer,) = trace.layers
    assert (layer.name, layer.shape) == ("attention", (1, 96, 24))
    assert (layer.queries_from, layer.keys_from) == ("patches", "patches-4x6")
    assert layer.query_tokens[13] == "patch 1,1" and layer.key_tokens[7] == "patch 1,1"
    assert trace.positions["patches"]["rows"][13] == 1
    assert trace.positions["patches-4x6"]["columns"] == [0, 1, 2, 3, 4, 5] * 4
    assert 0 <= trace.deviation < 2e-6

    # By hand: the block's input after two convolutions, its scores without a factor.
    model = convolutional.eval()
    with torch.no_grad():
        features = images
        for convolution in model.convolutions:
            features = nn.functional.relu(convolution(features))
        block = model.attention
        queries = block.g(features).flatten(2)[0].T
        keys = nn.functional.max_pool2d(block.f(features), 2).flatten(2)[0].T
        expected = (queries @ keys.T).softmax(-1)
    found = torch.tensor(layer.graph.adjacency(head=0).toarray())
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(layer.matrix[0, 5:9, :4], expected[5:9, :4], atol=1e-6, rtol=1e-4)
    assert headloom.open(tmp_path / "t.loom").layers[0].key_tokens[7] == "patch 1,1"


def test_a_vision_transformer_is_traced(transformer) -> None:
    trace = headloom.trace(transformer, {"images": torch.rand(1, 1, 8, 12)})
    names = ["[CLS]", *(f"patch {row},{column}" for row in range(2) for column in range(3))]
    assert [layer.shape for layer in trace.layers] == [(2, 7, 7)] * 2
    assert list(trace.sequences["patches"]) == names
    assert trace.positions["patches"]["rows"] == [-1, 0, 0, 0, 1, 1, 1]
    assert not trace.not_traced


def test_a_batch_gives_a_trace_for_each_image(transformer) -> None:
    images = torch.rand(2, 1, 8, 12)
    both = headloom.trace(transformer, images)
    alone = headloom.trace(transformer, images[1:])
    found, expected = (trace.layers[1].graph.weights for trace in (both[1], alone))
    torch.testing.assert_close(found, expected)
