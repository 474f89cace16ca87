"""Blocks by their formulas: x + f(norm(x)) before, norm(x + f(x)) after."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import pytest
import torch

from headloom.mechanism.masks import causal, padding
from headloom.models.blocks import DecoderBlock, EncoderBlock, FeedForward
from headloom.models.configuration import Architecture


def architecture(norm: Literal["pre", "post"] = "pre", **changes: object) -> Architecture:
    sizes: dict[str, object] = {"width": 8, "heads": 2, "feed_forward": 12, "dropout": 0.0}
    return Architecture(norm=norm, **{**sizes, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_encoder_block(norm: Literal["pre", "post"]) -> None:
    torch.manual_seed(2)
    block = EncoderBlock(architecture(norm))
    x, mask = torch.randn(2, 4, 8), padding([4, 2])
    first, second = block.self_attention_norm, block.feed_forward_norm
    if norm == "pre":
        x1 = x + block.self_attention(first(x), mask=mask)
        expected = x1 + block.feed_forward(second(x1))
    else:
        x1 = first(x + block.self_attention(x, mask=mask))
        expected = second(x1 + block.feed_forward(x1))
    torch.testing.assert_close(block(x, mask), expected)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_decoder_block(norm: Literal["pre", "post"]) -> None:
    torch.manual_seed(3)
    block = DecoderBlock(architecture(norm), source=True)
    assert block.cross_attention is not None
    assert block.cross_attention_norm is not None
    x, source, mask = torch.randn(2, 3, 8), torch.randn(2, 5, 8), padding([5, 2])
    norms = (block.self_attention_norm, block.cross_attention_norm, block.feed_forward_norm)
    layers = (
        lambda y: block.self_attention(y, mask=causal()),
        lambda y: block.cross_attention(y, source, mask=mask),  # type: ignore[misc]
        block.feed_forward,
    )
    expected = x
    for layer, normalise in zip(layers, norms, strict=True):
        if norm == "pre":
            expected = expected + layer(normalise(expected))
        else:
            expected = normalise(expected + layer(expected))
    torch.testing.assert_close(block(x, causal(), source, mask), expected)


def test_cross_attention_has_no_relative_positions() -> None:
    block = DecoderBlock(architecture(positions="shaw"), source=True)
    assert block.self_attention.relative == "shaw"
    assert block.cross_attention is not None
    assert block.cross_attention.relative == "none"


@pytest.mark.parametrize("kind", ["plain", "gated"])
@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu-tanh", "silu"])
def test_feed_forward_by_its_formula(activation: Any, kind: str) -> None:
    layer = FeedForward(architecture(width=6, feed_forward_kind=kind, activation=activation))
    layer.double()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    x = torch.randn(4, 6, dtype=torch.float64)
    numbers = {name: tensor.numpy() for name, tensor in layer.state_dict().items()}
    gated = kind == "gated"
    bending, risen = (
        x.numpy() @ numbers[f"{name}.weight"].T + numbers[f"{name}.bias"]
        for name in ("gate" if gated else "rise", "rise")
    )
    bent = {
        "relu": lambda v: max(v, 0.0),
        "gelu": lambda v: v / 2 * (1 + math.erf(v / math.sqrt(2))),
        "gelu-tanh": lambda v: (
            v / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3)))
        ),
        "silu": lambda v: v / (1 + math.exp(-v)),
    }[activation]
    hidden = np.vectorize(bent)(bending) * (risen if gated else 1)
    expected = hidden @ numbers["fall.weight"].T + numbers["fall.bias"]
    assert np.allclose(layer(x).detach().numpy(), expected, atol=1e-12)
