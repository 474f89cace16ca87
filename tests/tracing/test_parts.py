"""Calls on parts of an input, and sequences of other lengths than the input's."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from tests.tracing.conftest import as_list, assert_dense
from torch import Tensor, nn

import headloom

transformers = pytest.importorskip("transformers")


def small(name: str, **options: Any) -> nn.Module:
    torch.manual_seed(5)
    config = getattr(transformers, f"{name}Config")(**options)
    model: nn.Module = getattr(transformers, f"{name}Model")._from_config(
        config, attn_implementation="eager"
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


def pixels(batch: int, size: int) -> Tensor:
    return torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(3))


SWIN = {
    "image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [2, 1], "num_heads": [2, 4],
    "window_size": 4,
}  # fmt: skip


def test_windows_of_an_image_lie_side_by_side() -> None:
    model = small("Swin", **SWIN)
    image = pixels(1, 32)
    (trace,) = as_list(headloom.trace(model, {"pixel_values": image}, keep=headloom.All()))
    formed: list[Tensor] = []
    attention = model.get_submodule("encoder.layers.0.blocks.0.attention")
    attention.register_forward_hook(lambda *given: formed.append(given[2][1]))
    with torch.no_grad():
        model(image)
    # Four windows of 16 patches in the first stage, shifted in its second block.
    (windows,) = formed
    assert windows.shape == (4, 2, 16, 16)
    layer = trace.layers[0]
    assert layer.shape == (2, 64, 64)
    assert layer.queries_from == layer.keys_from == "patches-4x16"
    assert layer.query_tokens[16:18] == ["part 1, position 0", "part 1, position 1"]
    expected = torch.stack([torch.block_diag(*windows[:, head]) for head in range(2)])
    assert (layer.graph.to_dense() - expected).abs().max() <= 2e-6
    assert layer.deviation is not None and layer.deviation < 5e-6
    # The windows differ from each other, or the test would prove little.
    assert (windows[0] - windows[1]).abs().max() > 0.01
    shifted = trace.layers[1].graph
    assert bool((shifted.keys[:, 16:32] >= 16).logical_or(shifted.keys[:, 16:32] < 0).all())
    # One window is the whole of the last stage.
    assert trace.layers[2].shape == (4, 16, 16)
    assert trace.layers[2].queries_from == "patches"


def test_windows_of_several_images_are_refused_by_name() -> None:
    model = small("Swin", **SWIN)
    with pytest.warns(UserWarning, match="trace one input at a time"):
        traces = as_list(
            headloom.trace(model, {"pixel_values": pixels(2, 32)}, keep=headloom.All())
        )
    assert len(traces) == 2
    for trace in traces:
        assert [layer.shape for layer in trace.layers] == [(4, 16, 16)]
        names = [entry["name"] for entry in trace.not_traced]
        assert len(names) == 2
        assert all(name.startswith("encoder.layers.0.blocks.") for name in names), names
        assert all("a batch of 8 for 2 inputs" in entry["reason"] for entry in trace.not_traced)
    one, two = (trace.layers[0].graph.to_dense() for trace in traces)
    assert (one - two).abs().max() > 0.01


def test_every_length_is_a_sequence_of_its_own() -> None:
    model = small(
        "Segformer", num_encoder_blocks=2, depths=[1, 1], sr_ratios=[4, 1], hidden_sizes=[8, 16],
        patch_sizes=[7, 3], strides=[4, 2], num_attention_heads=[1, 2], mlp_ratios=[2, 2],
    )  # fmt: skip
    image = pixels(2, 64)
    traces = as_list(headloom.trace(model, {"pixel_values": image}, keep=headloom.All()))
    with torch.no_grad():
        own = model(image, output_attentions=True).attentions
    for sample, trace in enumerate(traces):
        for layer, weights in zip(trace.layers, own, strict=True):
            assert len(layer.key_tokens) == weights.shape[-1]
        assert_dense(trace.layers, own, sample)
        assert [(layer.queries_from, layer.keys_from) for layer in trace.layers] == [
            ("patches", "patches-16"), ("patches-64", "patches-64"),
        ]  # fmt: skip


def test_an_image_beside_a_text_is_a_sequence_of_its_own() -> None:
    tower = {
        "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 48
    }  # fmt: skip
    model = small(
        "Flava",
        text_config={**tower, "vocab_size": 60},
        image_config={**tower, "image_size": 16, "patch_size": 8},
        multimodal_config=tower,
        projection_dim=32,
    )
    ids = torch.randint(3, 60, (2, 7), generator=torch.Generator().manual_seed(3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traces = as_list(
            headloom.trace(
                model, {"input_ids": ids, "pixel_values": pixels(2, 16)}, keep=headloom.All()
            )
        )
    for trace in traces:
        sizes = {layer.name.split(".")[0]: layer.shape[1:] for layer in trace.layers}
        assert sizes["text_model"] == (7, 7)
        assert sizes["image_model"] == (5, 5)
        ends = {layer.name.split(".")[0]: layer.queries_from for layer in trace.layers}
        assert (ends["text_model"], ends["image_model"]) == ("tokens", "patches")
        for layer in trace.layers:
            assert torch.allclose(layer.graph.to_dense().sum(-1), torch.ones(1), atol=1e-5)
