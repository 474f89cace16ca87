"""Checks of the arguments of analyses."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import SupportsFloat, TypeAlias

from headloom.errors import InputError
from headloom.formats.trace import TraceData
from headloom.mechanism.shapes import in_words, place_of

#: A trace, or the path of its folder.
OneTrace: TypeAlias = TraceData | Path | str


def trace_of(operation: str, x: object) -> TraceData:
    """Return the trace that is given, or open it where a path is given.

    Raises: InputError: neither a trace nor a path; DataError: there is none, or it is damaged.
    """
    if isinstance(x, TraceData):
        return x
    if isinstance(x, str | Path):
        return TraceData.open(x)
    raise InputError(
        f"{operation}: {in_words(x)}; expected one trace, as from headloom.trace or headloom.open, "
        "or the path of one."
    )


def real_number(
    operation: str, name: str, value: SupportsFloat, *, above: bool = False, below: bool = False
) -> float:
    """Return a number from 0 to 1 as a float; raise an InputError otherwise.

    above, below: whether 0, or 1, is excluded.

    >>> real_number("rollout", "residual", 1)
    1.0
    """
    real = math.nan if isinstance(value, str) else float(value)
    if not ((real > 0 if above else real >= 0) and (real < 1 if below else real <= 1)):
        end = ", below 1" if below else ", at most 1" if above else " to 1"
        raise InputError(
            f"{operation}: {name}={in_words(value)}; expected a number "
            f"{'above' if above else 'from'} 0{end}."
        )
    return real


def places_of(operation: str, name: str, places: int | Sequence[int], count: int) -> list[int]:
    """Return one place, or several, of `count`, from 0; places below 0 count from the end.

    name: of one place, such as "position".
    """
    several = places if isinstance(places, Iterable) else [places]
    return [place_of("sequence", operation, name, place, count) for place in several]
