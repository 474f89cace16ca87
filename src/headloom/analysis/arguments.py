"""What an analysis is given, checked where it is used first."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import SupportsFloat

from headloom.errors import InputError
from headloom.formats.trace import TraceData
from headloom.mechanism.shapes import in_words, place_of


def check_trace(operation: str, value: object) -> None:
    """Raise an InputError where something is no trace."""
    if not isinstance(value, TraceData):
        raise InputError(
            f"{operation}: {in_words(value)}; expected one trace, as from headloom.trace or "
            "headloom.open."
        )


def real_number(
    operation: str,
    name: str,
    value: SupportsFloat,
    least: float = 0.0,
    most: float = 1.0,
    *,
    above: bool = False,
    below: bool = False,
) -> float:
    """A number between two bounds as a Python float; an InputError for all else.

    above, below: whether the lower, or the upper, bound is itself no such number.

    >>> real_number("rollout", "residual", 1)
    1.0
    """
    real = math.nan if isinstance(value, str) else float(value)
    fits = (real > least if above else real >= least) and (real < most if below else real <= most)
    if not fits:
        start = f"above {least:g}" if above else f"from {least:g}"
        end = f", below {most:g}" if below else f", at most {most:g}" if above else f" to {most:g}"
        raise InputError(f"{operation}: {name}={in_words(value)}; expected a number {start}{end}.")
    return real


def places_of(operation: str, name: str, places: int | Sequence[int], count: int) -> list[int]:
    """One place, or several, of `count`, from 0; those below 0 count from the end.

    name: of one place, as "position".
    """
    several = places if isinstance(places, Iterable) else [places]
    return [place_of("sequence", operation, name, place, count) for place in several]
