"""Positions against the reference, pair by pair."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import headloom
from headloom.mechanism import rotary as turns
from headloom.mechanism.backends import compiled
from headloom.mechanism.positions import bucket_of_distance
from headloom.mechanism.reference import positions as reference


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 20), st.integers(1, 8))
def test_sinusoidal(length: int, half: int) -> None:
    expected = reference.sinusoidal(length, 2 * half)
    torch.testing.assert_close(headloom.sinusoidal(length, 2 * half).double(), expected)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 6), st.integers(1, 4), st.sampled_from([None, 0, 1, 5]), st.booleans(),
    st.integers(-5, 10_000), st.integers(0, 99),
)  # fmt: skip
def test_rotary(
    length: int, half: int, stay: int | None, interleaved: bool, offset: int, seed: int
) -> None:
    """Of the whole depth, or of its first coordinates; by halves and by neighbours."""
    generator = torch.Generator().manual_seed(seed)
    depth, dims = 2 * half + (stay or 0), None if stay is None else 2 * half
    vectors = torch.randn(2, 3, length, depth, dtype=torch.float64, generator=generator)
    turned = headloom.rotary(vectors, offset, dims=dims, interleaved=interleaved)
    assert turned.shape == vectors.shape
    for ours, own in zip(turned.flatten(0, 1), vectors.flatten(0, 1), strict=True):
        exact = reference.rotary(own, offset, dims=dims, interleaved=interleaved)
        torch.testing.assert_close(ours, exact, rtol=1e-9, atol=1e-9)
    by_default = headloom.rotary(vectors[..., : 2 * half], offset)
    assert torch.equal(by_default, headloom.rotary(vectors, offset, dims=2 * half)[..., : 2 * half])


def test_rotary_of_neighbours_is_llamas_own_code() -> None:
    """``view_as_complex`` of neighbours times e^(i m theta), as Meta's code has it."""
    torch.manual_seed(0)
    queries = torch.randn(2, 3, 7, 8, dtype=torch.float64)
    angle = torch.arange(7.0).double()[:, None] * 500.0 ** (-torch.arange(0, 8, 2).double() / 8)
    numbers = torch.view_as_complex(queries.reshape(2, 3, 7, 4, 2))
    exact = torch.view_as_real(numbers * torch.polar(torch.ones_like(angle), angle)).flatten(-2)
    ours = headloom.rotary(queries, base=500.0, interleaved=True)
    torch.testing.assert_close(ours, exact, rtol=0, atol=1e-12)


@pytest.mark.parametrize("heads", range(1, 33))
def test_alibi_slopes(heads: int) -> None:
    expected = torch.tensor(reference.alibi_slopes(heads))
    torch.testing.assert_close(headloom.alibi_slopes(heads), expected, rtol=1e-7, atol=0)
    assert len(expected) == heads


@pytest.mark.parametrize("both", [True, False])
@pytest.mark.parametrize(
    ("buckets", "farthest"),
    [(32, 128), (8, 20), (10, 100), (64, 256), (16, 64), (32, 1000), (12, 24), (4, 3), (5, 7)],
)
def test_buckets_of_every_distance(buckets: int, farthest: int, both: bool) -> None:
    distance = torch.arange(-1100, 1101)
    ours = bucket_of_distance(distance, buckets, farthest, both)
    expected = [reference.bucket(d, buckets, farthest, both) for d in distance.tolist()]
    assert ours.tolist() == expected
    assert min(expected) >= 0
    assert max(expected) <= buckets - 1


@pytest.mark.parametrize("instruction_set", compiled.instruction_sets())
@pytest.mark.parametrize(("length", "depth", "offset"), [(1, 2, 0), (5, 6, 3), (70, 64, 60)])
@pytest.mark.parametrize("choice", [{}, {"interleaved": True}, {"dims": 2, "interleaved": True}])
def test_rotary_of_heads_by_the_kernel(
    length: int, depth: int, offset: int, choice: dict[str, Any], instruction_set: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Forward against the formula number by number; the gradient turns back."""
    monkeypatch.setattr(turns, "INSTRUCTION_SET", instruction_set)
    torch.manual_seed(length)
    for vectors in (
        torch.randn(2, 3, length, depth),
        torch.randn(2, length, 3, depth).transpose(1, 2),
    ):
        vectors.requires_grad_()
        turned = headloom.rotary(vectors, offset, **choice)
        for ours, own in zip(turned.flatten(0, 1), vectors.flatten(0, 1), strict=True):
            exact = reference.rotary(own.detach().double(), offset, **choice)
            torch.testing.assert_close(ours.detach().double(), exact, rtol=0, atol=2e-6)
        by_turned = torch.randn_like(turned)
        (gradient,) = torch.autograd.grad(turned, vectors, by_turned)
        # Turning back what the gradient is turned by gives it again: the map is orthogonal.
        torch.testing.assert_close(headloom.rotary(gradient.detach(), offset, **choice), by_turned)
        torch.testing.assert_close(
            (gradient * vectors.detach()).sum(), (by_turned * turned.detach()).sum()
        )
