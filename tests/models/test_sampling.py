"""Which tokens may be drawn, against plain computations in NumPy and the warper of Transformers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from headloom.models.decoding import DecodingState, sample
from headloom.models.next_tokens import nucleus

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


@settings(deadline=None)
@given(st.integers(2, 60), st.integers(0, 2**32 - 1), _SHARES)
def test_the_nucleus_is_that_of_transformers(size: int, seed: int, share: float) -> None:
    transformers = pytest.importorskip("transformers")
    logits = torch.from_numpy(np.random.default_rng(seed).normal(size=(3, size)))
    expected = transformers.TopPLogitsWarper(share)(None, logits)
    assert torch.equal(nucleus(logits, share), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_share_of_1_keeps_the_rarest(dtype: torch.dtype) -> None:
    logits = torch.linspace(0, -80, 5_000).to(dtype)
    assert torch.equal(nucleus(logits, 1), logits)
    assert nucleus(logits, 1e-9).isfinite().nonzero().tolist() == [[0]]
    assert nucleus(logits, 0.5).dtype == dtype


class _Constant:
    """The same distribution whatever came before."""

    def __init__(self, probabilities: list[float]) -> None:
        self.logits = torch.tensor(probabilities, dtype=torch.float64).log()

    def step(self, tokens: Tensor, state: DecodingState) -> Tensor:
        return self.logits.expand(*tokens.shape, -1)


def _shares(temperature: float, top: int | None, top_p: float) -> list[float]:
    """How often each token is drawn."""
    drawn = sample(
        _Constant([0.5, 0.3, 0.15, 0.05]), DecodingState([]),
        torch.zeros(2_000, 1, dtype=torch.long), length=5, temperature=temperature, top=top,
        top_p=top_p, generator=torch.Generator().manual_seed(1),
    )  # fmt: skip
    found: list[float] = (drawn.flatten().bincount(minlength=4) / drawn.numel()).tolist()
    return found


@pytest.mark.parametrize(
    ("temperature", "top", "top_p", "expected"),
    [
        (1.0, None, 0.7, [0.625, 0.375, 0, 0]),
        (1.0, None, 0.81, [0.5 / 0.95, 0.3 / 0.95, 0.15 / 0.95, 0]),
        # Squared and divided by their sum: 0.6849, 0.2466, 0.0616, 0.0068.
        (0.5, None, 0.68, [1, 0, 0, 0]),
        # Of the two likeliest the first has 0.625.
        (1.0, 2, 0.6, [1, 0, 0, 0]),
        (0.0, None, 0.1, [1, 0, 0, 0]),
        (1.0, None, 1.0, [0.5, 0.3, 0.15, 0.05]),
    ],
)
def test_samples_follow_the_nucleus(
    temperature: float, top: int | None, top_p: float, expected: list[float]
) -> None:
    found = _shares(temperature, top, top_p)
    assert found == pytest.approx(expected, abs=0.025)
    assert [share > 0 for share in found] == [share > 0 for share in expected]
