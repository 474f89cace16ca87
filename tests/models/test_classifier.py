"""The classifier against torch's own encoder, its poolings by hand, and uniform weights."""

from __future__ import annotations

import math

import pytest
import torch
from tests.torch_attention import torch_attention
from torch import Tensor, nn

from headloom.models.classifier import Classifier
from headloom.models.configuration import Architecture, PoolingKind

VOCABULARY, CLASSES, WIDTH = 13, 3, 16

#: Three texts; the ids 0 are padding.
TOKENS = torch.tensor([[2, 5, 6, 7, 8], [2, 12, 3, 0, 0], [2, 3, 9, 9, 0]])

close = {"rtol": 1e-9, "atol": 1e-10}


def architecture_of(**changes: object) -> Architecture:
    sizes = {"width": WIDTH, "heads": 4, "feed_forward": 24, "encoder_layers": 2, "max_length": 40}
    return Architecture(**{**sizes, **changes})  # type: ignore[arg-type]


def model_of(architecture: Architecture, pooling: PoolingKind = "mean") -> Classifier:
    torch.manual_seed(1)
    choices = architecture.arguments("encoder")
    model = Classifier(VOCABULARY, CLASSES, pooling=pooling, padding=0, **choices).double().eval()
    for name, parameter in model.named_parameters():
        if "bias" in name:
            nn.init.normal_(parameter)  # zero biases would hide a mistake
    return model


def by_torch(model: Classifier) -> Tensor:
    """What torch.nn.TransformerEncoderLayer makes of TOKENS with the same matrices."""
    sizes = model.architecture
    places = model.embedding.positions.weight[: TOKENS.shape[1]]
    vectors = model.embedding.tokens.weight[TOKENS] * math.sqrt(WIDTH) + places
    for block in model.encoder:
        layer = nn.TransformerEncoderLayer(
            WIDTH, sizes.heads, sizes.feed_forward, batch_first=True, dtype=torch.float64,
            activation=sizes.activation, norm_first=sizes.norm == "pre",
        ).eval()  # fmt: skip
        layer.self_attn.load_state_dict(torch_attention(block.self_attention).state_dict())
        layer.linear1.load_state_dict(block.feed_forward.rise.state_dict())
        layer.linear2.load_state_dict(block.feed_forward.fall.state_dict())
        layer.norm1.load_state_dict(block.self_attention_norm.state_dict())
        layer.norm2.load_state_dict(block.feed_forward_norm.state_dict())
        vectors = layer(vectors, src_key_padding_mask=TOKENS == 0)
    closing: Tensor = model.encoder_norm(vectors)
    return closing


def by_hand(outputs: Tensor, pooling: str) -> Tensor:
    rows = []
    for row, ids in zip(outputs, TOKENS, strict=True):
        real = [vector for vector, token in zip(row, ids, strict=True) if token != 0]
        if pooling == "mean":
            rows.append(
                torch.stack([sum(column) / len(real) for column in zip(*real, strict=True)])
            )
        elif pooling == "max":
            rows.append(torch.stack([max(column) for column in zip(*real, strict=True)]))
        else:
            rows.append(real[0])
    return torch.stack(rows)


@pytest.mark.parametrize("pooling", ["mean", "first", "max"])
@pytest.mark.parametrize(("norm", "activation"), [("pre", "relu"), ("post", "gelu")])
@torch.no_grad()
def test_torchs_encoder_pooled_by_hand(norm: str, activation: str, pooling: PoolingKind) -> None:
    model = model_of(
        architecture_of(norm=norm, activation=activation, positions="learned"), pooling
    )
    vectors = by_hand(by_torch(model), pooling)
    expected = vectors @ model.output.weight.T + model.output.bias
    assert expected.shape == (3, CLASSES)
    torch.testing.assert_close(model(TOKENS), expected, **close)
    sums = model.contributions(TOKENS).sum(1) + model.output.bias
    torch.testing.assert_close(sums, expected, **close)


@torch.no_grad()
def test_uniform_weights_are_the_mean_of_the_values() -> None:
    model = model_of(architecture_of(weights="uniform", positions="none"))
    layer = model.encoder[0].self_attention
    inputs = torch.randn(1, 5, WIDTH, dtype=torch.float64)
    values = inputs[0] @ layer.w_v.weight.T + layer.w_v.bias
    expected = values.mean(0) @ layer.w_o.weight.T + layer.w_o.bias
    torch.testing.assert_close(layer(inputs)[0], expected.expand(5, -1), **close)
    # Padding is looked at by nobody.
    real = torch.tensor([[True, True, True, False, False]])
    expected = values[:3].mean(0) @ layer.w_o.weight.T + layer.w_o.bias
    torch.testing.assert_close(layer(inputs, mask=real[:, None, None])[0, 0], expected, **close)


@torch.no_grad()
@pytest.mark.parametrize("pooling", ["mean", "first", "max"])
def test_padding_changes_nothing(architecture: Architecture, pooling: PoolingKind) -> None:
    model = model_of(architecture, pooling)
    together = model(TOKENS)
    for row, ids in zip(together, TOKENS, strict=True):
        torch.testing.assert_close(row, model(ids[ids != 0][None])[0], **close)
