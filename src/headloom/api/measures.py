"""`headloom.measure`: measures of a trace, or of a model's matrices, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headloom.analysis import measures
from headloom.analysis.arguments import OneTrace, trace_of
from headloom.analysis.matrices.circuits import composition_table, weight_measures
from headloom.analysis.matrices.projections import matrices_of
from headloom.api.opening import Source, load
from headloom.api.reading import labels
from headloom.errors import InputError
from headloom.mechanism.shapes import chosen

if TYPE_CHECKING:
    import pandas

#: Column prefixes of the graph measures.
_GRAPHS = {
    "graph": ("",),
    "received": ("received", "hitters"),
    "pagerank": ("pagerank",),
    "reciprocity": ("reciprocity",),
    "rank": ("rank",),
    "parts": ("parts", "largest_part"),
}
#: Measures, and their parameters.
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
    "copying: sum of the eigenvalues over the sum of their absolute values.",
)
#: Explanations of the columns of projections, by the kind of a row.
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
        "score, 0 to 1: share of the earlier head's output read by queries, keys, values.",
        "times_random: the score over 1 / sqrt(width), the score of random matrices.",
    ),
}


def measure(
    name: str,
    x: OneTrace | Source,
    *,
    by: str | None = None,
    layer: str | int | None = None,
    head: int | None = None,
    token: int | None = None,
    reached: bool = False,
    kind: str | None = None,
    count: int | None = None,
    exact: bool | None = None,
) -> pandas.DataFrame:
    """Measure a trace, or for "projections" a model.

    Args:
        name: "rollout": share of each input position in an output position, through all layers;
            "flow": maximum flow to it; "clusters": groups of tokens that attend to each other;
            "projections": symmetry, ranks and norms of W_Q W_K^T and W_V W_O; "received",
            "pagerank", "reciprocity", "rank", "parts" of the graphs, or "graph": all five.
        x: a trace, or its path; for projections a module, a run or a model of Hugging Face.
        by: row per "layer" (the default), "head" or, of projections, "pair" of heads.
        layer: of clusters: this layer, a row for each position.
        head: of clusters: this head alone.
        token: of rollout and flow: a position, negative ones from the end; None: the last.
        reached: of rollout: output positions that hold the token, instead of its sources.
        kind: of rollout and flow: "encoder", "decoder" or "cross"; None: the whole model.
        count: number of clusters; None: from the eigenvalues.
        exact: True: from all weights; False: from the kept edges; None: exactly where it is cheap.

    Returns: a DataFrame with the columns that `headloom measure` prints; in its `attrs` a title
    and notes.

    Raises: InputError: no such measure, layer or position; a parameter of another measure.

    >>> import headloom, torch
    >>> weights = torch.tensor([[[0.5, 0.5], [0.25, 0.75]]])
    >>> trace = headloom.from_weights(weights, tokens=["a", "b"])
    >>> headloom.measure("rollout", trace)[["token", "share"]].values.tolist()
    [['b', 0.875], ['a', 0.125]]
    """
    chosen("measure", "name", name, tuple(MEASURES))
    options = {
        "by": by, "layer": layer, "head": head, "token": token, "reached": reached or None,
        "kind": kind, "count": count, "exact": exact,
    }  # fmt: skip
    options = {option: value for option, value in options.items() if value is not None}
    for option in options.keys() - MEASURES[name]:
        raise InputError(f"{option}: {name} has no such option. Leave it out.")
    if name == "projections":
        chosen("projections", "by", by or "layer", tuple(_ABOUT))
        layers = matrices_of(load(x)._body)
        rows = (
            composition_table(layers) if by == "pair" else weight_measures(layers, by=by or "layer")
        )
        return measures.table_of(rows, "", *_ABOUT[by or "layer"])
    trace = trace_of("measure", x)
    of_trace = getattr(measures, "graphs" if name in _GRAPHS else name)
    table: pandas.DataFrame = of_trace(trace, **options)
    if name in _GRAPHS:
        columns = (*_GRAPHS[name], "layer", "kind", "head", "source", "rest")
        table = table[[column for column in table if str(column).startswith(columns)]]
    table.attrs["layers"] = labels(trace)
    return table
