"""What models of headloom are made of and called with by mistake: one error that names it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import headloom
from headloom.models.classifier import Classifier
from headloom.models.configuration import Architecture
from headloom.models.images import ConvolutionalClassifier, VisionTransformer
from headloom.models.language_model import LanguageModel
from headloom.models.transformer import Transformer

SIZES: dict[str, Any] = {
    "width": 12, "heads": 4, "feed_forward": 16, "encoder_layers": 1, "decoder_layers": 1,
}  # fmt: skip
SHAPE = (3, 8, 8)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Architecture(**SIZES | {"kv_heads": 3}), "model.kv_heads 3 does not divide"),
        (lambda: Architecture(**SIZES | {"positions": "rotary"}), "3 coordinates, an odd number"),
        (lambda: Architecture(positions="buckets", buckets=3), "3 buckets with max_distance=128"),
        (lambda: Architecture(positions="alibi", weights="uniform"), "act on the weights"),
        (
            lambda: Architecture(positions="rope"),
            "positions='rope'; expected one of",
        ),
        (lambda: Architecture(heads=0), "heads is 0; expected a whole number, 1 or more"),
        (lambda: LanguageModel(9)(torch.full((2, 5), 9)), "ids from 9 to 9; the model has"),
        (lambda: Transformer(9, encoder_layers=0), "a translator needs at least"),
        (
            lambda: Classifier(9, 3, padding=0)(torch.tensor([[1], [0]])),
            "one text has only padding",
        ),
        (lambda: VisionTransformer(SHAPE, 3, patch=(3, 4)), "do not split into such"),
        (lambda: VisionTransformer(SHAPE, 3)(torch.zeros(1, 3, 4, 4)), "this model reads"),
        (lambda: ConvolutionalClassifier(SHAPE, 3, halved=(5,)), "model.halved 5: model.channels"),
        (lambda: ConvolutionalClassifier(SHAPE, 3, region=(0, 0, 9, 1)), "have 8 rows and 8 colum"),
    ],
)
def test_models_that_cannot_be(make: Callable[[], object], message: str) -> None:
    with pytest.raises(headloom.InputError, match=message):
        make()
