"""What a training that `headloom.monitor` watches has besides its history, as the training view
reads it:

    steps             at which heads were measured
    layers            for each layer of the history, by measure: [steps][heads]
    warnings          [[step, text], ...], in order
    notes             what there is not, a line each
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from headloom.errors import DataError
from headloom.formats.files import JsonMapping, JsonObject
from headloom.formats.run import RunFolder
from headloom.studio.digits import few_digits

__all__ = ["watched_summary", "watched_training"]

#: Measures that the view draws, and steps of a curve at most.
_MEASURES = ("entropy", "largest_score", "first_token")
_STEPS = 500


def watched_training(run: RunFolder, layers: Sequence[str]) -> JsonObject | None:
    """What is known of a watched training; None: it is headloom's own.

    Args: layers: names of those of its history, in order.
    Raises: DataError: its measures are damaged.
    """
    monitored = run.monitored()
    if monitored is None:
        return None
    reports = run.measures.read()
    try:
        warnings = [
            [report["step"], str(warning["text"])]
            for report in reports
            for warning in report.get("warnings", [])
        ]
        chosen = _thinned(reports)
        return {
            "steps": [report["step"] for report in chosen],
            "layers": [_series(chosen, name) for name in layers],
            "warnings": warnings,
            "notes": _notes(monitored),
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{run.measures.path}: these measures are damaged: a report lacks {error}. Restore "
            "them from a copy."
        ) from error


def watched_summary(monitored: JsonMapping) -> dict[str, str]:
    """What is said of the model of a watched training."""
    model = monitored.get("model")
    if not isinstance(model, Mapping):
        return {}
    summary = {"model": str(model.get("name", "unknown"))}
    if isinstance(model.get("parameters"), int):
        summary["parameters"] = f"{model['parameters']:,}"
    return summary


def _thinned(reports: list[JsonObject]) -> list[JsonObject]:
    """At most a few hundred, evenly chosen, the last among them."""
    if len(reports) <= _STEPS:
        return reports
    places = sorted({round(place) for place in np.linspace(0, len(reports) - 1, _STEPS)})
    return [reports[place] for place in places]


def _series(reports: Sequence[JsonMapping], name: str) -> JsonObject:
    """The measures of a layer's heads, step by step."""

    def numbers(values: Any) -> list[float | None]:
        return [None if value is None else few_digits(value) for value in values]

    return {
        measure: [numbers(report["layers"][name][measure]) for report in reports]
        for measure in _MEASURES
    }


def _notes(monitored: JsonMapping) -> list[str]:
    """What there is not, a line each."""
    layers = monitored["layers"]
    unknown = [layer["name"] for layer in layers if "W_Q" in layer["unknown_matrices"]]
    notes = []
    if unknown:
        which = "any layer" if len(unknown) == len(layers) else _named(unknown)
        notes.append(
            f"W_Q and W_K of {which} are not known: headloom does not know what the model calls "
            f"them."
        )
    if not monitored.get("matrices", True) and len(unknown) < len(layers):
        notes.append(
            "The matrices are not kept, being large or not asked for: of W_Q W_Kᵀ there is a "
            "picture, of W_V and W_O nothing."
        )
    left = [str(entry["name"]) for entry in monitored.get("not_traced", [])]
    if left:
        notes.append(f"Not traced, and not shown: {_named(left)}.")
    return notes


def _named(names: Sequence[str]) -> str:
    """The first of some names, and how many there are more.

    >>> _named(["a", "b"]), _named(["a", "b", "c", "d", "e"])
    ('a, b', 'a, b, c and 2 more')
    """
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
