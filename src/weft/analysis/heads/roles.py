"""What each head is for: its strongest measure that chance does not explain.

For every head and every measure, the score is held against what the head's own weights would
score if each row were shuffled (`weft.analysis.heads.chance`). A head has the role of the measure
that

    is significant    p <= alpha after Holm's correction over all heads and measures asked about
    is large          (score - null) / (1 - null) >= least: of what chance leaves, at least so much
    says most         the largest divergence from the null, score log(score / null) + ...

A head without such a measure is "broad" where its rows effectively look at half of their keys or
more, else "mixed". A head with a row of weights that are not numbers (NaN) has no scores, and its
role is called "no number".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from weft.analysis.heads import measures
from weft.analysis.heads.chance import holm
from weft.analysis.heads.pattern_mass import LayerWeights
from weft.analysis.heads.scores import HeadScores
from weft.errors import InputError, optional_package
from weft.formats.trace import TraceData, TraceLayer

if TYPE_CHECKING:
    import pandas

__all__ = [
    "BROAD",
    "MEASURES",
    "NO_NUMBER",
    "ROLES",
    "HeadRole",
    "head_roles",
    "heads",
    "layer_scores",
]

#: Measures that have a null distribution, and so can be a role.
ROLES = (
    *("previous", "next", "same", "first", "separator", "punctuation"),
    *("induction", "duplicate", "local", "partner"),
)

#: All measures, in the order of the table.
MEASURES = (*ROLES, "broad", "entropy", "distance")

#: The breadth from which a head without a role is called broad.
BROAD = 0.5

#: The role of a head with weights that are not numbers.
NO_NUMBER = "no number"

#: Measures of a sequence that looks at itself.
_ONE_SEQUENCE = ("previous", "next", "same", "local", "partner", "distance")


@dataclass(frozen=True)
class HeadRole:
    """A head, its role, and all that it scores.

    layer     the place of its layer in the trace, from 0; name and kind are the layer's
    head      from 0
    role      of ROLES, or "broad", "mixed" or "no number"
    score     of the role's measure, or None without one; and beside it what shuffled weights
    null      score, their mean
    null_sd   and their standard deviation,
    z         how many of these the score is above the mean,
    p         and at most how likely it is by chance, corrected for all heads and measures
    source    "exact"; "rounded": exact but for stored half precision; "bound": from the kept
              edges, every score a lower bound
    scores    each of MEASURES; NaN where it does not apply
    uppers    what they are at most: more than the scores only where source is "bound", or for
              distance and partner where the whole matrix was not asked for
    nulls, sds, ps   of each of ROLES
    """

    layer: int
    name: str
    kind: str
    head: int
    role: str
    score: float | None
    null: float | None
    null_sd: float | None
    z: float | None
    p: float | None
    source: str
    scores: dict[str, float]
    uppers: dict[str, float]
    nulls: dict[str, float]
    sds: dict[str, float]
    ps: dict[str, float]


def layer_scores(
    layer: TraceLayer | LayerWeights,
    *,
    special: Sequence[int] | None = None,
    reach: int = 4,
) -> dict[str, HeadScores]:
    """The scores of a layer's heads on every measure that applies to it.

    Args:
        layer: of a trace.
        special: which keys are separators; None: those with the names of some.
        reach: tokens on either side that are local.

    Returns: of MEASURES, those that apply.
    """
    weights = layer if isinstance(layer, LayerWeights) else LayerWeights(layer)
    found = [
        measures.first_token(weights),
        measures.separator(weights, special),
        measures.punctuation(weights),
        measures.induction(weights),
        measures.duplicate_token(weights),
        measures.breadth(weights),
        measures.entropy(weights),
    ]
    one = weights.layer
    if one.queries_from == one.keys_from and one.shape[1] == one.shape[2]:
        found += [
            measures.previous_token(weights),
            measures.next_token(weights),
            measures.same_token(weights),
            measures.local_window(weights, reach),
            measures.symmetric_partner(weights),
            measures.distance(weights),
        ]
    return {scores.measure: scores for scores in found}


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
        exact: see `weft.analysis.heads.pattern_mass.LayerWeights`.
        reach: tokens on either side that are local.
        alpha: how likely one false role among all heads may be at most.
        least: the smallest effect that makes a role, 0 to 1.

    Returns: a HeadRole for each head, in the order of the trace.

    Raises: InputError: the traces are of different models, or not as exact as asked.
    """
    if not 0 < alpha < 1 or not 0 <= least <= 1:
        raise InputError(
            f"head_roles: alpha={alpha}, least={least}; expected alpha above 0 and below 1, least "
            "from 0 to 1."
        )
    layers: list[TraceLayer] = []
    summed: list[dict[str, HeadScores]] = []
    sources: list[set[str]] = []
    broken: list[Tensor] = []
    for trace in [traces] if isinstance(traces, TraceData) else traces:
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
        for number, layer in enumerate(trace.layers):
            weights = LayerWeights(layer, exact=exact)
            scores = layer_scores(weights, special=_special(trace, layer), reach=reach)
            sources[number].add(weights.source)
            broken[number] |= weights.graph.lse.isnan().any(-1)
            before = summed[number]
            summed[number] = {
                name: before[name] + one if name in before else one for name, one in scores.items()
            }
    return _choose(layers, summed, sources, broken, alpha, least)


