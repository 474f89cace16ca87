"""What an analysis is given, checked: what does not fit is one line that says what was expected."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from headloom.errors import InputError, ShapeError
from headloom.formats.trace import TraceData, TraceLayer
from headloom.mechanism.graph import AttentionGraph
from headloom.mechanism.matrix.attention_matrix import AttentionMatrix
from headloom.mechanism.shapes import (
    check_type,
    describe,
    in_words,
    place_of,
    real_tensor,
    whole_number,
)

__all__ = [
    "check_layer",
    "check_norms",
    "check_source",
    "check_text",
    "check_trace",
    "each_trace",
    "keys_named",
    "numbers_of_layers",
    "optional_whole",
    "places_of",
    "real_number",
    "several_layers",
    "texts",
    "whole_numbers",
]


def check_trace(operation: str, value: object, name: str = "trace") -> None:
    """Raise an InputError where something is no trace."""
    expected = "a trace, as from headloom.trace or headloom.open"
    if isinstance(value, list | tuple) and value and isinstance(value[0], TraceData):
        expected = "one trace; give one of them"
    check_type(operation, name, value, TraceData, expected)


def each_trace(operation: str, traces: object) -> Iterator[TraceData]:
    """A trace, or each of several, which may be opened one after the other."""
    expected = "a trace, or a list of traces, as from headloom.trace or headloom.open"
    if isinstance(traces, TraceData):
        yield traces
        return
    if isinstance(traces, str | bytes | Mapping | Tensor):
        check_type(operation, "traces", traces, TraceData, expected)
    check_type(operation, "traces", traces, Iterable, expected)
    for one in traces:  # type: ignore[attr-defined]
        check_trace(operation, one, "one of the traces")
        yield one


def check_layer(operation: str, value: object, name: str = "the layer") -> None:
    """Raise an InputError where something is no layer of a trace."""
    expected = "a layer of a trace, as trace.layers[0]"
    check_type(operation, name, value, TraceLayer, expected)


def several_layers(operation: str, layers: object) -> list[TraceLayer]:
    """Layers of a trace, as a list."""
    if isinstance(layers, str | bytes | Mapping | Tensor) or not isinstance(layers, Iterable):
        raise InputError(
            f"{operation}: layers is {in_words(layers)}; expected those of a trace, trace.layers."
        )
    several = list(layers)
    for one in several:
        check_layer(operation, one, "one of the layers")
    return several


def check_source(operation: str, source: object) -> None:
    """Raise an InputError where something is neither a weight matrix nor kept edges of one input"""
    if source is None:
        raise InputError(
            f"{operation}: the weights are None, as of a layer whose queries and keys were not "
            "kept. Give its kept edges, layer.graph."
        )
    expected = "those of a layer: layer.matrix, or its kept edges, layer.graph"
    check_type(operation, "the weights", source, AttentionMatrix | AttentionGraph, expected)
    if isinstance(source, AttentionGraph) and source.batched:
        raise InputError(
            f"{operation}: the graph holds a batch; expected that of one input, as graph[0]."
        )


def check_norms(operation: str, shape: Sequence[int], value_norms: object) -> None:
    """Raise an InputError unless norms of values fit weights. shape: (heads, queries, keys)."""
    norms = real_tensor(operation, "value_norms", value_norms)
    heads, _, keys = shape
    if norms.ndim != 2 or norms.shape[1] != keys or not len(norms) or heads % len(norms):
        raise ShapeError(
            f"{operation}: value_norms are {describe(norms)}; expected ({heads}, {keys}), heads "
            "and keys, or fewer heads, which divide these."
        )


def check_text(operation: str, name: str, value: object, expected: str = "a text") -> None:
    """Raise an InputError where something is no text."""
    check_type(operation, name, value, str, expected)


def real_number(
    operation: str,
    name: str,
    value: object,
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
    given: Any = value
    try:
        real = float(given) if not isinstance(value, str | bytes | bool) else math.nan
    except (TypeError, ValueError, OverflowError, RuntimeError):
        real = math.nan
    fits = (real > least if above else real >= least) and (real < most if below else real <= most)
    if not fits or math.isinf(real):
        start = f"above {least:g}" if above else f"from {least:g}"
        end = "" if math.isinf(most) else f", below {most:g}" if below else f" to {most:g}"
        if above and end and not below:
            end = f", at most {most:g}"
        raise InputError(f"{operation}: {name}={in_words(value)}; expected a number {start}{end}.")
    return real


def optional_whole(operation: str, name: str, value: Any, least: int) -> int | None:
    """A whole number, or None."""
    return None if value is None else whole_number(operation, name, value, least)


def places_of(operation: str, name: str, places: Any, count: int) -> list[int]:
    """One place, or several, of `count`, from 0; those below 0 count from the end.

    name: of one place, as "position".
    """
    if isinstance(places, str | bytes | bool | Mapping):
        places = [places]
    try:
        several = list(places)
    except TypeError:  # one number, of any library
        several = [places]
    return [place_of("sequence", operation, name, place, count) for place in several]


def numbers_of_layers(operation: str, layers: Any, count: int) -> list[int]:
    """Numbers of layers as they are given, or of all, where None is."""
    if layers is None:
        return list(range(count))
    wanted = whole_numbers(operation, "layers", layers)
    return [place_of("trace", operation, "layer", entry, count) for entry in wanted]


def whole_numbers(operation: str, name: str, numbers: Any) -> list[int]:
    """A list of whole numbers."""
    if isinstance(numbers, str | bytes | Mapping) or not isinstance(numbers, Iterable):
        raise InputError(
            f"{operation}: {name}={in_words(numbers)}; expected a list of numbers, as [0, 5], or "
            "None."
        )
    return [whole_number(operation, f"an entry of {name}", entry) for entry in numbers]


def texts(operation: str, name: str, value: Any) -> list[str]:
    """A list of texts."""
    several = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else None
    if several is None or not all(isinstance(text, str) for text in several):
        raise InputError(f"{operation}: {name} is {in_words(value)}; expected a list of texts.")
    return list(value) if not isinstance(value, list) else value


def keys_named(operation: str, name: str, places: Any, keys: int) -> list[int]:
    """Places of keys from 0, as they are given; those past the last key are left out.

    Raises: InputError: something else than a list of whole numbers, 0 or more.
    """
    if isinstance(places, str | bytes | Mapping) or not isinstance(places, Iterable):
        raise InputError(
            f"{operation}: {name}={in_words(places)}; expected a list of places of keys, as [0, 5]."
        )
    chosen = [whole_number(operation, f"a place of {name}", place, 0) for place in places]
    return [place for place in chosen if place < keys]
