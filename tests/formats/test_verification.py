"""Bounds as text: true, and as near as their digits allow."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headloom.formats.verification import outward


@pytest.mark.parametrize(
    ("form", "step"), [(".4f", Fraction(1, 10_000)), (".1f", Fraction(1, 10)), (".0f", Fraction(1))]
)
@given(number=st.fractions(0, 100, max_denominator=10**6))
def test_a_bound_is_the_next_number_outward(form: str, step: Fraction, number: Fraction) -> None:
    low, high = (Fraction(outward(float(number), form, upper)) for upper in (False, True))
    assert low <= number <= high
    assert low + step > number > high - step


@given(number=st.floats(1e-30, 1e30))
def test_digits_that_count(number: float) -> None:
    for form in (".6g", ".1e"):
        assert float(outward(number, form)) <= number * (1 + 1e-11)
        assert float(outward(number, form, upper=True)) >= number * (1 - 1e-11)
    assert float(outward(number, ".6g")) >= number * (1 - 1.01e-5)


def test_no_number_is_told_as_such() -> None:
    assert [outward(float(word), ".2f", upper=True) for word in ("nan", "inf")] == ["nan", "inf"]
