"""Measures of a trace, or of a model's matrices, by name: what `headloom measure` prints."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from headloom.analysis import measures
from headloom.analysis.matrices.circuits import composition_table, weight_measures
from headloom.analysis.matrices.projections import matrices_of
from headloom.analysis.measures import Table
from headloom.api.opening import open_model
from headloom.errors import InputError
from headloom.formats.trace import TraceData
from headloom.mechanism.shapes import chosen

#: The columns of the graph measures that a name stands for, by how they begin.
_GRAPHS = {
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
    **dict.fromkeys(_GRAPHS, ("by", "exact")),
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


def measure(name: str, path: str, **options: str | int | bool | None) -> Table:
    """Measure a trace, or for "projections" a model.

    Args:
        name: "rollout", "flow", "clusters", "projections", "graph" for all graph measures, or one
            of these: "received", "pagerank", "reciprocity", "rank", "parts".
        path: of a trace; for projections a run or a model of Hugging Face.
        options: of these, what the measure takes (`MEASURES`), as its function in
            `headloom.analysis.measures` does; by: a row is a "layer" (the default), a "head" or, of
            projections, a "pair" of heads.

    Raises: InputError: no such measure, layer or position; an option that the measure has not.
    """
    chosen("measure", "name", name, tuple(MEASURES))
    for option, value in options.items():
        if value not in (None, False) and option not in MEASURES[name]:
            raise InputError(f"--{option}: {name} has no such option. Leave it out.")
    if name == "projections":
        by = str(options.get("by") or "layer")
        chosen("projections", "by", by, tuple(_ABOUT))
        layers = matrices_of(open_model(path).network)
        table = composition_table(layers) if by == "pair" else weight_measures(layers, by=by)
        return Table(table, "", _ABOUT[by])
    asked = {
        option: options[option] for option in MEASURES[name] if options.get(option) is not None
    }
    of_trace = getattr(measures, "graphs" if name in _GRAPHS else name)
    result: Table = of_trace(TraceData.open(Path(path)), **asked)
    if name not in _GRAPHS:
        return result
    columns = (*_GRAPHS[name], "layer", "kind", "head", "source", "rest")
    shown = [column for column in result.rows if str(column).startswith(columns)]
    return replace(result, rows=result.rows[shown])
