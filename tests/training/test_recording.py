"""When snapshots are taken, and that taking one leaves the model as it was."""

from __future__ import annotations

import math
from collections.abc import Callable
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
