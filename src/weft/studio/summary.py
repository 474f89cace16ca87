"""Every head in a few numbers, from its rows and its kept edges.

Entropy, spread, largest and unkept are exact. Where edges were left out, the others are lower
bounds, and named as such: see `bounds`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.studio.arrays import Array, LayerArrays

__all__ = ["MEASURES", "NEAR", "layer_measures"]

#: Tokens away that count as local, as in `weft.analysis.heads.measures.local_window`.
NEAR = 4
#: Mass left out, a row, from which a number that lacks it is called a bound.
_LEAST = 5e-6

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
    "local": f"mass within {NEAR} tokens",
    "unkept": "mass on edges that were not kept",
}

#: Those that edges that were not kept would add to.
_FROM_EDGES = ("previous", "next", "same", "first", "local", "distance")


def layer_measures(arrays: LayerArrays, one_sequence: bool) -> list[dict[str, Any]]:
    """For each head: MEASURES, and beside those that are weights what even weights would give.

    one_sequence: whether queries and keys are the same tokens, so that a key can be "before".

    Returns: [{"entropy": 1.2, ..., "even": {"previous": 0.1, ...}, "bounds": ["previous", ...]}]
    by head; NaN becomes None. bounds: which of them are lower bounds.
    """
    queries, length = arrays.queries, arrays.length
    place = np.arange(queries)[:, None]
    targets: dict[str, Array | None] = dict.fromkeys(("previous", "next", "same"))
    if one_sequence:
        targets = {"previous": place - 1, "next": place + 1, "same": place}
    targets["first"] = np.zeros_like(place)
    found = []
    for head in range(arrays.heads):
        keys, weights = arrays.keys[head], arrays.weights[head]
        count = arrays.count[head].astype(np.float64)
        seen = count > 0
        entry: dict[str, Any] = {
            "entropy": _mean(arrays.entropy[head], seen),
            "spread": _mean(np.exp(arrays.entropy[head].astype(np.float64)), seen),
            "unkept": _mean(_unkept(arrays, head), seen),
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
        partial = entry["unkept"] is None or entry["unkept"] > _LEAST
        entry["bounds"] = [name for name in entry if name in _FROM_EDGES] if partial else []
        found.append(entry)
    return found


def _unkept(arrays: LayerArrays, head: int) -> Array:
    """What each row has on edges that were not kept; a sink's share is on no edge."""
    partial = arrays.count[head] > (arrays.keys[head] >= 0).sum(-1)
    found: Array = np.where(partial, arrays.rest[head], 0)
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
