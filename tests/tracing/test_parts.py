"""Calls on parts of an input, and sequences of other lengths than the input's."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from tests.tracing.conftest import as_list
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
    assert (layer.graph.dense() - expected).abs().max() <= 2e-6
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
    one, two = (trace.layers[0].graph.dense() for trace in traces)
    assert (one - two).abs().max() > 0.01


def test_windows_are_saved_and_opened_again(tmp_path) -> None:
    model = small("Swin", **SWIN)
    image = {"pixel_values": pixels(1, 32)}
    (held,) = as_list(headloom.trace(model, image))
    saved = headloom.trace(model, image, save=tmp_path / "swin")
    assert isinstance(saved, headloom.Trace)
    for one, other in zip(held.layers, saved.layers, strict=True):
        assert torch.equal(one.graph.weights, other.graph.weights)
        assert torch.equal(one.graph.keys, other.graph.keys)
        assert one.no_matrix == other.no_matrix
        if one.matrix is not None:
            assert (one.matrix.dense() - headloom_dense(one)).abs().max() <= 1e-5


def headloom_dense(layer: Any) -> Tensor:
    """What the kept edges of a layer say, and its matrix where an edge is not kept."""
    dense: Tensor = layer.graph.dense()
    return torch.where(dense > 0, dense, layer.matrix.dense())


def test_two_images_in_one_row_are_not_two_traces() -> None:
    model = small(
        "PixtralVision", hidden_size=32, num_hidden_layers=1, num_attention_heads=4, head_dim=8,
        intermediate_size=48, image_size=32, patch_size=8,
    )  # fmt: skip
    model.config._attn_implementation = "sdpa"
    images = pixels(2, 32)
    with (
        pytest.warns(UserWarning, match="cannot be traced"),
        pytest.raises(headloom.InputError, match=r"a batch of 1 for 2 inputs.*one input at a time"),
    ):
        headloom.trace(model, {"pixel_values": images, "image_sizes": torch.tensor([[32, 32]] * 2)})
    traces = [
        headloom.trace(
            model, {"pixel_values": image[None], "image_sizes": torch.tensor([[32, 32]])}
        )
        for image in images
    ]
    one, two = (trace.layers[0].graph.weights for trace in traces)
    assert (one - two).abs().max() > 1e-3


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
            assert layer.shape == weights.shape[1:]
            assert (layer.graph.dense() - weights[sample]).abs().max() <= 2e-6
            assert len(layer.key_tokens) == weights.shape[-1]
        assert [(layer.queries_from, layer.keys_from) for layer in trace.layers] == [
            ("patches", "patches-16"), ("patches-64", "patches-64"),
        ]  # fmt: skip


def test_a_pooled_text_is_not_cut_by_the_mask_of_the_whole() -> None:
    model = small(
        "Funnel", vocab_size=60, block_sizes=[1, 1], d_model=32, n_head=4, d_head=8, d_inner=48,
        num_decoder_layers=1,
    )  # fmt: skip
    ids = torch.randint(3, 60, (2, 12), generator=torch.Generator().manual_seed(3))
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    inputs = {"input_ids": ids, "attention_mask": mask}
    with pytest.warns(UserWarning, match="formed whole"):
        traces = as_list(headloom.trace(model, inputs, keep=headloom.All()))
    with torch.no_grad():
        own = model(**inputs, output_attentions=True).attentions
    spans = [slice(0, 12), slice(3, 12)]
    for sample, trace in enumerate(traces):
        for layer, weights in zip(trace.layers, own, strict=True):
            rows, columns = (
                spans[sample] if size == 12 else slice(None) for size in weights.shape[2:]
            )
            expected = weights[sample, :, rows, columns]
            assert layer.shape == expected.shape
            assert (layer.graph.dense() - expected).abs().max() <= 2e-6


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
            assert torch.allclose(layer.graph.dense().sum(-1), torch.ones(1), atol=1e-5)


def test_the_predictor_of_v_jepa_is_whole() -> None:
    model = small(
        "VJEPA2", crop_size=16, frames_per_clip=4, patch_size=8, tubelet_size=2, hidden_size=24,
        num_hidden_layers=1, num_attention_heads=2, pred_hidden_size=24,
        pred_num_hidden_layers=1, pred_num_attention_heads=2, pred_num_mask_tokens=2,
    )  # fmt: skip
    video = torch.randn(1, 4, 3, 16, 16, generator=torch.Generator().manual_seed(3))
    (trace,) = as_list(headloom.trace(model, {"pixel_values_videos": video}, keep=headloom.All()))
    predicting = [layer for layer in trace.layers if "predictor" in layer.name]
    assert predicting
    for layer in trace.layers:
        assert torch.allclose(layer.graph.dense().sum(-1), torch.ones(1), atol=1e-5), layer.name


def hiera() -> tuple[nn.Module, dict[str, Tensor]]:
    """SAM 2's encoder, of which some layers pool their queries."""
    model = small(
        "Sam2HieraDet", hidden_size=16, num_attention_heads=1, image_size=[64, 64],
        blocks_per_stage=[1, 1, 2, 1], embed_dim_per_stage=[16, 32, 64, 128],
        num_attention_heads_per_stage=[1, 2, 4, 8], window_size_per_stage=[4, 2, 4, 2],
        global_attention_blocks=[3], window_positional_embedding_background_size=[7, 7],
    )  # fmt: skip
    return model, {"pixel_values": pixels(1, 64)}


def resampler() -> tuple[nn.Module, dict[str, Tensor]]:
    """Idefics2, whose latents look at the patches of an image in front of its text, but for
    those of a padded edge."""
    model = small(
        "Idefics2", image_token_id=49,
        vision_config={"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
                       "num_attention_heads": 2, "image_size": 32, "patch_size": 8},
        perceiver_config={"hidden_size": 16, "resampler_n_latents": 3, "resampler_depth": 1,
                          "resampler_n_heads": 2, "resampler_head_dim": 8,
                          "num_key_value_heads": 1},
        text_config={"model_type": "mistral", "hidden_size": 16, "intermediate_size": 16,
                     "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
                     "vocab_size": 50, "pad_token_id": 0},
    )  # fmt: skip
    ids = torch.tensor([[1, 49, 49, 49, 5, 6]])
    there = torch.ones(1, 1, 32, 32, dtype=torch.bool)
    there[..., 24:] = False
    return model, {
        "input_ids": ids, "attention_mask": torch.ones_like(ids),
        "pixel_values": pixels(1, 32)[None], "pixel_attention_mask": there,
    }  # fmt: skip


@pytest.mark.parametrize("made", [hiera, resampler])
def test_fewer_queries_than_keys_are_watched_as_they_are_traced(made: Any) -> None:
    model, inputs = made()
    (trace,) = as_list(headloom.trace(model, inputs, keep=headloom.All()))
    with headloom.watch(model, keep=headloom.All()) as watched:
        model(**inputs)
    assert [layer.name for layer in watched.trace.layers] == [layer.name for layer in trace.layers]
    assert any(layer.shape[1] < layer.shape[2] for layer in trace.layers)
    for layer, seen in zip(trace.layers, watched.trace.layers, strict=True):
        assert seen.shape == layer.shape
        assert torch.allclose(seen.graph.dense(), layer.graph.dense(), atol=1e-6)
        assert torch.allclose(seen.keys, layer.keys, atol=1e-5)
        assert seen.value_norms.shape == layer.value_norms.shape
