"""Verification of a trace, `headloom.Trace.verification`.

tokens      number of tokens compared, with headloom and without; 0: the input is no text
whole       whether these are the whole input
difference  largest difference of an output
nan         number of outputs that are NaN, which cannot be compared; missing if 0

or, where nothing could be verified, {"unverified": reason}.
"""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal, localcontext

from headloom.formats.files import JsonMapping

#: Verification of a trace whose model was verified earlier, on another text.
ON_ANOTHER_TEXT = {"unverified": "the model was verified on another text"}


def in_words(verification: JsonMapping) -> str:
    """Describe a verification in a few words.

    >>> in_words({"tokens": 64, "whole": False, "difference": 3e-7})
    'matches the model to 3.0e-07 (64 tokens)'
    >>> in_words({"tokens": 5, "whole": True, "difference": 0.0, "nan": 40})
    'matches the model to 0.0e+00, but NaN in 40 cells'
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
    return f"matches the model to {difference}{read}{but}"


def is_verification(value: object) -> bool:
    """Whether a value is a valid verification, or None."""
    if value is None:
        return True
    if not isinstance(value, dict):
        return False
    if isinstance(value.get("unverified"), str):
        return True
    numbers = (value.get("tokens"), value.get("difference"))
    return all(isinstance(number, int | float) for number in numbers)


def outward(bound: float, form: str, upper: bool = False) -> str:
    """Format a bound so that it remains valid: a lower one is rounded down, an upper one up.

    >>> outward(41.57, ".0f"), outward(41.23, ".0f", upper=True), outward(1.21e-7, ".1e")
    ('41', '42', '1.2e-07')
    >>> outward(0.1 + 0.2, ".6g", upper=True)     # a last bit is no digit of the bound
    '0.3'
    """
    if not math.isfinite(bound):
        return format(bound, form)
    with localcontext() as context:
        context.rounding = ROUND_CEILING if upper else ROUND_FLOOR
        # Formatted as a float, which writes small numbers differently from a decimal.
        return format(float(format(Decimal(f"{bound:.12g}"), form)), form)
