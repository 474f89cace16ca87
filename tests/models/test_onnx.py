"""Models as ONNX graphs: what onnxruntime computes of them, against headloom's own models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import headloom
from headloom.models.classifier import Classifier
from headloom.models.configuration import Architecture, PoolingKind
from headloom.models.convolutional import ConvolutionalClassifier, Convolutions, Region
from headloom.models.image_classifier import ImageShape
from headloom.models.language_model import LanguageModel
from headloom.models.onnx import graph as onnx_graph
from headloom.models.onnx.graph import OnnxGraph
from headloom.models.onnx.images import image_classifier
from headloom.models.onnx.texts import classifier, language_model, translator
from headloom.models.transformer import Transformer
from headloom.models.vision_transformer import VisionTransformer

onnxruntime = pytest.importorskip("onnxruntime")

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
    {"positions": "buckets"},
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


class Opened:
    """A graph that onnxruntime has read from its file."""

    def __init__(self, graph: OnnxGraph, folder: Path) -> None:
        graph.save(folder / "graph.onnx")
        self.session = onnxruntime.InferenceSession(folder / "graph.onnx")

    def __call__(self, **inputs: Any) -> dict[str, Tensor]:
        given = {name: np.asarray(value) for name, value in inputs.items()}
        names = [output.name for output in self.session.get_outputs()]
        found = self.session.run(names, given)
        return dict(zip(names, map(torch.from_numpy, found), strict=True))


def close(found: Tensor, expected: Tensor) -> None:
    assert found.shape == expected.shape
    assert float((found - expected).abs().max()) < 2e-5 * max(1.0, float(expected.abs().max()))


def empty(layers: int, heads: int, depth: int, batch: int, part: str = "") -> dict[str, Tensor]:
    return {
        f"past_key_values.{layer}.{part}{kind}": torch.empty(batch, heads, 0, depth)
        for layer in range(layers)
        for kind in ("key", "value")
    }


def as_past(found: dict[str, Tensor]) -> dict[str, Tensor]:
    return {
        name.replace("present", "past_key_values"): value
        for name, value in found.items()
        if name.startswith("present")
    }


@pytest.mark.parametrize("choices", CHOICES, ids=str)
@torch.no_grad()
def test_translators(choices: dict[str, Any], tmp_path: Path) -> None:
    architecture = Architecture(**SIZES | choices)
    model = randomised(Transformer(30, architecture))
    graphs = translator(model)
    assert list(graphs) == ["encoder", "decoder"]
    encoder, decoder = (Opened(graph, tmp_path) for graph in graphs.values())
    for batch, length in ((1, 1), (3, 7), (2, 13)):
        source, target = torch.randint(4, 30, (2, batch, length))
        source[-1, max(1, length // 2) :] = 0
        real = (source != 0).long()
        expected = model(source, target)
        read = encoder(input_ids=source, attention_mask=real) | {"encoder_attention_mask": real}
        heads = architecture.kv_heads or 4
        assert read["past_key_values.1.encoder.key"].shape == (batch, heads, length, 4)
        past = empty(2, heads, 4, batch, "decoder.")
        whole = decoder(input_ids=target, **read, **past)
        close(whole["logits"], expected)
        for place in range(length):  # the same one token after the other
            found = decoder(input_ids=target[:, place : place + 1], **read, **past)
            close(found["logits"][:, 0], expected[:, place])
            past = as_past(found)
        for name, value in past.items():
            close(value, as_past(whole)[name])


@pytest.mark.parametrize("choices", CHOICES, ids=str)
@torch.no_grad()
def test_language_models(choices: dict[str, Any], tmp_path: Path) -> None:
    architecture = Architecture(**SIZES | choices)
    model = randomised(LanguageModel(30, architecture))
    (graph,) = language_model(model).values()
    opened = Opened(graph, tmp_path)
    ids = torch.randint(4, 30, (3, 9))
    heads = architecture.kv_heads or 4
    past = empty(2, heads, 4, 3)
    close(
        opened(input_ids=ids, attention_mask=torch.ones(3, 9).long(), **past)["logits"], model(ids)
    )
    # Rows of 9, 6 and 2 tokens, filled up on the left; the last 3 columns are read in turn.
    real = torch.tensor([[1] * 9, [0] * 3 + [1] * 6, [0] * 7 + [1] * 2])
    logits = []
    for start, end in ((0, 6), (6, 7), (7, 8), (8, 9)):
        found = opened(input_ids=ids[:, start:end], attention_mask=real[:, :end], **past)
        logits.append(found["logits"])
        past = as_past(found)
    together = torch.cat(logits, 1)
    assert bool(together.isfinite().all())  # at padding too
    for row, length in enumerate((9, 6, 2)):
        close(together[row, -length:], model(ids[row : row + 1, -length:])[0])


POOLINGS: tuple[PoolingKind, ...] = ("mean", "first", "max")


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("choices", CHOICES[:5], ids=str)
@torch.no_grad()
def test_classifiers(choices: dict[str, Any], pooling: PoolingKind, tmp_path: Path) -> None:
    model = randomised(Classifier(30, 3, Architecture(**SIZES | choices), pooling=pooling))
    (graph,) = classifier(model).values()
    opened = Opened(graph, tmp_path)
    for batch, length in ((1, 1), (4, 11)):
        ids = torch.randint(4, 30, (batch, length))
        for row in range(1, batch):
            ids[row, 3 * row :] = 0
        close(opened(input_ids=ids, attention_mask=(ids != 0).long())["logits"], model(ids))


@pytest.mark.parametrize("read", ["class token", "mean"])
@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "none"])
@torch.no_grad()
def test_vision_transformers(read: Any, positions: Any, tmp_path: Path) -> None:
    architecture = Architecture(**SIZES | {"positions": positions, "activation": "gelu"})
    model = randomised(
        VisionTransformer(ImageShape(3, 8, 6), 5, architecture, patch=(2, 3), read=read)
    )
    of_images(model, tmp_path)


@pytest.mark.parametrize(
    "choices",
    [
        {"attention": None, "halved": (1, 3), "batch_norm": True},
        {"attention": 2, "pooled": True, "value_channels": 3},
        {"attention": 1, "halved": (1,), "spectral_norm": False, "region": Region(1, 0, 2, 3)},
    ],
    ids=str,
)
@torch.no_grad()
def test_convolutions(choices: Any, tmp_path: Path) -> None:
    convolutions = Convolutions(channels=(8, 4, 6), inner_channels=2, **choices)
    model = randomised(ConvolutionalClassifier(ImageShape(3, 8, 6), 5, convolutions))
    for norm in model.norms:
        if isinstance(norm, torch.nn.BatchNorm2d) and norm.running_mean is not None:
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2)
    of_images(model, tmp_path)


def of_images(model: Any, folder: Path) -> None:
    mean, deviation = torch.rand(2, 3, 1, 1) + 0.1
    (graph,) = image_classifier(model, mean, deviation).values()
    opened = Opened(graph, folder)
    for batch in (1, 3):
        images = torch.rand(batch, 3, 8, 6)
        close(opened(pixel_values=images)["logits"], model((images - mean) / deviation))


@torch.no_grad()
def test_large_weights_lie_beside_the_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_graph, "LARGEST", 100)
    model = randomised(Classifier(30, 3, Architecture(**SIZES)))
    (graph,) = classifier(model).values()
    opened = Opened(graph, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["graph.onnx", "graph.onnx.data"]
    ids = torch.randint(4, 30, (2, 5))
    close(opened(input_ids=ids, attention_mask=torch.ones_like(ids))["logits"], model(ids))
