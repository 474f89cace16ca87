"""The loss of batches, by a float64 formula, and with its gradient."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headloom.models.predictor import Predictor
from headloom.training.batches import Batch
from headloom.training.validation import evaluate_batches, mean_loss, smoothed_cross_entropy


class Looks(Predictor):
    """A table of logits for each id."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(5, 5))

    def outputs(self, *args: Any, **inputs: Any) -> Tensor:
        return self.table[inputs["tokens"]]

    def logits(self, outputs: Tensor) -> Tensor:
        return outputs


def test_the_mean_of_all_targets_that_count_and_its_gradient() -> None:
    torch.manual_seed(1)
    model = Looks()
    ids = torch.tensor([[1, 2, 3], [4, 1, 0]]), torch.tensor([[2, 2]])
    targets = torch.tensor([[2, 3, 4], [1, 0, 0]]), torch.tensor([[3, 4]])
    batches = [
        Batch({"tokens": one}, other, one.numel()) for one, other in zip(ids, targets, strict=True)
    ]
    pairs = [(1, 2), (2, 3), (3, 4), (4, 1), (2, 3), (2, 4)]  # a target of 0 is padding
    log_p = model.table.detach().double().log_softmax(-1)
    expected = -sum(float(log_p[read, target]) for read, target in pairs) / len(pairs)
    loss = mean_loss(model, batches, 0)
    assert float(loss.detach()) == pytest.approx(expected)
    found = evaluate_batches(model, batches, 0)
    assert (found.loss, found.targets) == (pytest.approx(expected), len(pairs))
    slope = torch.zeros(5, 5).double()
    for read, target in pairs:
        slope[read] += (log_p[read].exp() - nn.functional.one_hot(torch.tensor(target), 5)) / 6
    assert torch.allclose(torch.autograd.grad(loss, model.table)[0].double(), slope, atol=1e-6)


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
