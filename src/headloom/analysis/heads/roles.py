"""Role of each head: its strongest measure that chance does not explain.

For every head and every measure, the score is compared with the score of the head's own weights
with each row shuffled (`headloom.analysis.heads.scores`). A head has the role of the measure that

    is significant    p <= ALPHA after Holm's correction over all heads and measures
    is large          (score - chance) / (1 - chance) >= LEAST
    is informative    the largest divergence from the null, score log(score / chance) + ...

A head without one is "broad" if the effective number of keys of its rows is half of the visible
keys or more. "vertical" does not name the keys, so it is the role of heads without another one that
are not broad; all others are "mixed". A head with a row of NaN weights has no scores, and its role
is "no number".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import pandas
import torch
from torch import Tensor

from headloom.analysis.heads.layer_weights import LayerWeights, sink_keys
from headloom.analysis.heads.measures import HEAD_MEASURES, Role, head_patterns, layer_scores
from headloom.analysis.heads.patterns import separators
from headloom.analysis.heads.scores import HeadScores, holm
from headloom.errors import InputError
from headloom.formats.trace import TraceData, TraceLayer

#: Measures that can be a role: the ones with a null distribution.
ROLES = tuple(measure.name for measure in HEAD_MEASURES if measure.role)

#: All measures, in the order of the table.
MEASURES = tuple(measure.name for measure in HEAD_MEASURES)

#: Largest probability of one false role among all heads; smallest effect of a role; and smallest
#: breadth of a broad head.
ALPHA, LEAST, BROAD = 0.01, 0.2, 0.5

#: Whether each of ROLES describes the shape of a row only.
_SHAPES = [bool(measure.role.shape) for measure in HEAD_MEASURES if measure.role]

#: Sources of scores, the most exact first.
SOURCES = ("exact", "rounded", "kept")

#: Role of a head with NaN weights.
NO_NUMBER = "no number"

#: Name and display of every role, in the order of a legend.
ROLE_WORDS = {measure.name: measure.role for measure in HEAD_MEASURES if measure.role} | {
    "broad": Role("broad head", "almost everywhere", ("#b1572f", "#bba891")),
    "mixed": Role("mixed head", "at several keys"),
    NO_NUMBER: Role("head without numbers", "at no key: its weights are not numbers"),
}


@dataclass(frozen=True)
class HeadRole:
    """Head, its role, and all its scores.

    layer     place of its layer in the trace, from 0; name and kind are the layer's
    head      from 0
    role      in ROLES, or "broad", "mixed" or "no number"
    score     of the role's measure, or None without one
    chance    mean score of shuffled weights
    chance_sd standard deviation of their score
    z         standard deviations between score and chance
    p         upper bound of the p-value, corrected for all heads and measures
    source    "exact"; "rounded": exact except for stored half precision; "kept": of kept edges
    rest      mean mass of a row on keys that were not kept; 0 unless source is "kept"
    scores    of MEASURES; NaN if a measure does not apply
    chances, chance_sds   of ROLES
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


def head_roles(
    traces: TraceData | Iterable[TraceData], *, exact: bool | None = None
) -> list[HeadRole]:
    """Return the role of every head.

    Args:
        traces: one, or several of the same model, whose rows are pooled.
        exact: see `headloom.analysis.weights.weights_of`.

    Returns: a HeadRole for each head, in the order of the trace.

    Raises: InputError: the traces are of different models, or not as exact as asked.
    """
    layers: list[_Layer] = []
    for trace in [traces] if isinstance(traces, TraceData) else traces:
        read = [
            LayerWeights(
                layer,
                exact=exact,
                patterns=head_patterns(layer, special_keys(trace, layer.keys_from)),
            )
            for layer in trace.layers
        ]
        layers = layers or [_Layer(weights.layer) for weights in read]
        names = [(weights.layer.name, weights.layer.heads) for weights in read]
        if names != [(layer.of.name, layer.of.heads) for layer in layers]:
            raise InputError(
                f"head_roles: a trace has {len(names)} layers from {names[:1]}, the first one "
                f"{len(layers)} from {[(x.of.name, x.of.heads) for x in layers[:1]]}. Give traces "
                "of one model."
            )
        for layer, weights, sinks in zip(layers, read, sink_keys(read), strict=True):
            for name, scores in layer_scores(weights, sinks=sinks).items():
                before = layer.scores.get(name)
                layer.scores[name] = scores if before is None else before + scores
            layer.broken = layer.broken | weights.broken
            layer.rests.append(weights.rest)
            layer.source = max(layer.source, weights.source, key=SOURCES.index)
    if not layers:
        return []
    ps = torch.cat([layer.column("p", ROLES) for layer in layers])
    corrected = torch.split(holm(ps.flatten()).reshape(ps.shape), [x.of.heads for x in layers])
    return [
        role
        for number, (layer, p) in enumerate(zip(layers, corrected, strict=True))
        for role in _roles(number, layer, p)
    ]


