"""The next token: the likeliest against a sort in float64; what may be drawn against NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from headloom.models import dense
from headloom.models.decoding import DecodingState, sample
from headloom.models.next_tokens import best_continuations, largest, nucleus


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


#: Not so close to 1 that the order of a sum decides.
_SHARES = st.floats(0.01, 0.999)


def _smallest_set(logits: np.ndarray, share: float) -> set[int]:
    """Tokens taken one by one, the likeliest first, until they hold the share."""
    probabilities = np.exp(logits.astype(np.float64) - logits.max())
    probabilities /= probabilities.sum()
    chosen: set[int] = set()
    for token in sorted(range(len(logits)), key=lambda token: (-probabilities[token], token)):
        chosen.add(token)
        if math.fsum(probabilities[one] for one in chosen) >= share:
            break
    return chosen


@settings(deadline=None)
@given(st.integers(1, 60), st.integers(0, 2**32 - 1), _SHARES, st.sampled_from((0.1, 1.0, 9.0)))
def test_the_nucleus_is_the_smallest_set_that_holds_the_share(
    size: int, seed: int, share: float, spread: float
) -> None:
    logits = np.random.default_rng(seed).normal(size=(2, size)).astype(np.float32) * spread
    found = nucleus(torch.from_numpy(logits), share)
    for row, kept in zip(logits, found, strict=True):
        chosen = _smallest_set(row, share)
        assert {*kept.isfinite().nonzero()[:, 0].tolist()} == chosen
        assert all(kept[token] == float(row[token]) for token in chosen)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_share_of_1_keeps_the_rarest(dtype: torch.dtype) -> None:
    logits = torch.linspace(0, -80, 5_000).to(dtype)
    assert torch.equal(nucleus(logits, 1), logits)
    assert nucleus(logits, 1e-9).isfinite().nonzero().tolist() == [[0]]
    assert nucleus(logits, 0.5).dtype == dtype


class Constant:
    """The same distribution whatever came before."""

    def __init__(self, probabilities: list[float]) -> None:
        self.logits = torch.tensor(probabilities, dtype=torch.float64).log()

    def step(self, tokens: Tensor, state: DecodingState) -> Tensor:
        return self.logits.expand(*tokens.shape, -1)


@pytest.mark.parametrize(
    ("temperature", "top", "top_p", "expected"),
    [
        (1.0, None, None, [0.5, 0.3, 0.15, 0.05]),
        (1.0, 99, 1.0, [0.5, 0.3, 0.15, 0.05]),
        (1.0, 2, None, [0.625, 0.375, 0, 0]),
        # Squared and divided by their sum.
        (0.5, None, None, [0.6849, 0.2466, 0.0616, 0.0068]),
        (1.0, None, 0.7, [0.625, 0.375, 0, 0]),
        (1.0, None, 0.81, [0.5 / 0.95, 0.3 / 0.95, 0.15 / 0.95, 0]),
        (0.5, None, 0.68, [1, 0, 0, 0]),
        # Of the two likeliest the first has 0.625.
        (1.0, 2, 0.6, [1, 0, 0, 0]),
        (0.0, None, 0.1, [1, 0, 0, 0]),
    ],
)
def test_samples_follow_the_distribution(
    temperature: float, top: int | None, top_p: float | None, expected: list[float]
) -> None:
    drawn = sample(
        Constant([0.5, 0.3, 0.15, 0.05]), DecodingState([]),
        torch.zeros(2_000, 1, dtype=torch.long), length=5, temperature=temperature, top=top,
        top_p=top_p, generator=torch.Generator().manual_seed(1),
    )  # fmt: skip
    found = (drawn.flatten().bincount(minlength=4) / drawn.numel()).tolist()
    assert found == pytest.approx(expected, abs=0.025)
    assert [share > 0 for share in found] == [share > 0 for share in expected]


def test_sampling_stops_when_all_have_ended() -> None:
    certain, prompt = Constant([0, 0, 0, 1.0]), torch.tensor([[4, 5, 6], [7, 7, 7]])
    drawn = sample(certain, DecodingState([]), prompt, length=9, end=3, temperature=0)
    assert drawn.tolist() == [[3], [3]]
    drawn = sample(certain, DecodingState([]), prompt, length=2, temperature=0)
    assert drawn.shape == (2, 2)
    assert sample(certain, DecodingState([]), prompt, length=0).shape == (2, 0)
