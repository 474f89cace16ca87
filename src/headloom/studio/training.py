"""`TrainingHistory`: a run's snapshots for the view Training.

steps, losses                one a snapshot; a loss may be None
curves                       {"training loss": [[step, loss], ...], ...}
sequences                    the probe's tokens
layers                       name, kind, index, queries, keys, shape, and
norm, effective_rank, symmetry   [snapshots][heads], as `few_digits` has them; or absent
left_out                         likewise: the mean mass of a row missing in `weights`
weights                   whether available: uint8 (snapshots, heads, queries, keys),
255 sqrt(weight), of the probe
product_size, product_scale      int8 (snapshots, heads, size, size): W_Q W_K^T as
127 sign(m) sqrt(|m| / product_scale), a scale that 99.9 % of entries do not exceed; or absent
product_beyond                   whether some entries exceed it
state                     of the run, "training" or "finished"; None: not known
watched                   of a training that `headloom.monitor` watches, else absent:
    steps                 at which heads were measured
    layers                for each layer of the history, by measure: [steps][heads]
    warnings              [[step, text], ...], in order
    notes                 missing data, a line each
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from headloom.analysis.heads.formation import trace_of_snapshot
from headloom.analysis.weights import mean_left_out
from headloom.errors import DataError
from headloom.formats.files import JsonMapping, JsonObject
from headloom.formats.history import PRODUCT_SIZE, History, LayerSnapshot, Snapshot
from headloom.formats.run import RunFolder
from headloom.formats.trace import TraceData, TraceLayer
from headloom.mechanism.spectra import product_cells, query_key_measures
from headloom.studio.arrays import few_digits

#: Points of a curve, and steps of a watched training at most.
_POINTS = 500
#: Measures of a watched training that the view draws.
_WATCHED = ("entropy", "largest_score", "first_token")

T = TypeVar("T")
Curves = Mapping[str, Sequence[tuple[float, float]]]


@dataclass(frozen=True)
class TrainingHistory:
    """Description of a training as above, and the arrays of each layer.

    probe: the last snapshot as a trace of the probe.
    """

    probe: TraceData
    description: JsonObject
    weights: dict[int, bytes]
    products: dict[int, bytes]


def run_history(run: RunFolder) -> TrainingHistory:
    """Read the history of a run. Raises: DataError: there is none yet, or it is damaged."""
    history = History(run.history)
    if not history.steps:
        raise DataError(
            f"{run.path}: this run has no history yet. Train it with training.history = true."
            if run.monitored() is None
            else f"{run.path}: this training has not been measured yet. Try again once it runs."
        )
    snapshots = list(history)
    watched = _watched(run, [layer.name for layer in snapshots[0].layers])
    return training_history(snapshots, loss_curves(run, history), watched, run.state)


def loss_curves(run: RunFolder, history: History) -> dict[str, list[tuple[float, float]]]:
    """Return the losses of a run: {"training loss": [(step, loss), ...], ...}.

    The first is the initial loss, of the first snapshot; the others are those of its metrics.
    """
    curves = {}
    for title, name in (("training loss", "loss"), ("validation loss", "validation_loss")):
        points = [(report["step"], report[name]) for report in run.reports.read() if name in report]
        if points:
            curves[title] = points
    training = curves.get("training loss")
    for step in history.steps[: bool(training)]:
        start = history.notes(step)
        if training and start["loss"] is not None and step < training[0][0]:
            training.insert(0, (step, start["loss"]))
    return curves


def training_history(
    snapshots: Sequence[Snapshot],
    curves: Curves | None = None,
    watched: JsonObject | None = None,
    state: str | None = None,
) -> TrainingHistory:
    """Build the history of a training from one or more snapshots of the same layers, in order.

    Args: snapshots: in order; curves: finer curves of the loss; watched: as above; state: of the
    run.
    """
    probe = trace_of_snapshot(snapshots[-1])
    layers, weights, products = [], {}, {}
    for number, layer in enumerate(probe.layers):
        entries = [snapshot.layers[number] for snapshot in snapshots]
        dense = np.stack([entry.graph.to_dense().numpy() for entry in entries])
        root = np.sqrt(np.nan_to_num(dense).clip(0, 1))
        weights[number] = np.rint(255 * root).astype(np.uint8).tobytes()
        product, described = _products(entries)
        if product is not None:
            products[number] = product
        layers.append(
            {
                "name": layer.name, "kind": layer.kind, "index": layer.index,
                "queries": layer.queries_from, "keys": layer.keys_from, "shape": list(layer.shape),
                "weights": True, **_measures(layer, entries), **described,
            }
        )  # fmt: skip
    description: JsonObject = {
        "steps": [snapshot.step for snapshot in snapshots],
        "losses": [_number(snapshot.loss) for snapshot in snapshots],
        "curves": {
            name: _some_of([[_number(x), _number(y)] for x, y in points if math.isfinite(y)])
            for name, points in (curves or {}).items()
        },
        "sequences": {key: list(tokens) for key, tokens in probe.sequences.items()},
        "layers": layers,
        "state": state,
    }
    if watched is not None:
        description["watched"] = watched
    return TrainingHistory(probe, description, weights, products)


def _measures(layer: TraceLayer, entries: Sequence[LayerSnapshot]) -> JsonObject:
    """Return the measures of a layer's heads, by measure: [snapshots][heads]."""
    known: dict[str, list[Any]] = {
        name: [entry.measures.get(name) for entry in entries]
        for name in ("norm", "effective_rank", "symmetry")
    }
    known["left_out"] = [mean_left_out(entry.graph).tolist() for entry in entries]
    for place, entry in enumerate(entries):
        if "W_Q" in entry.matrices and "W_K" in entry.matrices:
            both = query_key_measures(entry.matrices["W_Q"], entry.matrices["W_K"])
            known["norm"][place] = both["norm"].tolist()
    return {
        name: [[_number(value) for value in row] for row in rows]
        for name, rows in known.items()
        if all(row is not None and any(value is not None for value in row) for row in rows)
    }


