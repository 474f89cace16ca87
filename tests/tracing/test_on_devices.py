"""Traces of models on a GPU, on one that is pretended: see tests/pretended_device.py."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.pretended_device import PretendedDevice, marked
from tests.tracing.conftest import Family, as_list
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

import headloom
from headloom.api.trace import Trace


def check(found: list[Trace], expected: list[Trace]) -> None:
    """Traces of the device are as those of the CPU, where they lie too."""
    pairs = [
        (layer, other)
        for trace, another in zip(found, expected, strict=True)
        for layer, other in zip(trace.layers, another.layers, strict=True)
    ]
    assert pairs
    for layer, other in pairs:
        for name in ("keys", "weights", "lse", "entropy", "rest"):
            mine, theirs = getattr(layer.graph, name), getattr(other.graph, name)
            assert not marked(mine)
            if name != "keys":  # equal weights may change places by rounding
                torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)
        assert (layer.deviation is None) == (other.deviation is None)


@pytest.mark.parametrize("kind", ["cuda", pytest.param("mps", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["BERT", "Llama", "Gemma 2", "BART", "T5", "ViT"])
def test_families_of_transformers(
    family_named: Callable[[str], Family], name: str, kind: str
) -> None:
    family = family_named(name)
    inputs = family.inputs()
    expected = as_list(headloom.trace(family.build(), inputs))
    with PretendedDevice(kind) as device:
        model = device.place(family.build())
        assert all(marked(parameter) for parameter in model.parameters())
        check(as_list(headloom.trace(model, device.place(inputs))), expected)
        check(as_list(headloom.trace(model, inputs)), expected)  # which are taken to the model


def test_a_generation(family_named: Callable[[str], Family]) -> None:
    family = family_named("Llama")
    inputs = family.inputs(padded=False)
    expected = as_list(headloom.trace(family.build(), inputs, generate=4))
    with PretendedDevice("cuda") as device:
        model = device.place(family.build())
        check(as_list(headloom.trace(model, device.place(inputs), generate=4)), expected)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.maps = nn.Linear(32, 96)

    def forward(self, inputs: Tensor) -> Tensor:
        parts = self.maps(inputs).chunk(3, -1)
        queries, keys, values = (part.unflatten(-1, (4, 8)).transpose(1, 2) for part in parts)
        heads = scaled_dot_product_attention(queries, keys, values, is_causal=True)
        return heads.transpose(1, 2).flatten(2)


@pytest.mark.parametrize("kind", ["cuda", "mps"])
def test_any_module(kind: str) -> None:
    inputs = torch.randn(2, 9, 32, generator=torch.Generator().manual_seed(0))

    def watched(model: nn.Module, inputs: Tensor) -> list[Trace]:
        with headloom.watch(model) as watch:
            model(inputs)
        return [*as_list(headloom.trace(model, inputs)), *watch.traces]

    expected = watched(Layer().eval(), inputs)
    with PretendedDevice(kind) as device:
        check(watched(device.place(Layer().eval()), device.place(inputs)), expected)
