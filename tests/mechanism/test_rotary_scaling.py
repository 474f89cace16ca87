"""Scaled rotary positions: against the papers' formulas, number by number, and Transformers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import headloom
from headloom.mechanism import rotary as turns
from headloom.mechanism.backends import compiled
from headloom.mechanism.rotary import rotary_frequencies

SCALINGS = (
    headloom.RotaryScaling("linear", 4),
    headloom.RotaryScaling("ntk", 8),
    headloom.RotaryScaling("llama3", 8, 64),
    headloom.RotaryScaling("llama3", 32, 256, slow=0.5, fast=10),
    headloom.RotaryScaling("yarn", 4, 64),
    headloom.RotaryScaling("yarn", 16, 1000, slow=2, fast=20, temperature=0.7),
    headloom.RotaryScaling("yarn", 2, 7),  # no pair turns 32 times within 7 positions
)


def settings(scaling: headloom.RotaryScaling, base: float) -> dict[str, Any]:
    """As Transformers has them."""
    named: dict[str, Any] = {
        "rope_type": scaling.kind,
        "factor": float(scaling.factor),
        "rope_theta": base,
        "original_max_position_embeddings": scaling.original_length,
    }
    if scaling.kind == "llama3":
        named["low_freq_factor"], named["high_freq_factor"] = scaling.turns
    if scaling.kind == "yarn":
        named["beta_slow"], named["beta_fast"] = scaling.turns
        named["attention_factor"] = scaling.temperature
    return named


@pytest.mark.parametrize("scaling", [s for s in SCALINGS if s.kind != "ntk"], ids=repr)
@pytest.mark.parametrize("base", [500.0, 500_000.0])
def test_turns_are_those_of_transformers(scaling: headloom.RotaryScaling, base: float) -> None:
    rope = pytest.importorskip("transformers.modeling_rope_utils")
    from transformers import LlamaConfig

    config = LlamaConfig(
        hidden_size=4 * 24, num_attention_heads=4, max_position_embeddings=64,
        rope_parameters=settings(scaling, base),
    )  # fmt: skip
    expected, size = rope.ROPE_INIT_FUNCTIONS[scaling.kind](config)
    ours = rotary_frequencies(24, base, scaling)
    assert_close(ours, expected.double(), rtol=3e-6, atol=0)
    assert scaling.size == pytest.approx(size)


def by_hand(vectors: Tensor, offset: int, base: float, scaling: headloom.RotaryScaling) -> Tensor:
    """Each pair as a complex number times e^(i angle), in float64."""
    half = vectors.shape[-1] // 2
    pairs = torch.complex(vectors[..., :half].double(), vectors[..., half:].double())
    position = torch.arange(vectors.shape[-2]).double()[:, None] + offset
    angle = position * rotary_frequencies(2 * half, base, scaling)
    pairs = pairs * scaling.size * torch.exp(1j * angle)
    return torch.cat((pairs.real, pairs.imag), -1)


@pytest.mark.parametrize("instruction_set", compiled.instruction_sets())
@pytest.mark.parametrize("scaling", SCALINGS, ids=repr)
def test_by_the_kernel_and_its_gradient(
    scaling: headloom.RotaryScaling, instruction_set: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "INSTRUCTION_SET", instruction_set)
    vectors = torch.randn(2, 3, 33, 24, requires_grad=True)
    turned = headloom.rotary(vectors, 5, 300.0, scaling=scaling)
    assert_close(turned.double(), by_hand(vectors, 5, 300.0, scaling), rtol=0, atol=3e-6)
    by_turned = torch.randn_like(turned)
    (gradient,) = torch.autograd.grad(turned, vectors, by_turned)
    assert_close((gradient * vectors).sum(), (by_turned * turned).sum(), rtol=1e-4, atol=1e-3)
    # In torch's operations: three dimensions are none of the kernel's.
    assert_close(
        headloom.rotary(vectors[0], 5, 300.0, scaling=scaling), turned[0], rtol=0, atol=3e-6
    )
