"""Activations by the native kernels: against formulas in float64, and torch's derivatives."""

from __future__ import annotations

import math

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from headloom.mechanism.backends import native, native_passes
from headloom.models.blocks import activated

#: (max(0, x) has its kernel in linear_maps and feed_forward alone.)
KINDS = [kind for kind in native_passes.ACTIVATIONS if kind != "relu"]
pytestmark = pytest.mark.skipif(native.kernels is None, reason="there are no native kernels")


def by_hand(x: float, kind: str) -> tuple[float, float]:
    """The value and the slope, of Python's own erfc and tanh, in float64."""
    if kind == "gelu":
        share = math.erfc(-x / math.sqrt(2)) / 2
        return x * share, share + x * math.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    if kind == "silu":
        share = (1 + math.tanh(x / 2)) / 2 if x > -30 else math.exp(x)
        return x * share, share * (1 + x * (1 - share))
    u = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    by_u = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x**2)
    share = 1 / (1 + math.exp(-2 * u)) if u > -300 else 0.0
    return x * share, share + x * share * (1 - share) * 2 * by_u


@pytest.mark.parametrize(
    "instruction_set", native.kernels.instruction_sets() if native.kernels else []
)
@pytest.mark.parametrize("kind", KINDS)
def test_values_and_slopes(kind: str, instruction_set: str, monkeypatch) -> None:
    monkeypatch.setattr(native_passes, "INSTRUCTION_SET", instruction_set)
    # A number of places that fills no vector, with the ends of what a float's exponential reaches.
    x = torch.cat([torch.linspace(-12, 12, 1_995), torch.tensor([-1e4, -90.0, 0.0, 90.0, 1e4])])
    x.requires_grad_()
    y = activated(x, kind)
    assert y.grad_fn.name() == "_ActivationBackward"
    (slopes,) = torch.autograd.grad(y, x, torch.full_like(y, 3.0))
    true = torch.tensor([by_hand(each, kind) for each in x.tolist()], dtype=torch.float64)
    # In the left tail numbers are small: relatively; where the slope passes 0, absolutely.
    torch.testing.assert_close(y.double(), true[:, 0], rtol=2e-5, atol=1e-30)
    torch.testing.assert_close(slopes.double() / 3, true[:, 1], rtol=2e-5, atol=2e-7)
    near = x.abs() <= 4
    torch.testing.assert_close(y[near].double(), true[near, 0], rtol=2e-6, atol=1e-30)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_a_number_stays_so(kind: str) -> None:
    x = torch.tensor([1.0, torch.nan, -1.0], requires_grad=True)
    y = activated(x, kind)
    (slopes,) = torch.autograd.grad(y.sum(), x)
    assert y.isnan().tolist() == slopes.isnan().tolist() == [False, True, False]
    assert activated(torch.tensor([torch.inf]), kind).item() == torch.inf


@pytest.mark.parametrize("kind", KINDS)
def test_second_derivatives_are_torchs(kind: str) -> None:
    """Of float32 by the kernels, against float64, which they do not serve."""
    x = torch.linspace(-3, 3, 37, requires_grad=True)
    exact = x.detach().double().requires_grad_()
    assert gradcheck(lambda t: activated(t, kind), exact)
    assert gradgradcheck(lambda t: activated(t, kind), exact)
    seconds = []
    for each in (x, exact):
        weights = torch.arange(37, dtype=each.dtype, requires_grad=True)
        (slope,) = torch.autograd.grad(activated(each, kind), each, weights, create_graph=True)
        seconds.append(torch.autograd.grad(slope.square().sum(), [each, weights]))
    for ours, true in zip(*seconds, strict=True):
        torch.testing.assert_close(ours.double(), true, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_any_layout_and_number_of_threads(kind: str) -> None:
    torch.manual_seed(1)
    x = torch.randn(40, 2_003)
    threads = torch.get_num_threads()
    outputs = []
    try:
        for number in (1, 3):
            torch.set_num_threads(number)
            turned = x.T.requires_grad_()
            y = activated(turned, kind)
            outputs.append((y.detach(), *torch.autograd.grad(y, turned, x.T)))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(one, three) for one, three in zip(*outputs, strict=True))
    torch.testing.assert_close(outputs[0][0], activated(x.detach(), kind).T, rtol=0, atol=0)
    assert activated(torch.empty(0, 4), kind).shape == (0, 4)
