"""What each head is for: its strongest measure that chance does not explain.

For every head and every measure, the score is held against what the head's own weights would
score if each row were shuffled (`headloom.analysis.heads.chance`). A head has the role of the
measure that

    is significant    p <= alpha after Holm's correction over all heads and measures asked about
    is large          (score - chance) / (1 - chance) >= least, a share of what chance leaves
    says most         the largest divergence from the null, score log(score / chance) + ...

A head without one is "broad" where its rows effectively look at half of their keys or more. Which
keys a "vertical" head looks at, its name does not say, so that this is the role of heads that have
no other and are not broad; what is left is "mixed". A head with a row of weights that are not
numbers (NaN) has no scores, and its role is called "no number".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headloom.analysis.arguments import each_trace, real_number
from headloom.analysis.heads.chance import holm
from headloom.analysis.heads.layer_weights import LayerWeights
from headloom.analysis.heads.measures import head_measures, layer_scores
from headloom.analysis.heads.patterns import separators
from headloom.analysis.heads.scores import HeadScores, Role, summed
from headloom.analysis.heads.sinks import sink_keys
from headloom.errors import InputError, optional_package
from headloom.formats.trace import TraceData
from headloom.mechanism.shapes import whole_number

if TYPE_CHECKING:
    import pandas

__all__ = [
    "MEASURES",
    "NO_NUMBER",
    "ROLES",
    "ROLE_WORDS",
    "HeadRole",
    "head_roles",
    "heads",
    "special_keys",
]

#: The measures that can be a role: those that chance has a distribution for.
ROLES = tuple(measure.name for measure in head_measures() if measure.role)

#: All measures, in the order of the table.
MEASURES = tuple(measure.name for measure in head_measures())

#: The breadth from which a head without a role is called broad.
BROAD = 0.5

#: The role of a head with weights that are not numbers.
NO_NUMBER = "no number"

#: What every role is called and how it is shown, in the order of a legend.
ROLE_WORDS = {measure.name: measure.role for measure in head_measures() if measure.role} | {
    "broad": Role("broad head", "almost everywhere", ("#b1572f", "#bba891")),
    "mixed": Role("mixed head", "at several keys"),
    NO_NUMBER: Role("head without numbers", "at no key: its weights are not numbers"),
}


@dataclass(frozen=True)
class HeadRole:
    """A head, its role, and all that it scores.

    layer     the place of its layer in the trace, from 0; name and kind are the layer's
    head      from 0
    role      of ROLES, or "broad", "mixed" or "no number"
    score     of the role's measure, or None without one; and beside it what shuffled weights
    chance    score, their mean
    chance_sd and their standard deviation,
    z         how many of these the score is above the mean,
    p         and at most how likely it is by chance, corrected for all heads and measures
    source    "exact"; "rounded": exact but for stored half precision; "kept": of the kept edges
    rest      the mean mass of a row on keys that were not kept; 0 where source is not "kept"
    scores    each of MEASURES; NaN where it does not apply
    chances, chance_sds, ps   of each of ROLES
    """

    layer: int
    name: str
    kind: str
    head: int
    role: str
    score: float | None
    chance: float | None
    chance_sd: float | None
    z: float | None
    p: float | None
    source: str
    rest: float
    scores: dict[str, float]
    chances: dict[str, float]
    chance_sds: dict[str, float]
    ps: dict[str, float]


class _Layer:
    """The scores of a layer's heads over some texts."""

    def __init__(self, number: int, weights: LayerWeights) -> None:
        layer = weights.layer
        self.number, self.name, self.kind, self.heads = number, layer.name, layer.kind, layer.heads
        self.texts: list[dict[str, HeadScores]] = []
        self.broken = torch.zeros(layer.heads, dtype=torch.bool)
        self.rest = torch.zeros(layer.heads, dtype=torch.float64)
        self.source = "exact"

    def add(self, weights: LayerWeights, scores: dict[str, HeadScores]) -> None:
        """Add a text."""
        self.texts.append(scores)
        self.broken |= weights.broken
        self.rest += weights.rest
        self.source = max(self.source, weights.source, key=("exact", "rounded", "kept").index)

    def column(self, quantity: str, names: Sequence[str]) -> Tensor:
        """A quantity of some measures, (heads, measures); NaN where a measure does not apply."""
        scores = summed(self.texts)
        none = torch.full((self.heads,), torch.nan, dtype=torch.float64)
        columns = [getattr(scores[name], quantity) if name in scores else none for name in names]
        return torch.stack(columns, 1).masked_fill(self.broken[:, None], torch.nan)


