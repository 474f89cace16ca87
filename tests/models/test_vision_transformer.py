"""The vision Transformer against torch's own encoder, with its weights."""

from __future__ import annotations

from typing import Any, Literal

import pytest
import torch
from tests.torch_attention import torch_attention
from torch import Tensor, nn

from headloom.models.blocks import EncoderBlock
from headloom.models.images import VisionTransformer

SHAPE = (3, 8, 12)
SIZES: dict[str, Any] = {
    "width": 16, "heads": 4, "feed_forward": 24, "layers": 2, "dropout": 0.0, "activation": "relu",
}  # fmt: skip


def torch_layer(block: EncoderBlock) -> nn.TransformerEncoderLayer:
    """torch's layer of pre-norm with the weights of a block."""
    layer = nn.TransformerEncoderLayer(16, 4, 24, 0.0, batch_first=True, norm_first=True)
    layer.self_attn = torch_attention(block.self_attention)
    layer.linear1.load_state_dict(block.feed_forward.rise.state_dict())
    layer.linear2.load_state_dict(block.feed_forward.fall.state_dict())
    layer.norm1.load_state_dict(block.self_attention_norm.state_dict())
    layer.norm2.load_state_dict(block.feed_forward_norm.state_dict())
    return layer.double()


def by_torch(model: VisionTransformer, images: Tensor) -> Tensor:
    """The classes' scores: patches cut by hand and multiplied by one matrix, torch's layers."""
    rows, columns = 4, 3
    matrix = model.patches.weight.detach().double().flatten(1)
    bias = model.patches.bias
    assert bias is not None
    sequence = [
        matrix @ images[0, :, r : r + rows, c : c + columns].reshape(-1) + bias.detach().double()
        for r in range(0, 8, rows)
        for c in range(0, 12, columns)
    ]
    if model.read == "class token":
        sequence.insert(0, model.class_token.detach().double())
    vectors = torch.stack(sequence) + model.positions.detach().double()
    for block in model.encoder:
        vectors = torch_layer(block)(vectors[None])[0]
    normed = nn.functional.layer_norm(
        vectors, (16,), model.encoder_norm.weight.double(), model.encoder_norm.bias.double()
    )
    pooled = normed[0] if model.read == "class token" else normed.mean(0)
    return model.class_scores.weight.double() @ pooled + model.class_scores.bias.double()


@pytest.mark.parametrize("read", ["class token", "mean"])
def test_scores_are_those_of_torchs_encoder(read: Literal["class token", "mean"]) -> None:
    torch.manual_seed(2)
    model = VisionTransformer(SHAPE, 5, patch=(4, 3), read=read, **SIZES)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    images = torch.rand(1, 3, 8, 12)
    found = model.eval()(images)
    assert found.shape == (1, 5)
    torch.testing.assert_close(
        found[0].double(), by_torch(model, images.double()), atol=2e-6, rtol=0
    )


def test_sinusoidal_positions_are_added_in_the_order_of_the_patches() -> None:
    """Without layers, and of black images, the output is the norm of bias, token and sinusoids."""
    model = VisionTransformer(
        SHAPE, 2, patch=(4, 6), read="mean", **SIZES | {"positions": "sinusoidal", "layers": 0}
    )
    angles = torch.arange(4.0)[:, None] / 10_000 ** (torch.arange(0, 16, 2) / 16)
    table = torch.stack((angles.sin(), angles.cos()), -1).flatten(1)
    expected = nn.functional.layer_norm(table, (16,)).mean(0)
    torch.testing.assert_close(model.outputs(torch.zeros(1, 3, 8, 12))[0], expected)
    assert "sinusoids" not in model.state_dict()