def _said(names: list[tuple[str, int]]) -> str:
    return names[0][0] if names else "nowhere"


def _special(trace: TraceData, layer: TraceLayer) -> list[int] | None:
    """The keys of a layer that are special tokens parting texts; None: the trace does not say."""
    flags = trace.positions.get(layer.keys_from, {}).get("special")
    if flags is None:
        return None
    # A mask, a filler and an unknown word are special to the tokenizer, and part nothing.
    others = ("mask", "pad", "unk")
    return [
        place
        for place, (flag, token) in enumerate(zip(flags, layer.key_tokens, strict=True))
        if place and flag and token.strip("[]<>|").lower() not in others
    ]


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
    found = []
    for number, (layer, columns, of_layer) in enumerate(zip(layers, table, corrected, strict=True)):
        source = max(sources[number], key=("exact", "rounded", "bound").index)
        for head in range(layer.heads):
            row = {name: column[head].tolist() for name, column in columns.items()}
            p = of_layer[head].tolist()
            chances = [
                (row["information"][place], place)
                for place in range(len(ROLES))
                if p[place] <= alpha and row["effect"][place] >= least
            ]
            place = max(chances)[1] if chances else None
            role = "broad" if row["score"][MEASURES.index("broad")] >= BROAD else "mixed"
            if broken[number][head]:
                role = NO_NUMBER

            def of(name: str, place: int | None = place, row: dict = row) -> float | None:  # type: ignore[type-arg]
                return None if place is None else row[name][place]

            found.append(
                HeadRole(
                    layer=number,
                    name=layer.name,
                    kind=layer.kind,
                    head=head,
                    role=role if place is None else ROLES[place],
                    score=of("score"),
                    null=of("null"),
                    null_sd=of("sd"),
                    z=of("z"),
                    p=None if place is None else p[place],
                    source=source,
                    scores=dict(zip(MEASURES, row["score"], strict=True)),
                    uppers=dict(zip(MEASURES, row["upper"], strict=True)),
                    nulls=dict(zip(ROLES, row["null"], strict=True)),
                    sds=dict(zip(ROLES, row["sd"], strict=True)),
                    ps=dict(zip(ROLES, p, strict=True)),
                )
            )
    return found


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
        "null": of("null", ROLES),
        "sd": of("null_sd", ROLES),
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

    Columns: layer, head, role; score, null, null_sd, z, p of the role's measure; each of MEASURES;
    source, kind and name of the layer.

    Raises: InputError: pandas is not installed; and as `head_roles`.
    """
    with optional_package("heads"):
        import pandas
    found = head_roles(traces, exact=exact, reach=reach, alpha=alpha, least=least)
    columns = ("layer", "head", "role", "score", "null", "null_sd", "z", "p")
    rows = [
        {name: getattr(one, name) for name in columns}
        | one.scores
        | {"source": one.source, "kind": one.kind, "name": one.name}
        for one in found
    ]
    table = pandas.DataFrame(rows, columns=[*columns, *MEASURES, "source", "kind", "name"])
    numbers = ["score", "null", "null_sd", "z", "p", *MEASURES]
    return table.astype(dict.fromkeys(numbers, "float64"))
