"""Dropout by a function of place and seed: its rate, scale, gradient, independence, repetition."""

from __future__ import annotations

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from headloom.errors import InputError
from headloom.mechanism.backends import compiled
from headloom.models.dense import Dropout, passes


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5, 0.9])
def test_rate_and_scale(p: float) -> None:
    torch.manual_seed(1)
    count = 200_000
    outputs = Dropout(p)(torch.ones(count))
    dropped = int((outputs == 0).sum())
    # Five standard deviations of a binomial count.
    assert abs(dropped - p * count) < 5 * (count * p * (1 - p)) ** 0.5
    kept = outputs[outputs != 0].unique()
    assert kept.numel() == 1
    assert float(kept) == pytest.approx(1 / (1 - p), rel=1e-6)


@pytest.mark.parametrize("columns", [4, 16, 64])
def test_neighbours_are_independent(columns: int) -> None:
    """Neither the lanes of a vector nor its followers know of each other."""
    torch.manual_seed(2)
    rows = 50_000
    kept = (Dropout(0.5)(torch.ones(rows, columns)) != 0).double()
    correlations = torch.corrcoef(kept.T) - torch.eye(columns)
    # Five standard deviations of a correlation of independent numbers.
    assert float(correlations.abs().max()) < 5 / rows**0.5


def test_mask_is_that_of_the_gradient_and_of_the_sum() -> None:
    layer = Dropout(0.3)
    inputs = torch.randn(37, 53, requires_grad=True)
    residual = torch.randn(37, 53, requires_grad=True)
    torch.manual_seed(4)
    alone = layer(inputs)
    torch.manual_seed(4)
    added = layer.added(residual, inputs)
    assert torch.equal(added, residual + alone)
    weights = torch.randn(37, 53)
    by_inputs, by_residual = torch.autograd.grad(added, [inputs, residual], weights)
    assert torch.equal(by_residual, weights)
    mask = (alone / inputs).detach()
    assert torch.allclose(by_inputs, weights * mask, rtol=1e-5)


@pytest.mark.parametrize("instruction_set", compiled.instruction_sets())
def test_every_instruction_set_and_number_of_threads_drops_the_same(
    instruction_set: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs, layer = torch.randn(70_003), Dropout(0.2)
    torch.manual_seed(5)
    expected = layer(inputs)
    monkeypatch.setattr(passes, "INSTRUCTION_SET", instruction_set)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        torch.manual_seed(5)
        assert torch.equal(layer(inputs), expected)
    finally:
        torch.set_num_threads(threads)


def test_nothing_is_dropped_outside_training_or_at_rate_0() -> None:
    inputs = torch.randn(3, 5)
    assert Dropout(0.9).eval()(inputs) is inputs
    assert Dropout(0.0)(inputs) is inputs


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3,), (5, 7), (2, 3, 0)])
def test_any_shape_and_type(shape: tuple[int, ...]) -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        outputs = Dropout(0.5)(torch.ones(shape, dtype=dtype))
        assert outputs.shape == shape
        assert outputs.dtype == dtype
        assert set(outputs.flatten().tolist()) <= {0.0, 2.0}


@pytest.mark.parametrize("p", [-0.1, 1.0, 1.5])
def test_not_a_probability(p: float) -> None:
    with pytest.raises(InputError, match="from 0 to below 1"):
        Dropout(p)


def test_checkpointed_activations_are_dropped_alike() -> None:
    layer, inputs = Dropout(0.5), torch.randn(50, requires_grad=True)
    outputs = checkpoint(lambda x: layer(x).sin(), inputs, use_reentrant=False)
    (gradient,) = torch.autograd.grad(outputs.sum(), inputs)
    # sin is 0 where a number was dropped, and has the slope cos(2 x) elsewhere.
    kept = outputs.detach() != 0
    assert torch.allclose(gradient, torch.where(kept, 2 * (2 * inputs.detach()).cos(), 0))