def head_roles(
    traces: TraceData | Iterable[TraceData],
    *,
    exact: bool | None = None,
    reach: int = 4,
    alpha: float = 0.01,
    least: float = 0.2,
) -> list[HeadRole]:
    """The role of every head.

    Args:
        traces: one, or several of the same model, whose rows are put together.
        exact: see `headloom.analysis.weights.weights_of`.
        reach: tokens on either side that are local.
        alpha: how likely one false role among all heads may be at most.
        least: the smallest effect that makes a role, 0 to 1.

    Returns: a HeadRole for each head, in the order of the trace.

    Raises: InputError: the traces are of different models, or not as exact as asked.
    """
    alpha = real_number("head_roles", "alpha", alpha, above=True, below=True)
    least = real_number("head_roles", "least", least)
    reach = whole_number("head_roles", "reach", reach, 0)
    layers: list[_Layer] = []
    for trace in each_trace("head_roles", traces):
        read = [LayerWeights(layer, exact=exact) for layer in trace.layers]
        layers = layers or [_Layer(number, weights) for number, weights in enumerate(read)]
        names = [(weights.layer.name, weights.layer.heads) for weights in read]
        if names != [(layer.name, layer.heads) for layer in layers]:
            raise InputError(
                f"head_roles: a trace has {len(names)} layers from {names[:1]}, the first one "
                f"{len(layers)} from {[(x.name, x.heads) for x in layers[:1]]}. Give traces of one "
                "model."
            )
        for layer, weights, sinks in zip(layers, read, sink_keys(read, reach), strict=True):
            special = special_keys(trace, weights.layer.keys_from)
            layer.add(weights, layer_scores(weights, special=special, reach=reach, sinks=sinks))
    return _choose(layers, alpha, least)


def special_keys(trace: TraceData, sequence: str) -> list[int]:
    """The places of a sequence's separators, by what the trace says of its tokens."""
    special = trace.positions.get(sequence, {}).get("special")
    return separators(trace.sequences[sequence], special)


#: Of each of ROLES, whether it is only the shape of a row.
_SHAPES = [bool(measure.role.shape) for measure in head_measures() if measure.role]


def _choose(layers: Sequence[_Layer], alpha: float, least: float) -> list[HeadRole]:
    """Roles from scores; heads that are broken have none."""
    if not layers:
        return []
    ps = torch.cat([layer.column("p", ROLES) for layer in layers])
    corrected = torch.split(holm(ps.flatten()).reshape(ps.shape), [x.heads for x in layers])
    roles = []
    for layer, of_layer in zip(layers, corrected, strict=True):
        scores = layer.column("score", MEASURES).tolist()
        rest = (layer.rest / len(layer.texts)).tolist()
        of_role = {
            name: layer.column(name, ROLES).tolist()
            for name in ("score", "chance", "chance_sd", "z", "effect", "information")
        }
        of_role["p"] = of_layer.tolist()
        for head in range(layer.heads):
            row = {name: column[head] for name, column in of_role.items()}
            place, role = _chosen(row, scores[head][MEASURES.index("broad")], alpha, least)
            if layer.broken[head]:
                role = NO_NUMBER
            chosen = {
                name: None if place is None else row[name][place]
                for name in ("score", "chance", "chance_sd", "z", "p")
            }
            roles.append(
                HeadRole(
                    layer=layer.number,
                    name=layer.name,
                    kind=layer.kind,
                    head=head,
                    role=role if place is None else ROLES[place],
                    **chosen,
                    source=layer.source,
                    rest=rest[head],
                    scores=dict(zip(MEASURES, scores[head], strict=True)),
                    chances=dict(zip(ROLES, row["chance"], strict=True)),
                    chance_sds=dict(zip(ROLES, row["chance_sd"], strict=True)),
                    ps=dict(zip(ROLES, row["p"], strict=True)),
                )
            )
    return roles


def _chosen(
    row: dict[str, list[float]], breadth: float, alpha: float, least: float
) -> tuple[int | None, str]:
    """The place of a head's role among ROLES, or None; and what it is called then."""
    is_broad = breadth >= BROAD
    chances = [
        (not _SHAPES[place], row["information"][place], -place)
        for place in range(len(ROLES))
        if row["p"][place] <= alpha
        and row["effect"][place] >= least
        and not (is_broad and _SHAPES[place])
    ]
    # Of equals, as where the first token is the only sink, the first of the table.
    place = -max(chances)[2] if chances else None
    return place, "broad" if is_broad else "mixed"


def heads(
    traces: TraceData | Iterable[TraceData],
    *,
    exact: bool | None = None,
    reach: int = 4,
    alpha: float = 0.01,
    least: float = 0.2,
) -> pandas.DataFrame:
    """The roles of all heads as a table, one row a head. Takes what `head_roles` takes.

    Columns: layer, head, role; score, chance, chance_sd, z, p of the role's measure; each of
    MEASURES; rest, source, kind and name of the layer.

    Raises: InputError: pandas is not installed; and as `head_roles`.
    """
    with optional_package("heads"):
        import pandas
    roles = head_roles(traces, exact=exact, reach=reach, alpha=alpha, least=least)
    first = ("layer", "head", "role", "score", "chance", "chance_sd", "z", "p")
    last = ("rest", "source", "kind", "name")
    rows = [
        {name: getattr(role, name) for name in first}
        | role.scores
        | {name: getattr(role, name) for name in last}
        for role in roles
    ]
    table = pandas.DataFrame(rows, columns=[*first, *MEASURES, *last])
    numbers = ["score", "chance", "chance_sd", "z", "p", *MEASURES, "rest"]
    return table.astype(dict.fromkeys(numbers, "float64"))
