"""Dropout from sixteen random bits: its rate, its scale, its gradient, its repeatability."""

from __future__ import annotations

import pytest
import torch

from weft.errors import InputError
from weft.models.dropout import Dropout


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
    assert float(kept) == pytest.approx(1 / (1 - p), abs=1e-3)
    # The scale matches the rounded rate, so that the mean is kept to the last digit.
    rounded = round(p * 2**16) / 2**16
    assert float(kept) == pytest.approx(1 / (1 - rounded), rel=1e-6)


def test_neighbours_are_independent() -> None:
    """Four elements share a draw: none of the four lanes may follow another."""
    torch.manual_seed(2)
    kept = (Dropout(0.5)(torch.ones(50_000, 4)) != 0).double()
    correlations = torch.corrcoef(kept.T) - torch.eye(4)
    assert float(correlations.abs().max()) < 0.025


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


def test_one_seed_gives_one_choice() -> None:
    layer, inputs = Dropout(0.5), torch.ones(1000)

    def drawn(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return layer(inputs)

    assert torch.equal(drawn(3), drawn(3))
    assert not torch.equal(drawn(3), drawn(4))


def test_the_gradient_flows_where_the_number_was_kept() -> None:
    torch.manual_seed(5)
    inputs = torch.randn(1000, requires_grad=True)
    outputs = Dropout(0.25)(inputs)
    outputs.sum().backward()
    assert inputs.grad is not None
    expected = torch.where(outputs == 0, 0.0, 4 / 3)
    torch.testing.assert_close(inputs.grad, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("p", [-0.1, 1.0, 1.5])
def test_not_a_probability(p: float) -> None:
    with pytest.raises(InputError, match="from 0 to below 1"):
        Dropout(p)


def test_a_rate_near_one_keeps_something_to_scale() -> None:
    torch.manual_seed(6)
    assert bool(Dropout(0.9999999)(torch.ones(1000)).isfinite().all())
