"""`weft projections`."""

from typing import Annotated

import typer

from weft.cli.options import AsCsv, AsJson, ModelName, Snapshots, rows_of
from weft.cli.output import print_json, working
from weft.cli.projections_report import print_projections
from weft.cli.tables import records

PLACE = ("Read", 7)

By = Annotated[
    str,
    typer.Option(
        help="A row of the table is a layer, a head, or a pair: how much a head reads of what an "
        "earlier one writes."
    ),
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


def projections(
    model: ModelName, by: By = "layer", history: Snapshots = False, limit: Rows = None,
    as_csv: AsCsv = False, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Measure W_Q, W_K, W_V and W_O: symmetry and direction of W_Q W_K^T, ranks, norms, copying."""
    from weft.jobs.projections import measures_of_projections

    with working("measuring projections"):
        table = measures_of_projections(model, by=by, history=history)
    usual = 20 if by == "pair" else len(table)
    table = table.head(rows_of(limit, as_csv, usual, len(table)))
    print_projections(table, by, as_csv)
    if as_json:
        print_json({"model": model, "projections": records(table)})
