"""The heads of a trace as the studio shows them: what `headloom.analysis` measures, in JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping

from headloom.analysis.heads.measures import HEAD_MEASURES
from headloom.analysis.heads.roles import MEASURES, ROLE_WORDS, HeadRole
from headloom.analysis.heads.roles import head_roles as roles_of
from headloom.formats.files import JsonObject
from headloom.formats.trace import TraceData
from headloom.studio.arrays import few_digits

__all__ = ["WORDS", "head_roles"]

#: Cells of a layer up to which its heads are measured by all weights: some seconds.
_CHEAP_CELLS = 2**30

#: The measures, axes to choose from; and the roles, what they are called and how they are drawn.
WORDS = {
    "measures": {measure.name: measure.title for measure in HEAD_MEASURES},
    "roles": [
        {
            "name": name,
            "title": role.title,
            "phrase": role.phrase,
            "colours": dict(zip(("light", "dark"), role.colours, strict=True)),
        }
        for name, role in ROLE_WORDS.items()
    ],
}


def head_roles(trace: TraceData) -> list[list[JsonObject]]:
    """By layer a list by head of

    role      one of WORDS["roles"]
    scores    {measure: score} of those that apply, as in `trace.heads()`, with few digits
    chance    {measure: [mean, standard deviation]} of random weights of the same entropy
    """
    layers: list[list[JsonObject]] = [[] for _ in trace.layers]
    cheap = all(math.prod(layer.shape) <= _CHEAP_CELLS for layer in trace.layers)
    for head in roles_of(trace, exact=None if cheap else False):
        layers[head.layer].append(_shown(head))
    return layers


def _shown(head: HeadRole) -> JsonObject:
    scores, chances, deviations = _known(head.scores), _known(head.chances), _known(head.chance_sds)
    return {
        "role": head.role,
        "scores": scores,
        "chance": {
            name: [chances[name], deviations[name]] for name in scores if name in deviations
        },
    }


def _known(numbers: Mapping[str, float]) -> dict[str, float]:
    """Those that are numbers, in the order of the table, with few digits."""
    finite = (name for name in MEASURES if math.isfinite(numbers.get(name, math.nan)))
    return {name: few_digits(numbers[name]) for name in finite}