def _products(entries: Sequence[LayerSnapshot]) -> tuple[bytes | None, JsonObject]:
    """Return W_Q W_K^T of the heads as pictures, and their description."""
    products = []
    for entry in entries:
        queries, keys = entry.matrices.get("W_Q"), entry.matrices.get("W_K")
        product = entry.product
        if queries is not None and keys is not None and queries.shape[1] == keys.shape[1]:
            product = product_cells(queries, keys, PRODUCT_SIZE)
        if product is None:
            return None, {}
        products.append(product.float().numpy())
    # NaN and infinity, of a diverged training, have no colour.
    joined = np.nan_to_num(np.stack(products), posinf=0, neginf=0)
    scale = float(np.quantile(np.abs(joined), 0.999)) or 1.0
    root = np.sqrt(np.abs(joined / scale).clip(0, 1)) * np.sign(joined)
    return np.rint(127 * root).astype(np.int8).tobytes(), {
        "product_size": joined.shape[-1],
        "product_scale": _number(scale),
        "product_beyond": bool(np.abs(joined).max(initial=0) > scale),
    }


def _some_of(points: Sequence[T]) -> list[T]:
    """Sample at most a few hundred points evenly, with the last."""
    most = min(len(points), _POINTS)
    return [points[round(place)] for place in np.linspace(0, len(points) - 1, most)]


def _number(value: float | None) -> float | None:
    """Round a number to few digits; None where there is none or it is not finite."""
    return None if value is None or not math.isfinite(value) else few_digits(value)


def _watched(run: RunFolder, layers: Sequence[str]) -> JsonObject | None:
    """Return the measures of a watched training; None: the training is headloom's own."""
    monitored = run.monitored()
    if monitored is None:
        return None
    reports = run.measures.read()
    chosen = _some_of(reports)
    try:
        return {
            "steps": [report["step"] for report in chosen],
            "layers": [
                {
                    measure: [[_number(value) for value in report["layers"][name][measure]]
                              for report in chosen]
                    for measure in _WATCHED
                }
                for name in layers
            ],
            "warnings": [
                [report["step"], str(warning["text"])]
                for report in reports
                for warning in report.get("warnings", [])
            ],
            "notes": _notes(monitored),
        }  # fmt: skip
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{run.measures.path}: these measures are damaged: a report lacks {error}. Restore "
            "them from a copy."
        ) from error


def _notes(monitored: JsonMapping) -> list[str]:
    """List missing data, a line each."""
    layers = monitored["layers"]
    unknown = [layer["name"] for layer in layers if "W_Q" in layer["unknown_matrices"]]
    left = [str(entry["name"]) for entry in monitored.get("not_traced", [])]
    notes = []
    if unknown:
        which = "any layer" if len(unknown) == len(layers) else _named(unknown)
        notes.append(
            f"W_Q and W_K of {which} are not known: headloom does not recognise their names."
        )
    if not monitored.get("matrices", True) and len(unknown) < len(layers):
        notes.append(
            "The matrices were not kept, because they are large or not requested: W_Q W_Kᵀ has a "
            "picture, W_V and W_O have none."
        )
    if left:
        notes.append(f"Not traced, so not shown: {_named(left)}.")
    return notes


def _named(names: Sequence[str]) -> str:
    """List the first three names and the number of others."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
