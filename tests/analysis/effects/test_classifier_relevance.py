"""Relevance for a classifier, against a forward pass with dense weights written out here."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from headloom.analysis.effects.relevance import relevance
from headloom.models.classifier import Classifier
from headloom.models.configuration import PoolingKind

IDS = torch.tensor([[2, 5, 9, 5, 11, 7]])
WIDTH, HEADS = 16, 4


def model_of(pooling: PoolingKind, weights: str = "learned") -> Classifier:
    torch.manual_seed(4)
    return Classifier(
        13, 3, width=WIDTH, heads=HEADS, feed_forward=24, layers=2, positions="none",
        weights=weights, pooling=pooling,  # type: ignore[arg-type]
    ).double().eval()  # fmt: skip


def dense(model: Classifier) -> tuple[list[Tensor], Tensor]:
    """The weights of each layer, (heads, n, n), and what the encoder gives, from the formulas."""
    x = model.embedding.tokens.weight[IDS[0]] * math.sqrt(WIDTH)
    kept, depth = [], WIDTH // HEADS
    for block in model.encoder:
        layer, y = block.self_attention, block.self_attention_norm(x)
        q, k, v = (
            linear(y).view(len(y), HEADS, depth).transpose(0, 1)
            for linear in (layer.w_q, layer.w_k, layer.w_v)
        )
        scores = q @ k.mT / math.sqrt(depth)
        weights = (scores if layer.scale is None else 0 * scores).softmax(-1)
        kept.append(weights)
        x = x + layer.w_o((weights @ v).transpose(0, 1).reshape(len(y), WIDTH))
        forward = block.feed_forward
        x = x + forward.fall(forward.rise(block.feed_forward_norm(x)).relu())
    return kept, model.encoder_norm(x)


@pytest.mark.parametrize("weights", ["learned", "uniform"])
@pytest.mark.parametrize("pooling", ["mean", "first", "max"])
def test_the_pooling_is_one_more_layer(pooling: PoolingKind, weights: str) -> None:
    model = model_of(pooling, weights)
    label = int(model(IDS).argmax())
    kept, outputs = dense(model)
    row = model.output.weight[label]
    if pooling == "mean":
        parts = outputs @ row / len(outputs)
    elif pooling == "first":
        parts = torch.zeros(len(outputs), dtype=torch.float64)
        parts[0] = outputs[0] @ row
    else:
        parts = torch.zeros(len(outputs), dtype=torch.float64)
        for column in range(WIDTH):
            # The same word twice, without positions: both have the largest number.
            same = outputs[:, column] >= outputs[:, column].max() - 1e-12
            parts = parts + same / same.sum() * outputs[:, column] * row[column]
    score = parts.sum() + model.output.bias[label]
    torch.testing.assert_close(score, model(IDS)[0, label], rtol=1e-9, atol=1e-10)
    contributions = model.contributions(IDS)[0, :, label]
    torch.testing.assert_close(contributions, parts.detach(), rtol=1e-9, atol=1e-10)

    matrix = torch.eye(len(outputs), dtype=torch.float64)
    for layer in kept:
        (slope,) = torch.autograd.grad(score, layer, retain_graph=True)
        matrix = matrix + (slope * layer).clamp(min=0).mean(0).detach() @ matrix
    expected = parts.detach().clamp(min=0) @ matrix
    found = relevance(model, IDS, target=label, rows=contributions.clamp(min=0))
    assert found.shape == (1, len(outputs))
    torch.testing.assert_close(found[0].double(), expected, rtol=1e-5, atol=1e-6)
    assert expected.max() > 1.5 * expected.min()
