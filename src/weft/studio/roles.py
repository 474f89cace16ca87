"""The roles of a trace's heads, as the studio shows them."""

from __future__ import annotations

import math
from typing import Any

from weft.analysis.heads.roles import MEASURES, HeadRole
from weft.analysis.heads.roles import head_roles as find_roles
from weft.formats.trace import TraceData

__all__ = ["head_roles"]

#: Between its bounds a score counts as known.
_LEAST = 5e-5


def head_roles(trace: TraceData) -> list[list[dict[str, Any]]]:
    """By layer a list by head of

    role      of weft.analysis.heads.roles.ROLES, or "broad" or "mixed"
    scores    {measure: score} of those that apply
    bounds    which of them are lower bounds
    null      {measure: [mean, standard deviation]} of random weights of the same entropy
    z, p      of the role's measure, or None
    source    "exact", "rounded" or "bound"
    """
    layers: list[list[dict[str, Any]]] = [[] for _ in trace.layers]
    for head in find_roles(trace):
        layers[head.layer].append(_shown(head))
    return layers


def _shown(head: HeadRole) -> dict[str, Any]:
    there = [name for name in MEASURES if _known(head.scores.get(name))]
    return {
        "role": head.role,
        "scores": {name: _digits(head.scores[name]) for name in there},
        "bounds": [name for name in there if head.uppers[name] - head.scores[name] > _LEAST],
        "null": {
            name: [_digits(head.nulls[name]), _digits(head.sds[name])]
            for name in there
            if _known(head.nulls.get(name)) and _known(head.sds.get(name))
        },
        "z": _digits(head.z) if _known(head.z) else None,
        "p": _digits(head.p) if _known(head.p) else None,
        "source": head.source,
    }


def _known(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _digits(value: float | None) -> float:
    assert value is not None
    return float(f"{value:.5g}")
