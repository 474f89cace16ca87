"""What a trace says of how it was verified, `headloom.Trace.verification`.

    tokens      how many of a text both runs read, with headloom and without; 0 where there is none
    whole       whether these are the whole input
    difference  the largest of an output
    nan         cells of outputs that are not numbers (NaN), of which nothing can be said; not
                there where there are none

or, of what could not be verified, {"unverified": why}.
"""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal, localcontext

from headloom.formats.files import JsonMapping

#: What a trace says whose model was verified before, on another text.
ON_ANOTHER_TEXT = {"unverified": "its model was verified, on another text"}


def in_words(verification: JsonMapping) -> str:
    """A verification in a few words.

    >>> in_words({"tokens": 64, "whole": False, "difference": 3e-7})
    'as without headloom to 3.0e-07 (64 tokens)'
    >>> in_words({"tokens": 5, "whole": True, "difference": 0.0, "nan": 40})
    'as without headloom to 0.0e+00, but NaN in 40 cells'
    >>> in_words({"unverified": "the prompt was in a cache"})
    'unverified: the prompt was in a cache'
    """
    if "unverified" in verification:
        return f"unverified: {verification['unverified']}"
    part = not verification.get("whole")
    read = f" ({verification['tokens']} tokens)" if part else ""
    nan = verification.get("nan")
    but = f", but NaN in {nan:,} cells" if isinstance(nan, int) and nan else ""
    difference = outward(verification["difference"], ".1e", upper=True)
    return f"as without headloom to {difference}{read}{but}"


def is_verification(value: object) -> bool:
    """Whether something is what a trace may say, or nothing."""
    if value is None:
        return True
    if not isinstance(value, dict):
        return False
    if isinstance(value.get("unverified"), str):
        return True
    numbers = (value.get("tokens"), value.get("difference"))
    return all(isinstance(number, int | float) for number in numbers)


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
