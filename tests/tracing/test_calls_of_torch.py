"""Models of Transformers that call torch's attention function by themselves, as SAM's encoder."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import headloom

transformers: Any = pytest.importorskip("transformers")


def sam_encoder(implementation: str) -> Any:
    torch.manual_seed(0)
    config = transformers.SamVisionConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=4, image_size=32, patch_size=8,
        mlp_dim=16, output_channels=8, window_size=0, num_pos_feats=8,
    )  # fmt: skip
    config._attn_implementation = implementation
    model = transformers.SamVisionModel(config).eval()
    for layer in model.vision_encoder.layers:  # they begin as zeros
        torch.nn.init.normal_(layer.attn.rel_pos_h)
        torch.nn.init.normal_(layer.attn.rel_pos_w)
    return model


def by_hand(attention: Any, hidden: torch.Tensor) -> torch.Tensor:
    """The weights, (heads, queries, keys), in float64, from the layer's own projection."""
    attention, hidden = attention.double(), hidden.double()
    (_, rows, columns, _), heads = hidden.shape, attention.num_attention_heads
    queries, keys, _ = (
        attention.qkv(hidden).reshape(rows * columns, 3, heads, -1).permute(1, 2, 0, 3)
    )
    scores = queries @ keys.mT * attention.scale
    row, column = torch.arange(rows * columns) // columns, torch.arange(rows * columns) % columns
    by_row = attention.rel_pos_h[row[:, None] - row + rows - 1]
    by_column = attention.rel_pos_w[column[:, None] - column + columns - 1]
    scores += torch.einsum("hqd,qkd->hqk", queries, by_row + by_column)
    return scores.softmax(-1)


def test_the_vision_encoder_of_sam_is_traced(tmp_path) -> None:
    model, pixels = sam_encoder("sdpa"), torch.randn(1, 3, 32, 32)
    seen: list[torch.Tensor] = []
    layers = model.vision_encoder.layers

    def see(module: Any, args: Any, named: Any) -> None:
        seen.append(args[0] if args else named["hidden_states"])

    hooks = [layer.attn.register_forward_pre_hook(see, with_kwargs=True) for layer in layers]
    trace = headloom.trace(model, {"pixel_values": pixels}, keep=headloom.All())
    assert isinstance(trace, headloom.Trace)
    assert [layer.name for layer in trace.layers] == [
        f"vision_encoder.layers.{number}.attn" for number in range(2)
    ]
    assert trace.verification is not None and trace.verification["whole"]
    assert trace.model["class"].endswith(".SamVisionModel") and not trace.not_traced
    for hook in hooks:
        hook.remove()
    with torch.no_grad():
        for layer, module, hidden in zip(trace.layers, layers, seen[-2:], strict=True):
            expected = by_hand(module.attn, hidden)
            assert torch.allclose(layer.graph.to_dense().double(), expected, atol=1e-6)
    headloom.trace(sam_encoder("sdpa"), pixels, save=tmp_path / "t.loom")
    assert len(headloom.open(tmp_path / "t.loom").layers) == 2


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_siglip_pools_the_patches_that_its_encoder_has(implementation: str) -> None:
    torch.manual_seed(0)
    config = transformers.SiglipVisionConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        image_size=32, patch_size=8,
    )  # fmt: skip
    build = transformers.SiglipVisionModel._from_config
    model: Any = build(config, attn_implementation=implementation).eval()
    head = next(module for name, module in model.named_modules() if name.endswith("head"))
    seen: list[torch.Tensor] = []
    hook = head.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    traces = headloom.trace(model, {"pixel_values": torch.randn(2, 3, 32, 32)}, keep=headloom.All())
    hook.remove()
    hidden = seen[-1]
    with torch.no_grad():
        expected = head.attention(
            head.probe.repeat(2, 1, 1), hidden, hidden, average_attn_weights=False
        )[1]
    for number, trace in enumerate(traces):
        encoder, pooling = trace.layers
        assert not trace.not_traced
        assert torch.allclose(pooling.graph.to_dense(), expected[number], atol=1e-6)
        assert (pooling.kind, pooling.queries_from) == ("cross", "patches-1")
        assert pooling.keys_from == encoder.keys_from == "patches"
        assert pooling.key_tokens == encoder.key_tokens
        # The image that is pooled went through the encoder: half of it came past the layer.
        through = pooling.graph.to_dense().mean(0) @ trace.rollout(kind="encoder")
        assert torch.allclose(trace.rollout(), through / 2, atol=1e-5)
