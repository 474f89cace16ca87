"""Bounds as text."""

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal, localcontext

__all__ = ["outward"]


def outward(bound: float, form: str, upper: bool = False) -> str:
    """Format a bound so that it stays true: a lower one is rounded down, an upper one up.

    >>> outward(41.57, ".0f"), outward(41.23, ".0f", upper=True), outward(1.21e-7, ".1e")
    ('41', '42', '1.2e-07')
    >>> outward(0.1 + 0.2, ".6g", upper=True)     # a last bit is no digit of the bound
    '0.3'
    """
    if not math.isfinite(bound):
        return format(bound, form)
    with localcontext() as context:
        context.rounding = ROUND_CEILING if upper else ROUND_FLOOR
        # A decimal writes small numbers in another way than a float.
        return format(float(format(Decimal(f"{bound:.12g}"), form)), form)
