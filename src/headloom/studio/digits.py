"""Numbers as the studio writes them: `few_digits` of a number, `as_json` of all that it sends."""

from __future__ import annotations

import json
import math

from headloom.formats.files import finite

__all__ = ["as_json", "few_digits"]


def few_digits(number: float, digits: int = 5) -> float:
    """A number rounded to some digits that count; to more of them where it is large or near a half.

    A page rounds once more, to the digits that it has room for. Of 28.749939 in five digits,
    28.750, it would make 28.8, and 28.7 is right. A rounded number misleads only where its last
    digit is a 5, so digits are added until it is none. Whole numbers lose nothing.

    >>> few_digits(28.749939), few_digits(28.761234), few_digits(28.75)
    (28.7499, 28.761, 28.75)
    >>> few_digits(1234567.8), few_digits(-0.00123451)
    (1234568.0, -0.00123451)
    """
    number = float(number)
    if number == 0 or not math.isfinite(number):
        return number
    least = max(digits, math.floor(math.log10(abs(number))) + 1)
    for count in range(min(least, 17), 18):
        text = f"{number:.{count - 1}e}"
        rounded = float(text)
        if rounded == number or not text.partition("e")[0].rstrip(".0").endswith("5"):
            return rounded
    return number


def as_json(content: object) -> bytes:
    """Compact JSON in ASCII, whatever the tokens hold; null for what is no finite number."""

    def dumped(content: object) -> bytes:
        return json.dumps(content, separators=(",", ":"), allow_nan=False).encode("ascii")

    try:
        return dumped(content)
    except ValueError:  # of a model whose queries or keys were NaN
        return dumped(finite(content))
