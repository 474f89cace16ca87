"""Measures of a trace, or of a model's matrices, by name: what `headloom measure` prints."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from headloom.analysis import measures
from headloom.analysis.matrices.composition import composition_table
from headloom.analysis.matrices.projections import matrices_of
from headloom.analysis.matrices.table import weight_measures
from headloom.analysis.measures import Table
from headloom.api.opening import open_model
from headloom.errors import InputError
from headloom.formats.trace import TraceData
from headloom.mechanism.shapes import chosen

__all__ = ["MEASURES", "MeasureOptions", "measure"]

#: The columns of the graph measures that a name stands for, by how they begin.
_COLUMNS = {
    "graph": ("",),
    "received": ("received", "hitters"),
    "pagerank": ("pagerank",),
    "reciprocity": ("reciprocity",),
    "rank": ("rank",),
    "parts": ("parts", "largest_part"),
}
#: The measures, and the options that each takes.
MEASURES = {
    "rollout": ("token", "reached", "kind", "exact"),
    "flow": ("token", "kind", "exact"),
    "clusters": ("layer", "head", "count", "exact"),
    "projections": ("by",),
    **dict.fromkeys(_COLUMNS, ("by", "exact")),
}
_PROJECTIONS = (
    "Norms are Frobenius norms; ranks effective ones (e^entropy of the singular values).",
    "symmetry: 1 symmetric, -1 antisymmetric. directionality: above 0 more long columns than rows.",
    "copying: the sum of the eigenvalues over that of their sizes.",
)
#: What the columns of the table of projections are, by what a row is.
_ABOUT = {
    "layer": (
        "symmetry, directionality, qk_norm: of the sum of W_Q W_K^T over heads; ov_norm: W_V W_O.",
        "norm_W_...: of the matrices of all heads. qk_rank, ov_rank, copying: means over heads.",
        *_PROJECTIONS,
    ),
    "head": (
        "symmetry, directionality, qk_...: of a head's W_Q W_K^T; copying, ov_...: of its W_V W_O.",
        *_PROJECTIONS,
    ),
    "pair": (
        "score, 0 to 1: how much of what the earlier head writes is read by queries, keys, values.",
        "times_random: the score over 1 / sqrt(width), which matrices at random have.",
    ),
}


@dataclass(frozen=True)
class MeasureOptions:
    """What is measured of what.

    by: a row is a "layer", a "head" or, of projections, a "pair" of heads; None: a layer.
    layer, head, count: of `headloom.analysis.measures.clusters`.
    token, kind: of rollout and flow, see `headloom.analysis.measures`; None: the last position.
    reached: of rollout, where the position went, instead of what it holds.
    exact: True: from all weights; False: from the kept edges; None: from all where there are
        queries and keys.
    """

    by: str | None = None
    layer: str | None = None
    head: int | None = None
    token: int | None = None
    reached: bool = False
    kind: str | None = None
    count: int | None = None
    exact: bool | None = None


def measure(name: str, path: str, options: MeasureOptions | None = None) -> Table:
    """Measure a trace, or for "projections" a model.

    Args:
        name: "rollout", "flow", "clusters", "projections", "graph" for all graph measures, or one
            of these: "received", "pagerank", "reciprocity", "rank", "parts".
        path: of a trace; for projections a run or a model of Hugging Face.
        options: see MeasureOptions.

    Raises: InputError: no such measure, layer or position; an option that the measure has not.
    """
    asked = options or MeasureOptions()
    chosen("measure", "name", name, tuple(MEASURES))
    for option, value in vars(asked).items():
        if value not in (None, False) and option not in MEASURES[name]:
            raise InputError(f"--{option}: {name} has no such option. Leave it out.")
    by = asked.by or "layer"
    if name == "projections":
        chosen("projections", "by", by, tuple(_ABOUT))
        layers = matrices_of(open_model(path).network)
        table = composition_table(layers) if by == "pair" else weight_measures(layers, by=by)
        return Table(table, "", _ABOUT[by])
    trace = TraceData.open(Path(path))
    token = -1 if asked.token is None else asked.token
    if name == "rollout":
        return measures.rollout(
            trace, token=token, column=asked.reached, kind=asked.kind, exact=asked.exact
        )
    if name == "flow":
        return measures.flow(trace, token=token, kind=asked.kind, exact=asked.exact)
    if name == "clusters":
        return measures.clusters(
            trace, layer=asked.layer, head=asked.head, count=asked.count, exact=asked.exact
        )
    whole = measures.graphs(trace, by=by, exact=asked.exact)
    columns = (*_COLUMNS[name], "layer", "kind", "head", "source", "rest")
    shown = [column for column in whole.rows if str(column).startswith(columns)]
    return replace(whole, rows=whole.rows[shown])
