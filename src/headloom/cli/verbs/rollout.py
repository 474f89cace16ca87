"""`headloom rollout`."""

from typing import Annotated

import typer

from headloom.cli import options as option
from headloom.cli.measure_report import print_measure
from headloom.cli.output import working

PLACE = ("Read", 4)

Column = Annotated[
    bool, typer.Option("--column", help="Print which positions the position reached instead.")
]


def rollout(
    path: option.TracePath, token: option.Position = -1, column: Column = False,
    kind: option.Kind = None, exact: option.Exact = None, limit: option.FewRows = None,
    as_csv: option.AsCsv = False, as_json: option.AsJson = False,
) -> None:  # fmt: skip
    """Print how much of each input position an output position holds, through all layers."""
    from headloom.analysis import measures
    from headloom.formats.trace import TraceData

    trace = TraceData.open(path)
    with working("rolling out"):
        table = measures.rollout(trace, token=token, column=column, kind=kind, exact=exact)
    print_measure(path, trace, table, limit=limit, as_csv=as_csv, as_json=as_json)
