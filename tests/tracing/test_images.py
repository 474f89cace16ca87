"""Traces of models that see images: their positions are places with a row and a column."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import headloom
from headloom.formats.history import History, write_snapshot
from headloom.models.configuration import Architecture
from headloom.models.convolutional import ConvolutionalClassifier, Convolutions
from headloom.models.image_classifier import ImageShape
from headloom.models.vision_transformer import VisionTransformer
from headloom.tracing.recording.module_sequences import _grid
from headloom.training.recording import snapshot
from headloom.training.tasks.task import Probe

SHAPE = ImageShape(1, 8, 12)


@pytest.fixture
def convolutional() -> ConvolutionalClassifier:
    torch.manual_seed(1)
    choices = Convolutions((16, 16), halved=(2,), attention=2, pooled=True, value_channels=8)
    model = ConvolutionalClassifier(SHAPE, 3, choices)
    assert model.attention is not None
    model.attention.gamma.data.fill_(1.0)
    return model


@pytest.fixture
def transformer() -> VisionTransformer:
    torch.manual_seed(1)
    architecture = Architecture(width=16, heads=2, feed_forward=16, encoder_layers=2)
    return VisionTransformer(SHAPE, 3, architecture, patch=(4, 4))


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


@pytest.mark.parametrize(
    ("tokens", "names"),
    [
        (("cls_token",), ["[CLS]"]),
        (("cls_token", "dist_token"), ["[CLS]", "[DISTILLATION]"]),
        (("cls_token", "reg_token"), ["[CLS]", "[REGISTER 1]"]),
        (("reg_token",), ["[REGISTER 1]"]),
    ],
)
def test_what_stands_before_the_patches_is_named_as_timm_knows_it(tokens, names) -> None:
    model = nn.Module()
    model.patch_embed, model.num_prefix_tokens = nn.Module(), len(tokens)
    model.patch_embed.patch_size = (2, 2)
    for token in tokens:
        setattr(model, token, nn.Parameter(torch.zeros(1, 1, 4)))
    grid = _grid(model, {"images": torch.rand(1, 1, 2, 4)})
    assert grid is not None and grid.names() == [*names, "patch 0,0", "patch 0,1"]


def test_a_batch_gives_a_trace_for_each_image(transformer) -> None:
    images = torch.rand(2, 1, 8, 12)
    both = headloom.trace(transformer, images)
    alone = headloom.trace(transformer, images[1:])
    found, expected = (trace.layers[1].graph.weights for trace in (both[1], alone))
    torch.testing.assert_close(found, expected)


def test_watching_sees_images(convolutional) -> None:
    with headloom.watch(convolutional.eval()) as watched, torch.no_grad():
        convolutional(torch.rand(1, 1, 8, 12))
    assert watched.trace.layers[0].key_tokens[23] == "patch 3,5"


def test_own_modules_with_the_block_are_traced() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), headloom.ImageSelfAttention(8), nn.Flatten())
    trace = headloom.trace(model, torch.rand(1, 3, 6, 7))
    assert trace.layers[0].name == "1" and trace.layers[0].query_tokens[-1] == "patch 3,4"


def test_inputs_that_are_neither_tokens_nor_images(transformer) -> None:
    with pytest.raises(headloom.InputError, match="no token ids and no images"):
        headloom.trace(transformer, torch.rand(8, 12))


@pytest.mark.parametrize("training", [True, False])
def test_a_snapshot_has_places_and_moves_nothing(convolutional, training, tmp_path) -> None:
    """Not even the vectors of spectral norm, which go on with each look in training."""
    model = convolutional.train(training)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model(torch.rand(2, 1, 8, 12)).sum().backward()
    moved = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert training == any(not torch.equal(before[name], moved[name]) for name in before)
    state = snapshot(model, Probe({"images": torch.rand(1, 1, 8, 12)}, {}), 3, 1.0, gradients=True)
    assert all(torch.equal(moved[name], tensor) for name, tensor in model.state_dict().items())

    write_snapshot(tmp_path, state)
    layer = History(tmp_path)[3].layer("attention")
    assert layer.scale == 1.0
    assert {name: tuple(matrix.shape) for name, matrix in layer.matrices.items()} == {
        "W_Q": (1, 16, 2), "W_K": (1, 16, 2), "W_V": (1, 16, 8), "W_O": (1, 8, 16)
    }  # fmt: skip
    assert layer.graph.shape == (1, 96, 24)
    assert (layer.query_tokens[13], layer.key_tokens[13]) == ("patch 1,1", "patch 2,1")
    assert all(value > 0 for value in layer.measures["gradient_norm_W_V"])

    from headloom.analysis.heads.formation import trace_of_snapshot

    trace = trace_of_snapshot(History(tmp_path)[3])
    assert {name: len(tokens) for name, tokens in trace.sequences.items()} == {
        "tokens": 96, "tokens-24": 24
    }  # fmt: skip
    assert trace.layers[0].scale == 1.0 and trace.layers[0].keys_from == "tokens-24"
