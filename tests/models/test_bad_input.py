"""What models of headloom are made of and called with by mistake: one error that names it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import headloom
from headloom.models.blocks import DecoderBlock, EncoderBlock, FeedForward
from headloom.models.classifier import Classifier
from headloom.models.configuration import Architecture
from headloom.models.convolutional import ConvolutionalClassifier, Convolutions, Region
from headloom.models.graph_attention import GraphAttentionNetwork
from headloom.models.image_classifier import ImageShape
from headloom.models.language_model import LanguageModel
from headloom.models.norms import norm_of
from headloom.models.text_encoder import TextEncoder
from headloom.models.transformer import Transformer
from headloom.models.vision_transformer import VisionTransformer

SIZES: dict[str, Any] = {
    "width": 12, "heads": 4, "feed_forward": 16, "encoder_layers": 1, "decoder_layers": 1,
}  # fmt: skip
ARCHITECTURE = Architecture(**SIZES)
SHAPE = ImageShape(3, 8, 8)


zeros = torch.zeros

MODELS: dict[str, Callable[..., Any]] = {
    "language model": lambda vocabulary, **options: LanguageModel(
        vocabulary, ARCHITECTURE, **options
    ),
    "translator": lambda vocabulary, **options: Transformer(vocabulary, ARCHITECTURE, **options),
    "encoder": lambda vocabulary, **options: TextEncoder(vocabulary, ARCHITECTURE, **options),
    "classifier": lambda vocabulary, **options: Classifier(vocabulary, 3, ARCHITECTURE, **options),
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": "12"}, "model.width is '12'; expected a whole number"),
        ({"heads": 0.5}, "model.heads is 0.5"),
        ({"kv_heads": 3}, "model.kv_heads 3 does not divide model.heads = 4"),
        ({"feed_forward": None}, "model.feed_forward is None"),
        ({"positions": "relative"}, 'model.positions=.*"sinusoidal", "learned"'),
        ({"norm": "both"}, 'model.norm=.*"pre", "post"'),
        ({"activation": "tanh"}, 'model.activation=.*"relu"'),
        ({"norm_epsilon": -1.0}, "model.norm_epsilon is -1.0"),
        ({"rotary_base": 0}, "model.rotary_base: base=0; expected a number above 0"),
        ({"depth": -2}, "model.depth is -2"),
        ({"clip": "a"}, "model.clip is 'a'"),
        ({"encoder_layers": -1}, "model.encoder_layers is -1; expected a whole number, 0 or more"),
        ({"attention_dropout": 2.0}, "model.attention_dropout is 2.0; .* from 0 to below 1"),
        ({"weights": "none"}, 'model.weights=.*"learned", "uniform"'),
    ],
)
def test_architectures_that_cannot_be(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(headloom.InputError, match=message):
        Architecture(**SIZES | changes)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (np.ones((2, 5), dtype=np.int64), "tokens are ndarray; expected ids"),
        ([[1, 2]], "tokens are list"),
        (zeros(2, 5), r"tokens are torch.float32"),
        (torch.ones(5, dtype=torch.int64), r"tokens are \(5\); .* ids\[None\]"),
        (torch.full((2, 5), 9), "ids from 9 to 9; the model has vectors for 0 to 8"),
        (torch.full((2, 5), -1), "ids from -1 to -1"),
    ],
)
def test_what_are_no_ids(name: str, ids: Any, message: str) -> None:
    model = MODELS[name](9)
    with pytest.raises(headloom.InputError, match=message):
        model(ids, ids) if name == "translator" else model(ids)


NOT_MADE: list[tuple[Callable[[], object], str]] = [
    (lambda: TextEncoder(9, ARCHITECTURE, head="all"), 'head=.*"none", "tokens"'),  # type: ignore[arg-type]
    (lambda: Classifier(9, "a", ARCHITECTURE), "classes is 'a'"),  # type: ignore[arg-type]
    (lambda: Classifier(9, 3, ARCHITECTURE, pooling="sum"), 'pooling=.*"mean"'),  # type: ignore[arg-type]
    (lambda: ImageShape(3, 0, 8), "rows is 0; expected a whole number, 1 or more"),
    (lambda: VisionTransformer((3, 8, 8), 3, ARCHITECTURE), "expected an ImageShape"),  # type: ignore[arg-type]
    (lambda: VisionTransformer(SHAPE, 3, ARCHITECTURE, patch=4), r"as \(4, 4\)"),  # type: ignore[arg-type]
    (lambda: VisionTransformer(SHAPE, 3, ARCHITECTURE, read="all"), 'read=.*"class token"'),  # type: ignore[arg-type]
    (lambda: Convolutions(16), "model.channels is 16; expected several"),  # type: ignore[arg-type]
    (lambda: Convolutions((1.5,)), "is 1.5; expected a whole number"),  # type: ignore[arg-type]
    (lambda: Convolutions(region=(0, 0, 1, 1)), "expected a Region"),  # type: ignore[arg-type]
    (lambda: Region("a", 0, 1, 1), "Region: row is 'a'"),  # type: ignore[arg-type]
    (lambda: ConvolutionalClassifier(SHAPE, 3, SIZES), "dict; expected Convolutions"),  # type: ignore[arg-type]
    (lambda: VisionTransformer(SHAPE, 3, SIZES), "dict; expected an Architecture"),  # type: ignore[arg-type]
    (lambda: EncoderBlock(None), "NoneType; expected an Architecture"),  # type: ignore[arg-type]
    (lambda: DecoderBlock(SIZES, source=True), "dict; expected an Architecture"),  # type: ignore[arg-type]
    (lambda: FeedForward(None), "NoneType; expected an Architecture"),  # type: ignore[arg-type]
    (lambda: norm_of(SIZES), "dict; expected an Architecture"),  # type: ignore[arg-type]
    (lambda: headloom.ImageSelfAttention(2.5), "channels is 2.5"),  # type: ignore[arg-type]
    (lambda: GraphAttentionNetwork(4, 3, version=3), "expected 1 or 2"),  # type: ignore[arg-type]
    (lambda: GraphAttentionNetwork(4, 3, layers=1.5), "layers is 1.5"),  # type: ignore[arg-type]
    (lambda: GraphAttentionNetwork(4, 3, weights="all"), 'weights=.*"learned"'),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("make", "message"), NOT_MADE)
def test_models_that_cannot_be(make: Callable[[], object], message: str) -> None:
    with pytest.raises(headloom.InputError, match=message):
        make()


INPUTS = zeros(2, 5, 12)


def test_sources_of_a_block_that_looks_at_none_and_none_where_it_looks_at_one() -> None:
    with pytest.raises(
        headloom.InputError, match="there is no source, and the block was made with"
    ):
        DecoderBlock(ARCHITECTURE, source=True)(INPUTS, headloom.causal())
    with pytest.raises(headloom.InputError, match="there is a source, and the block looks at none"):
        DecoderBlock(ARCHITECTURE, source=False)(INPUTS, headloom.causal(), INPUTS)
    with pytest.raises(headloom.InputError, match="cache is int; expected a BlockCache"):
        DecoderBlock(ARCHITECTURE, source=False)(INPUTS, headloom.causal(), cache=3)  # type: ignore[arg-type]


def test_a_text_of_padding_alone_has_no_class() -> None:
    model = Classifier(9, 3, ARCHITECTURE)
    for ids in (torch.tensor([[1, 2], [0, 0]]), torch.ones(2, 0, dtype=torch.int64)):
        for method in (model, model.encode, model.contributions):
            with pytest.raises(
                headloom.InputError, match="a text of them has no token but padding"
            ):
                method(ids)
    assert model(torch.ones(0, 3, dtype=torch.int64)).shape == (0, 3)
