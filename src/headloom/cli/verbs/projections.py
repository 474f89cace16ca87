"""`headloom projections`."""

from typing import Annotated

import typer

from headloom.cli.options import AsCsv, AsJson, ModelName, rows_of
from headloom.cli.output import print_json, working
from headloom.cli.tables import print_frame, records

PLACE = ("Read", 7)

By = Annotated[
    str,
    typer.Option(
        help="A row of the table is a layer, a head, or a pair: how much a head reads of what an "
        "earlier one writes."
    ),
]
Snapshots = Annotated[
    bool, typer.Option("--history", help="For a run: each snapshot of its training.")
]
Rows = Annotated[
    int | None,
    typer.Option(
        "--limit",
        min=0,
        show_default="all; of pairs the 20 strongest, with --csv all",
        help="Print this many rows at most.",
    ),
]

_COMMON = (
    "Norms are Frobenius norms; ranks effective ones (e^entropy of the singular values).",
    "symmetry: 1 symmetric, -1 antisymmetric. directionality: above 0 more long columns than rows.",
    "copying: the sum of the eigenvalues over that of their sizes.",
)
#: What stands below the table, by what a row is.
_ABOUT = {
    "layer": (
        "symmetry, directionality, qk_norm: of the sum of W_Q W_K^T over heads; ov_norm: W_V W_O.",
        "norm_W_...: of the matrices of all heads. qk_rank, ov_rank, copying: means over heads.",
        *_COMMON,
    ),
    "head": (
        "symmetry, directionality, qk_...: of a head's W_Q W_K^T; copying, ov_...: of its W_V W_O.",
        *_COMMON,
    ),
    "pair": (
        "score, 0 to 1: how much of what the earlier head writes is read by queries, keys, values.",
        "times_random: the score over 1 / sqrt(width), which matrices at random have.",
    ),
}


def projections(
    model: ModelName, by: By = "layer", history: Snapshots = False, limit: Rows = None,
    as_csv: AsCsv = False, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Measure W_Q, W_K, W_V and W_O: symmetry and direction of W_Q W_K^T, ranks, norms, copying."""
    from headloom.api.projections import measures_of_projections

    with working("measuring projections"):
        table = measures_of_projections(model, by=by, history=history)
    usual = 20 if by == "pair" else len(table)
    table = table.head(rows_of(limit, as_csv, usual, len(table)))
    print_frame(table, as_csv)
    if not as_csv:
        print(*_ABOUT[by], sep="\n")
    if as_json:
        print_json({"model": model, "projections": records(table)})
