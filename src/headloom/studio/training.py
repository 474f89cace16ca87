"""`TrainingHistory`: a run's snapshots as the training view reads them.

steps, losses                one a snapshot; a loss may be None
curves                       {"training loss": [[step, loss], ...], ...}
sequences                    the probe's tokens
layers                       name, kind, index, queries, keys, shape, and
norm, effective_rank, symmetry   [snapshots][heads], as `few_digits` has them; or absent
left_out                         likewise: what `weights` lack of a row's mass, on average
weights                   whether there are: uint8 (snapshots, heads, queries, keys),
255 sqrt(weight), of the probe
product_size, product_scale      int8 (snapshots, heads, size, size): W_Q W_K^T as
127 sign(m) sqrt(|m| / product_scale), which 999 of 1,000 entries do not exceed; or absent
product_beyond                   whether others do
state                     of the run, "training" or "finished"; None: not known
watched                   of a training that `headloom.monitor` watches, else absent:
    steps                 at which heads were measured
    layers                for each layer of the history, by measure: [steps][heads]
    warnings              [[step, text], ...], in order
    notes                 what there is not, a line each
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from torch import Tensor

from headloom.errors import DataError, InputError
from headloom.formats.files import JsonMapping, JsonObject
from headloom.formats.history import PRODUCT_SIZE
from headloom.formats.run import RunFolder
from headloom.formats.trace import TraceData, TraceLayer
from headloom.studio.arrays import Array, few_digits

__all__ = ["TrainingHistory", "training_history", "watched_summary", "watched_training"]

#: Points of a curve at most.
_CURVE_POINTS = 500
_MEASURES = ("norm", "effective_rank", "symmetry", "left_out")


@dataclass(frozen=True)
class TrainingHistory:
    """See above: the description, and the arrays of each layer."""

    description: JsonObject
    weights: dict[int, bytes]
    products: dict[int, bytes]


def training_history(
    snapshots: Sequence[JsonMapping],
    curves: Mapping[str, Sequence[tuple[float, float]]],
    probe: TraceData,
    watched: JsonMapping | None = None,
    state: str | None = None,
) -> TrainingHistory:
    """Snapshots along a training, each as `headloom.studio.page.export_page` takes it.

    Raises: InputError: steps that do not ascend, layers or sizes that differ between snapshots or
    from the probe.
    """
    steps = [int(snapshot["step"]) for snapshot in snapshots]
    if any(later <= earlier for earlier, later in pairwise(steps)):
        raise InputError("page: the steps of the history do not ascend.")
    names = list(snapshots[0]["layers"])
    for snapshot in snapshots:
        if list(snapshot["layers"]) != names:
            raise InputError(
                f"page: the snapshot of step {snapshot['step']} has other layers than the first."
            )
    known = {layer.name: layer for layer in probe.layers}
    missing = [name for name in names if name not in known]
    if missing or not names:
        raise InputError(
            f"page: the history's layers {missing} are not in the probe's trace, which has "
            f"{', '.join(known)}."
        )
    layers = [
        _layer(known[name], [snapshot["layers"][name] for snapshot in snapshots]) for name in names
    ]
    description: JsonObject = {
        "steps": steps,
        "losses": [_number(snapshot.get("loss")) for snapshot in snapshots],
        "curves": {
            str(name): _thinned([(_number(x), _number(y)) for x, y in points])
            for name, points in curves.items()
        },
        "sequences": {key: list(tokens) for key, tokens in probe.sequences.items()},
        "layers": [layer for layer, _, _ in layers],
        "state": state,
    }
    if watched is not None:
        description["watched"] = dict(watched)
    weights = {number: array for number, (_, array, _) in enumerate(layers) if array is not None}
    products = {number: array for number, (_, _, array) in enumerate(layers) if array is not None}
    return TrainingHistory(description, weights, products)


def _thinned(points: list[tuple[float | None, float | None]]) -> list[list[float]]:
    """At most a few hundred points, evenly chosen, the last among them; none that is not finite."""
    finite = [[x, y] for x, y in points if x is not None and y is not None]
    if len(finite) <= _CURVE_POINTS:
        return finite
    chosen = sorted({round(place) for place in np.linspace(0, len(finite) - 1, _CURVE_POINTS)})
    return [finite[place] for place in chosen]


def _number(value: Any) -> float | None:
    """A number with few digits; None where there is none or it is not finite."""
    if value is None or not math.isfinite(float(value)):
        return None
    return few_digits(value)


def _array(value: Any) -> Array:
    if isinstance(value, Tensor):
        return value.detach().cpu().float().numpy()
    return np.asarray(value, dtype=np.float32)


def _layer(
    layer: TraceLayer, entries: Sequence[JsonMapping]
) -> tuple[JsonObject, bytes | None, bytes | None]:
    """The description of a layer along the training, its weights and its products."""
    found: JsonObject = {
        "name": layer.name,
        "kind": layer.kind,
        "index": layer.index,
        "queries": layer.queries_from,
        "keys": layer.keys_from,
        "shape": list(layer.shape),
        "weights": False,
    }
    for measure in _MEASURES:
        if all(measure in entry for entry in entries):
            rows = [_array(entry[measure]).ravel() for entry in entries]
            _same(layer, measure, [row.shape for row in rows], (layer.heads,))
            found[measure] = [[_number(value) for value in row] for row in rows]
    weights = products = None
    if all("weights" in entry for entry in entries):
        matrices = [_array(entry["weights"]) for entry in entries]
        _same(layer, "weights", [matrix.shape for matrix in matrices], layer.shape)
        root = np.sqrt(np.nan_to_num(np.stack(matrices)).clip(0, 1))
        weights = np.rint(255 * root).astype(np.uint8).tobytes()
        found["weights"] = True
    if all("product" in entry for entry in entries):
        products_of_heads = [_joined(_array(entry["product"]), layer) for entry in entries]
        # Of a training that came to nothing; neither has a colour.
        joined = np.nan_to_num(np.stack(products_of_heads), posinf=0, neginf=0)
        scale = float(np.quantile(np.abs(joined), 0.999)) or 1.0
        root = np.sqrt(np.abs(joined / scale).clip(0, 1)) * np.sign(joined)
        products = np.rint(127 * root).astype(np.int8).tobytes()
        found["product_size"] = joined.shape[-1]
        found["product_scale"] = _number(scale)
        found["product_beyond"] = bool(np.abs(joined).max(initial=0) > scale)
    return found, weights, products


def _same(
    layer: TraceLayer, what: str, shapes: Sequence[tuple[int, ...]], expected: tuple[int, ...]
) -> None:
    for shape in shapes:
        if shape != expected:
            raise InputError(
                f"page: {what} of layer {layer.name} in the history are {shape}; the probe's trace "
                f"expects {expected}."
            )


def _joined(product: Array, layer: TraceLayer) -> Array:
    """(heads, n, n) of at most 40 rows and columns: of each block the cell furthest from 0."""
    if product.ndim != 3 or len(product) != layer.heads or product.shape[1] != product.shape[2]:
        raise InputError(
            f"page: the product of layer {layer.name} is {product.shape}; expected (heads, n, n)."
        )
    size = product.shape[-1]
    if size <= PRODUCT_SIZE:
        return product
    block = -(-size // PRODUCT_SIZE)
    padded = -(-size // block) * block
    whole = np.zeros((len(product), padded, padded), np.float32)
    whole[:, :size, :size] = product
    small = padded // block
    blocks = whole.reshape(len(product), small, block, small, block).transpose(0, 1, 3, 2, 4)
    cells = blocks.reshape(len(product), small, small, block * block)
    furthest = np.abs(cells).argmax(-1)[..., None]
    joined: Array = np.take_along_axis(cells, furthest, -1)[..., 0]
    return joined


#: Measures that the view draws, and steps of a curve at most.
_WATCHED = ("entropy", "largest_score", "first_token")
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
        chosen = _some_of(reports)
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


def _some_of(reports: list[JsonObject]) -> list[JsonObject]:
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
        for measure in _WATCHED
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