@dataclass(eq=False)
class _Layer:
    """Layer of the first text, and the scores of its heads over all texts."""

    of: TraceLayer
    scores: dict[str, HeadScores] = field(default_factory=dict)
    broken: Tensor | bool = False
    rests: list[Tensor] = field(default_factory=list)
    source: str = "exact"

    def column(self, quantity: str, names: Sequence[str]) -> Tensor:
        """Return a quantity of some measures, (heads, measures); NaN: it does not apply."""
        none = torch.full((self.of.heads,), torch.nan, dtype=torch.float64)
        columns = [
            getattr(self.scores[name], quantity) if name in self.scores else none for name in names
        ]
        broken = torch.as_tensor(self.broken).reshape(-1, 1)
        return torch.stack(columns, 1).masked_fill(broken, torch.nan)


def _roles(number: int, layer: _Layer, p: Tensor) -> Iterator[HeadRole]:
    """Yield the roles of a layer's heads; p: (heads, ROLES), corrected."""
    names = ("score", "chance", "chance_sd", "z")
    columns = {name: layer.column(name, ROLES) for name in names} | {"p": p}
    scores, broad = layer.column("score", MEASURES), layer.column("score", ["broad"])[:, 0] >= BROAD
    shape, information = torch.tensor(_SHAPES), layer.column("information", ROLES)
    able = (p <= ALPHA) & (layer.column("effect", ROLES) >= LEAST) & ~(broad[:, None] & shape)
    # Of equals, for example if the first token is the only sink, take the first of the table; and
    # the shape of a row last.
    rank = information.where(able, -torch.inf).masked_fill(able & shape, -1.0)
    best = rank >= rank.amax(-1, keepdim=True) - 1e-6
    rest, broken = torch.stack(layer.rests).mean(0), torch.as_tensor(layer.broken)
    for head, place in enumerate(best.int().argmax(-1).tolist()):
        role, has_role = "broad" if broad[head] else "mixed", bool(able[head].any())
        if has_role:
            role = ROLES[place]
        yield HeadRole(
            layer=number, name=layer.of.name, kind=layer.of.kind, head=head,
            role=NO_NUMBER if broken[head] else role,
            **{name: float(x[head, place]) if has_role else None for name, x in columns.items()},
            source=layer.source, rest=float(rest[head]),
            scores=dict(zip(MEASURES, scores[head].tolist(), strict=True)),
            chances=dict(zip(ROLES, columns["chance"][head].tolist(), strict=True)),
            chance_sds=dict(zip(ROLES, columns["chance_sd"][head].tolist(), strict=True)),
        )  # fmt: skip


def special_keys(trace: TraceData, sequence: str) -> list[int]:
    """Return the places of a sequence's separators, by its special tokens in the trace."""
    special = trace.positions.get(sequence, {}).get("special")
    return separators(trace.sequences[sequence], special)


def heads(
    traces: TraceData | Iterable[TraceData], *, exact: bool | None = None
) -> pandas.DataFrame:
    """Return the roles of all heads as a table, a row for each head; see `head_roles`.

    Columns: layer, head, role; score, chance, chance_sd, z, p of the role's measure; each of
    MEASURES; rest, source, kind and name of the layer.

    Raises: as `head_roles`.
    """
    first = ("layer", "head", "role", "score", "chance", "chance_sd", "z", "p")
    last = ("rest", "source", "kind", "name")
    rows = [
        {name: getattr(role, name) for name in first}
        | role.scores
        | {name: getattr(role, name) for name in last}
        for role in head_roles(traces, exact=exact)
    ]
    table = pandas.DataFrame(rows, columns=[*first, *MEASURES, *last])
    return table.astype(dict.fromkeys([*first[3:], *MEASURES, "rest"], "float64"))
