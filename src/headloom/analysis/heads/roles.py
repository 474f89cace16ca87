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

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headloom.analysis.arguments import check_trace, each_trace, keys_named, real_number
from headloom.analysis.heads.chance import holm
from headloom.analysis.heads.measures import head_measures
from headloom.analysis.heads.pattern_mass import LayerWeights, weights_of
from headloom.analysis.heads.patterns import separators
from headloom.analysis.heads.scores import HeadScores, Role
from headloom.analysis.heads.sinks import certain_sinks
from headloom.errors import InputError, optional_package
from headloom.formats.trace import TraceData, TraceLayer
from headloom.mechanism.shapes import check_flag, in_words, whole_number

if TYPE_CHECKING:
    import pandas

__all__ = [
    "BROAD",
    "MEASURES",
    "NO_NUMBER",
    "ROLES",
    "ROLE_WORDS",
    "HeadRole",
    "head_roles",
    "heads",
    "layer_scores",
    "special_keys",
]

#: Measures that have a null distribution, and so can be a role.
ROLES = tuple(measure.name for measure in head_measures() if measure.role)

#: All measures, in the order of the table.
MEASURES = tuple(measure.name for measure in head_measures())

#: Measures of the whole matrix, which is not formed of a long layer unless it is asked for.
_OF_WHOLE = ("distance", "partner")

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
    source    "exact"; "rounded": exact but for stored half precision; "bound": from the kept
              edges, every score a lower bound
    scores    each of MEASURES; NaN where it does not apply
    uppers    what they are at most: more than the scores only where source is "bound", or for
              distance and partner where the whole matrix was not asked for
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
    scores: dict[str, float]
    uppers: dict[str, float]
    chances: dict[str, float]
    chance_sds: dict[str, float]
    ps: dict[str, float]


def layer_scores(
    layer: TraceLayer | LayerWeights,
    *,
    special: Sequence[int] | None = None,
    reach: int = 4,
    sinks: Sequence[int] | None = None,
    without: Collection[str] = (),
) -> dict[str, HeadScores]:
    """The scores of a layer's heads on every measure that applies to it.

    Args:
        layer: of a trace.
        special: which keys are separators; None: those with the names of some.
        reach: tokens on either side that are local.
        sinks: which keys are sinks; None: it is not known, and that measure is left out.
        without: measures that are left out.

    Returns: of MEASURES, those that apply.
    """
    reach = whole_number("layer_scores", "reach", reach, 0)
    weights = weights_of(layer)
    keys = weights.layer.shape[2]
    special = None if special is None else keys_named("layer_scores", "special", special, keys)
    sinks = None if sinks is None else keys_named("layer_scores", "sinks", sinks, keys)
    if not isinstance(without, list | tuple | set | frozenset | dict):
        raise InputError(
            f"layer_scores: without={in_words(without)}; expected names of measures to leave out."
        )
    read = weights.layer
    one_sequence = read.queries_from == read.keys_from and read.shape[1] == read.shape[2]
    return {
        measure.name: measure.scores(weights)
        for measure in head_measures(special, reach, sinks or ())
        if (one_sequence or not measure.one_sequence)
        and (sinks is not None or measure.name != "sink")
        and measure.name not in without
    }


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
        exact: see `headloom.analysis.heads.pattern_mass.LayerWeights`.
        reach: tokens on either side that are local.
        alpha: how likely one false role among all heads may be at most.
        least: the smallest effect that makes a role, 0 to 1.

    Returns: a HeadRole for each head, in the order of the trace.

    Raises: InputError: the traces are of different models, or not as exact as asked.
    """
    alpha = real_number("head_roles", "alpha", alpha, above=True, below=True)
    least = real_number("head_roles", "least", least)
    reach = whole_number("head_roles", "reach", reach, 0)
    check_flag("head_roles", "exact", exact, optional=True)
    layers: list[TraceLayer] = []
    summed: list[dict[str, HeadScores]] = []
    sources: list[set[str]] = []
    broken: list[Tensor] = []
    for trace in each_trace("head_roles", traces):
        if not layers:
            layers = list(trace.layers)
            summed, sources = [{} for _ in layers], [set() for _ in layers]
            broken = [torch.zeros(layer.heads, dtype=torch.bool) for layer in layers]
        names = [(layer.name, layer.heads) for layer in trace.layers]
        if names != [(layer.name, layer.heads) for layer in layers]:
            raise InputError(
                f"head_roles: a trace has {len(names)} layers from {_said(names)}, the first one "
                f"{len(layers)} from {_said([(x.name, x.heads) for x in layers])}. Give traces of "
                "one model."
            )
        sinks, certain = certain_sinks(trace.layers, reach, exact=exact)
        for number, layer in enumerate(trace.layers):
            weights = LayerWeights(layer, exact=exact)
            special = special_keys(trace, layer.keys_from)
            scores = layer_scores(weights, special=special, reach=reach, sinks=sinks[number])
            sources[number].add(weights.source if certain[number] else "bound")
            broken[number] |= weights.broken
            before = summed[number]
            summed[number] = {
                name: before[name] + of_layer if name in before else of_layer
                for name, of_layer in scores.items()
            }
    return _choose(layers, summed, sources, broken, alpha, least)


def _said(names: list[tuple[str, int]]) -> str:
    return names[0][0] if names else "nowhere"


def special_keys(trace: TraceData, sequence: str) -> list[int]:
    """The places of a sequence's separators, by what the trace says of its tokens."""
    check_trace("special_keys", trace)
    if not isinstance(sequence, str) or sequence not in trace.sequences:
        there = ", ".join(trace.sequences) or "none"
        raise InputError(f"special_keys: no sequence {in_words(sequence)}; the trace has {there}.")
    special = trace.positions.get(sequence, {}).get("special")
    return separators(trace.sequences[sequence], special)


