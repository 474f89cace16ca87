"""Numbers of few digits, rounded again."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal

from hypothesis import example, given
from hypothesis import strategies as st

from headloom.studio.digits import few_digits

NUMBERS = st.floats(allow_nan=False, allow_infinity=False, min_value=1e-12, max_value=1e12)


def rounded(number: float, digits: int) -> Decimal:
    """A number with so many digits that count, as a page rounds it."""
    exact = Decimal(number)
    return exact.quantize(Decimal(1).scaleb(exact.adjusted() + 1 - digits), ROUND_HALF_UP)


@given(NUMBERS, st.integers(1, 5))
@example(28.749939, 3)
@example(0.104996, 3)
@example(2.4999999999, 1)
def test_whoever_rounds_them_again_rounds_the_number(number: float, digits: int) -> None:
    short = few_digits(number)
    assert rounded(short, digits) == rounded(number, digits)
    assert abs(short - number) <= 5.1e-5 * number
    assert few_digits(-number) == -short


def test_they_are_short() -> None:
    """Of numbers at random one in nine needs a sixth digit, and hardly one a seventh."""
    numbers = [(place * 0.6180339887498949) % 1 for place in range(1, 3001)]
    lengths = [len(repr(few_digits(number)).lstrip("0.")) for number in numbers]
    assert sum(lengths) / len(lengths) < 5.2


def test_numbers_that_are_none_stay_so() -> None:
    assert few_digits(0.0) == 0 and few_digits(float("inf")) == float("inf")
    assert few_digits(float("nan")) != few_digits(float("nan"))
