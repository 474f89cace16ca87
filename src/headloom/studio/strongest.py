"""`strongest_edges`: of a text too long for a browser, the strongest edges of a head or a mean.

A few thousand edges of up to thousands of millions of cells, some rows at a time: what is held and
what is answered is bounded, whatever the length.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headloom.formats.files import JsonObject
from headloom.formats.trace import TraceLayer
from headloom.studio.arrays import Array, LayerArrays
from headloom.studio.means import mean_rows, partial_rows, rows_at_once

__all__ = ["MOST", "strongest_edges"]

#: Edges of an answer.
MOST = 3000


def strongest_edges(layer: TraceLayer, arrays: LayerArrays, head: int | None) -> JsonObject:
    """The strongest kept edges of a head; of None, of the mean of all heads.

    mass                    of all rows on their keys, kept or not
    kept, count             the mass on kept edges, and how many there are
    queries, keys, weights  the strongest of them, strongest first
    scores                  of a head's edges; [] of a mean's
    back                    where the score is symmetric, the weight from key to query; else []
    partial                 of a mean, whether an edge's weight may be higher: a head lacks it
    received                by key of these edges and, in one sequence, by query what it receives
    exact                   whether of all weights; else of the kept edges, at least that
    """
    strength, kept, count = np.zeros(arrays.length), 0.0, 0
    best = _Best()
    size = arrays.queries if head is not None else rows_at_once(arrays)
    for start in range(0, arrays.queries, max(size, 1)):
        rows, keys, weights = _edges(arrays, head, slice(start, start + size))
        numbers = ~np.isnan(weights)
        rows, keys, weights = rows[numbers], keys[numbers], weights[numbers]
        kept += float(weights.sum(dtype=np.float64))
        count += len(weights)
        strength += np.bincount(keys, weights, arrays.length)
        best.add(rows + start, keys, weights)
    rows, keys, weights = best.rows, best.keys, best.weights
    partial = partial_rows(arrays) if head is None else np.zeros(arrays.queries, bool)
    scores, back = np.zeros(0), np.zeros(0)
    if head is not None:
        scores = np.log(weights) + arrays.lse[head][rows]
        if layer.data.symmetric:
            back = np.exp(scores - arrays.lse[head][keys])
    received = strength
    if arrays.received is not None:
        received = arrays.received.mean(0) if head is None else arrays.received[head]
    one = layer.queries_from == layer.keys_from
    tokens = np.union1d(keys, rows) if one else np.unique(keys)
    tokens = tokens[~np.isnan(received[tokens])]
    whole = ((arrays.keys >= 0).sum(-1) >= arrays.count) if arrays.received is None else None
    return {
        "mass": float((arrays.masses.mean(0) if head is None else arrays.masses[head]).sum()),
        "kept": kept,
        "count": count,
        "queries": rows.tolist(),
        "keys": keys.tolist(),
        "weights": _digits(weights),
        "scores": _digits(scores),
        "back": _digits(back),
        "partial": partial[rows].astype(int).tolist() if head is None else [],
        "received": [
            [int(token), number]
            for token, number in zip(tokens, _digits(received[tokens]), strict=True)
        ],
        "exact": whole is None or bool((whole if head is None else whole[head]).all()),
    }


class _Best:
    """The strongest edges so far; of equal ones those of the first rows, then of the first keys."""

    def __init__(self) -> None:
        self.rows, self.keys = np.zeros((2, 0), np.int64)
        self.weights: Array = np.zeros(0)

    def add(self, rows: Array, keys: Array, weights: Array) -> None:
        """Some more edges."""
        least = self.weights[-1] if len(self.weights) >= MOST else 0.0
        some = weights > least
        if some.sum() > MOST:
            # Of more than are wanted, none below the one that is just wanted.
            some &= weights >= np.partition(weights[some], -MOST)[-MOST]
        rows, keys = np.r_[self.rows, rows[some]], np.r_[self.keys, keys[some]]
        weights = np.r_[self.weights, weights[some].astype(np.float64)]
        order = np.lexsort((keys, rows, -weights))[:MOST]
        self.rows, self.keys, self.weights = rows[order], keys[order], weights[order]


def _edges(arrays: LayerArrays, head: int | None, rows: slice) -> tuple[Array, Array, Array]:
    """Row within the slice, key and weight of each edge."""
    if head is not None:
        of, places = np.nonzero(arrays.keys[head, rows] >= 0)
        return of, arrays.keys[head, rows][of, places], arrays.weights[head, rows][of, places]
    part = mean_rows(arrays, rows)
    of = np.repeat(np.arange(part.shape[0]), np.diff(part.indptr))
    return of, part.indices.astype(np.int64), part.data


def _digits(numbers: Any) -> list[float]:
    """Numbers with the digits that float32 has."""
    return [float(f"{number:.9g}") for number in numbers.tolist()]