#: Of each of ROLES, whether it is only the shape of a row.
_SHAPES = [bool(measure.role.shape) for measure in head_measures() if measure.role]

#: Quantities of the measure that a head's role is.
_OF_ROLE = ("score", "chance", "chance_sd", "z", "corrected")


def _choose(
    layers: Sequence[TraceLayer],
    summed: Sequence[dict[str, HeadScores]],
    sources: Sequence[set[str]],
    broken: Sequence[Tensor],
    alpha: float,
    least: float,
) -> list[HeadRole]:
    """Roles from scores; heads that are broken have none."""
    table = [
        {
            name: column.masked_fill(lost[:, None], torch.nan)
            for name, column in _columns(scores, layer.heads).items()
        }
        for layer, scores, lost in zip(layers, summed, broken, strict=True)
    ]
    if not table:
        return []
    ps = torch.cat([columns["p"] for columns in table])
    corrected = torch.split(holm(ps.flatten()).reshape(ps.shape), [layer.heads for layer in layers])
    roles = []
    for number, (layer, columns, of_layer) in enumerate(zip(layers, table, corrected, strict=True)):
        source = max(sources[number], key=("exact", "rounded", "bound").index)
        for head in range(layer.heads):
            row = {name: column[head].tolist() for name, column in columns.items()}
            p = of_layer[head].tolist()
            place, role = _chosen(row, p, alpha, least)
            if broken[number][head]:
                role = NO_NUMBER
            row["corrected"] = p
            of_role = {name: None if place is None else row[name][place] for name in _OF_ROLE}
            roles.append(
                HeadRole(
                    layer=number,
                    name=layer.name,
                    kind=layer.kind,
                    head=head,
                    role=role if place is None else ROLES[place],
                    score=of_role["score"],
                    chance=of_role["chance"],
                    chance_sd=of_role["chance_sd"],
                    z=of_role["z"],
                    p=of_role["corrected"],
                    source=source,
                    scores=dict(zip(MEASURES, row["score"], strict=True)),
                    uppers=dict(zip(MEASURES, row["upper"], strict=True)),
                    chances=dict(zip(ROLES, row["chance"], strict=True)),
                    chance_sds=dict(zip(ROLES, row["chance_sd"], strict=True)),
                    ps=dict(zip(ROLES, p, strict=True)),
                )
            )
    return roles


def _chosen(
    row: dict[str, list[float]], p: Sequence[float], alpha: float, least: float
) -> tuple[int | None, str]:
    """The place of a head's role among ROLES, or None; and what it is called then."""
    is_broad = row["score"][MEASURES.index("broad")] >= BROAD
    chances = [
        (not _SHAPES[place], row["information"][place], -place)
        for place in range(len(ROLES))
        if p[place] <= alpha and row["effect"][place] >= least and not (is_broad and _SHAPES[place])
    ]
    # Of equals, as where the first token is the only sink, the first of the table.
    place = -max(chances)[2] if chances else None
    return place, "broad" if is_broad else "mixed"


def _columns(scores: dict[str, HeadScores], heads: int) -> dict[str, Tensor]:
    """Each quantity of every measure, (heads, measures); NaN where a measure does not apply."""
    none = torch.full((heads,), torch.nan, dtype=torch.float64)

    def of(quantity: str, names: Sequence[str]) -> Tensor:
        return torch.stack(
            [getattr(scores[name], quantity) if name in scores else none for name in names], 1
        )

    return {
        "score": of("score", MEASURES),
        "upper": of("upper", MEASURES),
        "chance": of("chance", ROLES),
        "chance_sd": of("chance_sd", ROLES),
        "z": of("z", ROLES),
        "p": of("p", ROLES),
        "effect": of("effect", ROLES),
        "information": of("information", ROLES),
    }


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
    MEASURES; distance_upper and partner_upper; source, kind and name of the layer. The two uppers
    lie above distance and partner where these are lower bounds, as of long layers without
    exact=True, also where the source of the other measures is exact.

    Raises: InputError: pandas is not installed; and as `head_roles`.
    """
    with optional_package("heads"):
        import pandas
    roles = head_roles(traces, exact=exact, reach=reach, alpha=alpha, least=least)
    columns = ("layer", "head", "role", "score", "chance", "chance_sd", "z", "p")
    rows = [
        {name: getattr(role, name) for name in columns}
        | role.scores
        | {f"{name}_upper": role.uppers[name] for name in _OF_WHOLE}
        | {"source": role.source, "kind": role.kind, "name": role.name}
        for role in roles
    ]
    measured = [*MEASURES, *(f"{name}_upper" for name in _OF_WHOLE)]
    table = pandas.DataFrame(rows, columns=[*columns, *measured, "source", "kind", "name"])
    numbers = ["score", "chance", "chance_sd", "z", "p", *measured]
    return table.astype(dict.fromkeys(numbers, "float64"))
