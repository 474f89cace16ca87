"""Every head in a few numbers and one small picture, from its kept edges.

Where a row's kept edges do not hold all of its mass, a measure is a lower bound, short by at most
the mass left out (`rest`); the entropy is exact.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.studio.arrays import Array, LayerArrays

__all__ = ["MEASURES", "NEAR", "TILE", "layer_measures", "layer_tiles"]

#: Bins of a small picture, along queries and along keys, at most.
TILE = 64
#: Tokens away that count as local.
NEAR = 3

#: What each measure is, for people; all but the first three are mean weights, 0 to 1.
MEASURES = {
    "entropy": "entropy of a row, nats",
    "distance": "mean distance, tokens",
    "spread": "keys looked at, as if evenly",
    "largest": "largest weight of a row",
    "previous": "weight on the token before",
    "next": "weight on the token after",
    "same": "weight on the token itself",
    "first": "weight on the first token",
    "last": "weight on the last token",
    "local": f"mass within {NEAR} tokens",
    "rest": "mass left out",
}


def layer_tiles(arrays: LayerArrays) -> Array:
    """The weights of each head in at most 64 x 64 bins, uint8: 255 sqrt(mass).

    A bin holds the mass that one of its rows has in it, on average; with at most 64 tokens a bin
    is a cell. Returns: (heads, min(queries, 64), min(keys, 64)).
    """
    heads, queries, length = arrays.heads, arrays.queries, arrays.length
    high, wide = min(queries, TILE), min(length, TILE)
    if not (heads and high and wide):
        return np.zeros((heads, high, wide), np.uint8)
    row_bin = np.arange(queries) * high // queries
    rows = np.bincount(row_bin, minlength=high)
    tiles = np.empty((heads, high, wide), np.float64)
    for head in range(heads):
        keys = arrays.keys[head]
        columns = np.maximum(keys, 0).astype(np.int64) * wide // length
        bins = (row_bin[:, None] * wide + columns).ravel()
        # Empty places weigh 0.
        mass = np.bincount(bins, weights=arrays.weights[head].ravel(), minlength=high * wide)
        tiles[head] = mass.reshape(high, wide) / rows[:, None]
    shades: Array = np.rint(255 * np.sqrt(np.nan_to_num(tiles).clip(0, 1))).astype(np.uint8)
    return shades


def layer_measures(arrays: LayerArrays, one_sequence: bool) -> list[dict[str, Any]]:
    """For each head: MEASURES, and beside those that are weights what even weights would give.

    one_sequence: whether queries and keys are the same tokens, so that a key can be "before".

    Returns: [{"entropy": 1.2, ..., "even": {"previous": 0.1, ...}}] by head; NaN becomes None.
    """
    queries, length = arrays.queries, arrays.length
    place = np.arange(queries)[:, None]
    targets: dict[str, Array | None] = dict.fromkeys(("previous", "next", "same"))
    if one_sequence:
        targets = {"previous": place - 1, "next": place + 1, "same": place}
    targets["first"] = np.zeros_like(place)
    targets["last"] = np.full_like(place, length - 1)
    found = []
    for head in range(arrays.heads):
        keys, weights = arrays.keys[head], arrays.weights[head]
        count = arrays.count[head].astype(np.float64)
        seen = count > 0
        entry: dict[str, Any] = {
            "entropy": _mean(arrays.entropy[head], seen),
            "spread": _mean(np.exp(arrays.entropy[head].astype(np.float64)), seen),
            "rest": _mean(arrays.rest[head], seen),
            "largest": _mean(weights.max(1, initial=0.0), seen),
            "allowed": _mean(count, seen),
        }
        even: dict[str, float | None] = {}
        away = np.abs(keys - place)
        if one_sequence:
            entry["distance"] = _mean((weights * away).sum(1), seen)
            near = np.where((keys >= 0) & (away <= NEAR), weights, 0).sum(1)
            entry["local"] = _mean(near, seen)
            window = _allowed_near(queries, length, count)
            even["local"] = _mean(window / np.maximum(count, 1), seen)
        for name, target in targets.items():
            if target is None:
                continue
            there = seen & (target[:, 0] >= 0) & (target[:, 0] < length)
            # A causal row sees the keys up to its own place: the others cannot be looked at.
            there &= (target[:, 0] < count) | (count == length)
            entry[name] = _mean(np.where(keys == target, weights, 0).sum(1), there)
            even[name] = _mean(1 / np.maximum(count, 1), there)
        entry["even"] = even
        found.append(entry)
    return found


def _allowed_near(queries: int, length: int, count: Array) -> Array:
    """How many keys within NEAR tokens a row may look at, its mask being causal or all."""
    place = np.arange(queries)
    last = np.where(count == length, length - 1, count - 1)
    near: Array = np.minimum(place + NEAR, last) - np.maximum(place - NEAR, 0) + 1
    found: Array = np.maximum(near, 0)
    return found


def _mean(values: Array, rows: Array) -> float | None:
    """The mean over some rows, 5 significant digits; None where there is no row or no number."""
    if not rows.any():
        return None
    mean = float(np.mean(values[rows], dtype=np.float64))
    return float(f"{mean:.5g}") if np.isfinite(mean) else None
