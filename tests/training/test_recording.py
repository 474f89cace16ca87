"""When snapshots are taken, and that taking one leaves the model as it was."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headloom.formats.history import is_snapshot_step
from headloom.mechanism.watching import layers_of
from headloom.training.config import RunConfig
from headloom.training.recording import snapshot
from headloom.training.tasks import build_model, make_task


@settings(deadline=None)
@given(st.integers(0, 400), st.sampled_from((Fraction(3, 2), Fraction(2), Fraction(9, 8))))
def test_the_schedule_is_geometric(step: int, growth: Fraction) -> None:
    powers = {math.ceil(growth**power) for power in range(60)}
    assert is_snapshot_step(step, float(growth)) == (step == 0 or step in powers)


def test_few_snapshots_of_many_steps() -> None:
    assert sum(is_snapshot_step(step, 1.5) for step in range(10_000)) == 24


@pytest.mark.parametrize("growth", [1 + 2**-52, 1 + 1e-9, 1.0001, 1.001, 1.7, 1e300, math.inf])
def test_the_schedule_of_any_ratio(growth: float) -> None:
    """Against powers in exact fractions; the time does not grow with the step."""
    for step in (2, 3, 10, 999, 1_000, 1_001, 20_000, 10**7, 10**15):
        assert is_snapshot_step(step, growth) == _holds_a_power(step, growth), step


def _holds_a_power(step: int, growth: float) -> bool:
    """Whether a power of the ratio lies between the step before and this one, in 60 digits."""
    if math.isinf(growth):
        return False
    with localcontext() as context:
        context.prec = 60
        ratio = Decimal(growth)
        power = int(Decimal(step).ln() / ratio.ln())
        return any(step - 1 < ratio ** (power + more) <= step for more in (-1, 0, 1))


@pytest.mark.parametrize("training", [True, False])
def test_a_snapshot_changes_nothing(tiny: Callable[..., RunConfig], training: bool) -> None:
    config = tiny(model={"dropout": 0.5})
    task = make_task(config)
    model = build_model(config, task.description).train(training)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    random_state = torch.get_rng_state()
    taken = snapshot(model, task.probe(), 3, 0.5, gradients=False)
    assert torch.equal(torch.get_rng_state(), random_state)
    assert model.training == training
    assert all(layer.observer is None for _, layer in layers_of(model))
    assert all(torch.equal(before[name], p) for name, p in model.named_parameters())
    assert (taken.step, taken.loss) == (3, 0.5)
    # What was taken does not move when the model goes on learning.
    with torch.no_grad():
        kept = taken.layers[0].matrices["W_Q"].clone()
        for parameter in model.parameters():
            parameter.add_(1)
    assert torch.equal(taken.layers[0].matrices["W_Q"], kept)


def test_gradient_norms_are_the_gradients(tiny: Callable[..., RunConfig]) -> None:
    config = tiny()
    task = make_task(config)
    model = build_model(config, task.description)
    model(**task.probe().inputs).square().sum().backward()
    taken = snapshot(model, task.probe(), 0, None, gradients=True)
    (_, layer), *_ = layers_of(model)
    gradient = layer.w_q.weight.grad
    assert gradient is not None
    norms = [float(gradient[:8].norm()), float(gradient[8:].norm())]
    assert taken.layers[0].measures["gradient_norm_W_Q"] == pytest.approx(norms, rel=1e-6)
