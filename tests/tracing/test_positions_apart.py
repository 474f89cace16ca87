"""Positions of which there are as many are one sequence only where they are the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.tracing.without_torchvision import timm
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention as attend

import headloom

EYE = torch.eye(4, dtype=torch.double)


def _half(weights: Tensor) -> Tensor:
    """A layer of a rollout, from its weights, (1, heads, 4, 4)."""
    return 0.5 * weights[0].mean(0) + 0.5 * EYE


class Chunks(nn.Module):
    """Attention in chunks of four positions, one call each; its weights in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.projection = nn.Linear(32, 32)

    def forward(self, states: Tensor) -> Tensor:
        """States, (1, positions, 32), with the residual."""
        queries = 3 * self.projection(states)
        q, k = (part.unflatten(2, (4, 8)).transpose(1, 2) for part in (queries, states))
        self.weights = [
            (one.double() @ other.double().mT / 8**0.5).softmax(-1)
            for one, other in zip(q.split(4, 2), k.split(4, 2), strict=True)
        ]
        parts = [attend(*part, part[1]) for part in zip(q.split(4, 2), k.split(4, 2), strict=True)]
        return states + torch.cat(parts, 2).transpose(1, 2).flatten(2)


def test_each_chunk_is_a_sequence_through_all_layers() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Chunks(), Chunks()).eval()
    states = torch.randn(1, 8, 32)
    trace = headloom.trace(model, states, keep=headloom.All())
    first, second = "positions-4", "positions-4-call-1"
    assert [layer.queries_from for layer in trace.layers] == [first, second, first, second]
    with pytest.warns(UserWarning, match="Through 2 layers, not through 2 over other positions"):
        rolled = trace.rollout()
    model(states)
    expected = _half(model[1].weights[1]) @ _half(model[0].weights[1])
    assert torch.allclose(rolled.double(), expected, atol=1e-6)


class Towers(nn.Module):
    """Two stacks, each over an input of its own, of as many positions."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = Chunks(), Chunks()

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        """The sum of both."""
        return self.left(left) + self.right(right)


def test_two_inputs_of_as_many_positions_are_two_sequences() -> None:
    torch.manual_seed(0)
    trace = headloom.trace(Towers().eval(), (torch.randn(1, 4, 32), torch.randn(1, 4, 32)))
    left, right = trace.layers
    assert left.queries_from != right.queries_from


def test_pictures_of_one_text_are_sequences_of_their_own() -> None:
    """Qwen2-VL's tower calls its attention once for each picture."""
    transformers = pytest.importorskip("transformers")
    vision = {
        "depth": 2, "embed_dim": 32, "hidden_size": 32, "num_heads": 4, "patch_size": 4,
        "spatial_merge_size": 2, "mlp_ratio": 2,
    }  # fmt: skip
    text = {
        "vocab_size": 60, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
        "num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 0,
        "bos_token_id": 1, "eos_token_id": 2,
        "rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 1e4},
    }  # fmt: skip
    config = transformers.Qwen2VLConfig(
        text_config=text, vision_config=vision, image_token_id=50, video_token_id=51
    )
    torch.manual_seed(0)
    model = transformers.Qwen2VLForConditionalGeneration._from_config(config).eval()
    ids = torch.tensor([[5] + [50] * 6 + [7] + [50] * 6 + [8]])
    inputs = {
        "input_ids": ids, "pixel_values": torch.randn(48, 96),
        "image_grid_thw": torch.tensor([[1, 4, 6]] * 2), "mm_token_type_ids": (ids == 50).long(),
    }  # fmt: skip
    trace = headloom.trace(model, inputs)
    seen = [layer.queries_from for layer in trace.layers if "visual" in layer.name]
    assert seen == ["patches", "patches-call-1"] * 2


@pytest.mark.parametrize(
    ("name", "heads", "shape"), [("nest_tiny", 3, (16, 16)), ("hiera_tiny_224", 1, (4, 64))]
)
def test_heads_before_the_windows_are_heads(name: str, heads: int, shape: Any) -> None:
    """NesT and Hiera call attention on (batch, heads, windows, positions, depth)."""
    library = timm()
    library.layers.set_fused_attn(True, experimental=True)
    model = library.create_model(name, pretrained=False, img_size=64).eval()
    layer = headloom.trace(model, torch.randn(1, 3, 64, 64)).layers[0]
    assert layer.heads == heads
    assert layer.queries_from == f"positions-{shape[0]}x{shape[1]}"


class Reordered(nn.Module):
    """Two layers, between which something happens to the positions."""

    def __init__(self, between: Any) -> None:
        super().__init__()
        self.between, self.first, self.second = between, Chunks(), Chunks()

    def forward(self, states: Tensor) -> Tensor:
        """States, (1, 4, 32)."""
        return self.second(self.between(self.first(states)))


PLACES = torch.tensor([2, 0, 3, 1])


@pytest.mark.parametrize(
    ("between", "apart"),
    [
        (lambda states: states.flip(1), True),
        (lambda states: torch.roll(states, 2, dims=-2), True),
        (lambda states: states[:, PLACES], True),
        (lambda states: states.index_select(1, PLACES), True),
        (lambda states: states.gather(1, PLACES[None, :, None].expand_as(states)), True),
        (lambda states: states.flip(-1), False),
        (lambda states: states.roll(1, 2), False),
        (lambda states: states[:, :, torch.arange(32)], False),
        (lambda states: states[:, :4] + states.roll(1, 1), False),
    ],
)
def test_positions_in_another_order_are_a_sequence_of_their_own(between: Any, apart: bool) -> None:
    trace = headloom.trace(Reordered(between).eval(), torch.randn(1, 4, 32))
    first, second = trace.layers
    assert (first.queries_from != second.queries_from) == apart
    assert second.queries_from == second.keys_from
    if apart:
        with pytest.warns(UserWarning, match="Through 1 layer, not through 1 over other positions"):
            trace.rollout()
