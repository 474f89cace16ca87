"""What an analysis is given, checked where it is used first."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import SupportsFloat

from headloom.errors import InputError
from headloom.formats.trace import TraceData
from headloom.mechanism.shapes import in_words, place_of


def check_trace(operation: str, value: object, name: str = "trace") -> None:
    """Raise an InputError where something is no trace."""
    if isinstance(value, TraceData):
        return
    expected = "a trace, as from headloom.trace or headloom.open"
    if isinstance(value, list | tuple) and value and isinstance(value[0], TraceData):
        expected = "one trace; give one of them"
    raise InputError(f"{operation}: {name} is {in_words(value)}; expected {expected}.")


def each_trace(operation: str, traces: TraceData | Iterable[TraceData]) -> Iterator[TraceData]:
    """A trace, or each of several, which may be opened one after the other."""
    if isinstance(traces, TraceData):
        yield traces
        return
    for trace in traces:
        check_trace(operation, trace, "one of the traces")
        yield trace


def check_text(operation: str, name: str, value: object, expected: str = "a text") -> None:
    """Raise an InputError where something is no text."""
    if not isinstance(value, str):
        raise InputError(f"{operation}: {name} is {in_words(value)}; expected {expected}.")


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
