"""Models as plain operations of torch give what headloom's own models give."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import headloom
from headloom.models.classifier import Classifier
from headloom.models.configuration import Architecture
from headloom.models.convolutional import ConvolutionalClassifier, Convolutions, Region
from headloom.models.image_classifier import ImageShape
from headloom.models.language_model import LanguageModel
from headloom.models.plain import Decoder, Encoder, Images, TextClassifier, Writer
from headloom.models.transformer import Transformer
from headloom.models.vision_transformer import VisionTransformer

SIZES: dict[str, Any] = {
    "width": 16, "heads": 4, "feed_forward": 24, "encoder_layers": 2, "decoder_layers": 2,
    "max_length": 40, "clip": 3,
}  # fmt: skip
CHOICES: list[dict[str, Any]] = [
    {"positions": "sinusoidal"},
    {"positions": "learned", "norm": "post", "activation": "gelu"},
    {"positions": "shaw", "kv_heads": 2},
    {"positions": "shaw-keys", "tied": False},
    {"positions": "alibi", "kv_heads": 1},
    {"positions": "buckets", "kv_heads": 2, "buckets": 8, "max_distance": 7},
    {"positions": "rotary", "norm": "post"},
    {"positions": "rotary", "rotary_scaling": headloom.RotaryScaling("yarn", 4, 8)},
    {"positions": "none", "weights": "uniform", "activation": "gelu"},
    {
        "positions": "rotary",
        "rotary_base": 50.0,
        "normalisation": "rms",
        "norm_epsilon": 0.01,
        "feed_forward_kind": "gated",
        "activation": "silu",
        "biases": False,
        "tied": False,
        "output_bias": True,
    },
    {"activation": "gelu-tanh", "scaled_embeddings": False, "output_bias": True},
]


def randomised(model: torch.nn.Module) -> Any:
    """A model whose every number is random: biases and norms that are 0 or 1 would hide slips."""
    torch.manual_seed(3)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return model.eval()


def close(found: Tensor, expected: Tensor) -> None:
    assert found.shape == expected.shape
    assert float((found - expected).abs().max()) < 2e-5 * max(1.0, float(expected.abs().max()))


@pytest.mark.parametrize("choices", CHOICES, ids=str)
@torch.no_grad()
def test_translators(choices: dict[str, Any]) -> None:
    architecture = Architecture(**SIZES | choices)
    model = randomised(Transformer(30, architecture))
    encoder, decoder = Encoder(model, 40), Decoder(model, 40)
    source, target = torch.randint(4, 30, (2, 3, 7))
    source[-1, 3:] = 0
    real = (source != 0).long()
    read = encoder(source, real)
    past = [torch.empty(3, architecture.kv_heads or 4, 0, 4)] * 4
    expected = model(source, target)
    whole, *present = decoder(target, real, past, read)
    close(whole, expected)
    for place in range(7):  # the same one token after the other
        logits, *past = decoder(target[:, place : place + 1], real, past, read)
        close(logits[:, 0], expected[:, place])
    for one, other in zip(past, present, strict=True):
        close(one, other)


@pytest.mark.parametrize("choices", CHOICES, ids=str)
@torch.no_grad()
def test_language_models(choices: dict[str, Any]) -> None:
    architecture = Architecture(**SIZES | choices)
    model = randomised(LanguageModel(30, architecture))
    writer = Writer(model, 40)
    ids = torch.randint(4, 30, (3, 9))
    past = [torch.empty(3, architecture.kv_heads or 4, 0, 4)] * 4
    close(writer(ids, torch.ones(3, 9).long(), past)[0], model(ids))
    # Rows of 9, 6 and 2 tokens, filled up on the left; the last 3 columns are read in turn.
    real = torch.tensor([[1] * 9, [0] * 3 + [1] * 6, [0] * 7 + [1] * 2])
    parts = []
    for start, end in ((0, 6), (6, 7), (7, 8), (8, 9)):
        logits, *past = writer(ids[:, start:end], real[:, :end], past)
        parts.append(logits)
    together = torch.cat(parts, 1)
    assert bool(together.isfinite().all())  # at padding too
    for row, length in enumerate((9, 6, 2)):
        close(together[row, -length:], model(ids[row : row + 1, -length:])[0])


@pytest.mark.parametrize("pooling", ["mean", "first", "max"])
@torch.no_grad()
def test_classifiers(pooling: Any) -> None:
    model = randomised(Classifier(30, 3, Architecture(**SIZES | CHOICES[2]), pooling=pooling))
    ids = torch.randint(4, 30, (4, 11))
    for row in range(1, 4):
        ids[row, 3 * row :] = 0
    close(TextClassifier(model, 40)(ids, (ids != 0).long()), model(ids))


@pytest.mark.parametrize("read", ["class token", "mean"])
@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "none"])
def test_vision_transformers(read: Any, positions: Any) -> None:
    architecture = Architecture(**SIZES | {"positions": positions, "activation": "gelu"})
    shape = ImageShape(3, 8, 6)
    of_images(randomised(VisionTransformer(shape, 5, architecture, patch=(2, 3), read=read)))


@pytest.mark.parametrize(
    "choices",
    [
        {"attention": None, "halved": (1, 3), "batch_norm": True},
        {"attention": 2, "pooled": True, "value_channels": 3},
        {"attention": 1, "halved": (1,), "spectral_norm": False, "region": Region(1, 0, 2, 3)},
    ],
    ids=str,
)
def test_convolutions(choices: Any) -> None:
    convolutions = Convolutions(channels=(8, 4, 6), inner_channels=2, **choices)
    model = randomised(ConvolutionalClassifier(ImageShape(3, 8, 6), 5, convolutions))
    for norm in model.norms:
        if isinstance(norm, torch.nn.BatchNorm2d) and norm.running_mean is not None:
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2)
    of_images(model)


@torch.no_grad()
def of_images(model: Any) -> None:
    mean, deviation = torch.rand(2, 3, 1, 1) + 0.1
    images = torch.rand(3, 3, 8, 6)
    close(Images(model, mean, deviation).eval()(images), model((images - mean) / deviation))
