"""Measures of W_Q W_K^T, which is never formed, against the same measures of the matrix."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from headloom.errors import InputError
from headloom.mechanism import spectra
from headloom.mechanism.reference import graphs


@st.composite
def factors(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    width, depth = draw(st.integers(2, 9)), draw(st.integers(1, 9))
    shape = (2, 3, width, depth)
    left, right = torch.randn(2, *shape, dtype=torch.float64, generator=generator)
    return left, right


def each(left: Tensor, right: Tensor) -> list[Tensor]:
    return list((left @ right.mT).flatten(0, 1))


@settings(max_examples=30, deadline=None)
@given(factors())
def test_measures_equal_those_of_the_whole_matrix(pair: tuple[Tensor, Tensor]) -> None:
    left, right = pair
    matrices = each(left, right)

    def expected(measure: object) -> Tensor:
        return torch.stack([measure(M) for M in matrices]).reshape(2, 3)  # type: ignore[operator]

    close = {"rtol": 1e-8, "atol": 1e-8}
    torch.testing.assert_close(
        spectra.product_norm(left, right), expected(torch.linalg.norm), **close
    )
    torch.testing.assert_close(spectra.symmetry(left, right), expected(graphs.symmetry), **close)
    torch.testing.assert_close(
        spectra.directionality(left, right, 0.5),
        expected(lambda M: graphs.directionality(M, 0.5)),
        **close,
    )
    values = spectra.product_spectrum(left, right)
    rank = min(left.shape[-2:])
    assert values.shape == (2, 3, rank)
    expected_values = torch.linalg.svdvals(left @ right.mT)
    torch.testing.assert_close(values, expected_values[..., :rank], **close)
    assert bool((expected_values[..., rank:] < 1e-8).all())


@settings(max_examples=20, deadline=None)
@given(factors())
def test_effective_rank(pair: tuple[Tensor, Tensor]) -> None:
    left, right = pair
    ours = spectra.effective_rank(spectra.product_spectrum(left, right))
    expected = torch.stack([graphs.effective_rank(M) for M in each(left, right)]).reshape(2, 3)
    torch.testing.assert_close(ours, expected, rtol=1e-6, atol=1e-6)
    assert bool((ours >= 1 - 1e-9).all())
    assert bool((ours <= min(left.shape[-2:]) + 1e-9).all())


@pytest.mark.parametrize("transposed", [False, True])
def test_one_long_column_or_row(transposed: bool) -> None:
    """M is 1 in column 7 and 0 elsewhere: its rows are all alike."""
    left, right = torch.ones(30, 1), torch.zeros(30, 1)
    right[7] = 1.0
    if transposed:
        left, right = right, left
    assert spectra.directionality(left, right) == (-1 if transposed else 1)


def test_one_number_has_no_direction() -> None:
    assert spectra.directionality(torch.ones(1, 2), torch.ones(1, 2)) == 0
    assert spectra.directionality(torch.ones(2, 1), torch.ones(1, 1)) == 0


@pytest.mark.parametrize("broken", [torch.nan, torch.inf, 1e30])
def test_matrices_that_are_not_finite_have_no_spectrum(broken: float) -> None:
    left, right = torch.randn(2, 3, 6, 4)
    left[1, 2, 3] = broken
    right[1, 2, 3] = broken  # 1e30 is finite, its square in float32 is not
    with pytest.raises(InputError, match=r"^spectrum: a matrix of .* infinite or NaN"):
        spectra.product_spectrum(left, right)
