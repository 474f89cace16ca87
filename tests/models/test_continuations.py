"""The likeliest next tokens, against a sort of all of them in float64."""

from __future__ import annotations

import pytest
import torch

from headloom.models import dense
from headloom.models.next_tokens import best_continuations, largest


@pytest.mark.parametrize("width", [1, 3, 64, 640, 641, 1343, 1344, 10_007])
@pytest.mark.parametrize("count", [1, 4, 10])
def test_the_largest_of_each_row(width: int, count: int) -> None:
    generator = torch.Generator().manual_seed(width)
    rows = torch.randn(7, width, generator=generator)
    rows[1] = rows[1].round()  # many are equal
    rows[2] = 0.0
    rows[3, width // 2 :] = -torch.inf
    rows[4] = torch.linspace(0, 1, width)  # the largest lie side by side, past the last piece
    rows[5] = torch.linspace(1, 0, width)
    count = min(count, width)
    numbers, columns = largest(rows, count)
    assert torch.equal(numbers, rows.sort(1, descending=True).values[:, :count])
    assert torch.equal(rows.gather(1, columns), numbers)
    assert all(len(set(row)) == count for row in columns.tolist())


@pytest.mark.parametrize("served", [True, False], ids=["kernels", "torch"])
@pytest.mark.parametrize(("vocabulary", "beam"), [(2, 3), (50, 1), (3000, 5)])
def test_the_likeliest_continuations(
    vocabulary: int, beam: int, served: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not served:
        monkeypatch.setattr(dense, "serves", lambda *tensors: False)
    generator = torch.Generator().manual_seed(vocabulary)
    logits = 5 * torch.randn(4 * beam, vocabulary, generator=generator)
    logits[0, 0] = -torch.inf  # a token that is never written
    scores = -10 * torch.rand(4, beam, generator=generator)
    scores[1, 1:] = -torch.inf  # as before the first step
    count = min(2 * beam, beam * vocabulary)
    before = logits.clone()
    best, parents, tokens = best_continuations(logits, scores, count)
    assert torch.equal(logits, before)
    logs = logits.double().log_softmax(-1).view(4, beam, vocabulary)
    totals = (scores.double()[..., None] + logs).flatten(1)
    expected = totals.sort(1, descending=True).values[:, :count]
    assert torch.allclose(best.double(), expected, atol=1e-5)
    found = totals.gather(1, parents * vocabulary + tokens)
    assert torch.allclose(found, expected, atol=1e-5)
