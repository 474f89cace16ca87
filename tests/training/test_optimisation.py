"""Learning rates by hand, the loss by its formula."""

from __future__ import annotations

import math

import pytest
import torch

from headloom.training.optimisation import Schedule, learning_rate, smoothed_cross_entropy


@pytest.mark.parametrize(
    ("schedule", "floor", "step", "expected"),
    [
        ("constant", 0.0, 11, 2.0),
        ("inverse-sqrt", 0.0, 15, 2.0 * math.sqrt(4 / 16)),
        ("linear", 0.0, 5, 2.0 * 6 / 8),
        ("linear", 0.0, 11, 0.0),
        ("linear", 0.25, 11, 0.5),
        ("linear", 0.25, 99, 0.5),
        ("cosine", 0.0, 7, 1.0),
        ("cosine", 0.0, 5, 2.0 * (1 + math.sqrt(0.5)) / 2),
        ("cosine", 0.0, 11, 0.0),
        ("cosine", 0.1, 11, 0.2),
        ("cosine", 0.1, 7, 1.1),
    ],
)
def test_after_the_warm_up(schedule: Schedule, floor: float, step: int, expected: float) -> None:
    found = learning_rate(step, peak=2.0, warmup=4, last=12, schedule=schedule, floor=floor)
    assert found == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_loss_by_its_formula(smoothing: float) -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(2, 3, 5, generator=generator, dtype=torch.float64)
    targets = [[1, 4, 0], [2, 0, 3]]
    expected = 0.0
    for row, ids in enumerate(targets):
        for place, target in enumerate(ids):
            if target == 0:
                continue
            exponentials = [math.exp(value) for value in logits[row, place].tolist()]
            logs = [math.log(value / sum(exponentials)) for value in exponentials]
            expected -= (1 - smoothing) * logs[target] + smoothing * sum(logs) / 5
    found = smoothed_cross_entropy(logits, torch.tensor(targets), smoothing=smoothing, ignore=0)
    assert float(found) == pytest.approx(expected, rel=1e-12)
