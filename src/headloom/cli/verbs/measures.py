"""`headloom measures`."""

from typing import Annotated

import typer

from headloom.cli.measure_report import print_measure
from headloom.cli.options import AsCsv, AsJson, By, Exact, TracePath
from headloom.cli.output import working

PLACE = ("Read", 3)

Share = Annotated[float, typer.Option(help="The share of the mass that heavy hitters hold.")]
Threshold = Annotated[float, typer.Option(help="The smallest weight of an edge that connects.")]


ExactRank = Annotated[
    int,
    typer.Option(
        min=0,
        max=2048,
        help="Positions up to which the rank is computed; 2,048 take 3 s a head.",
    ),
]


def measures(
    path: TracePath, by: By = "layer", exact: Exact = None, share: Share = 0.9,
    threshold: Threshold = 0.1, exact_rank: ExactRank = 512, as_csv: AsCsv = False,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Print graph measures: strength, heavy hitters, PageRank, reciprocity, rank, components."""
    from headloom.analysis import measures as tables
    from headloom.formats.trace import TraceData

    trace = TraceData.open(path)
    with working("measuring"):
        table = tables.graphs(
            trace, by=by, exact=exact, share=share, threshold=threshold, exact_rank=exact_rank
        )
    print_measure(path, trace, table, limit=None, usual=None, as_csv=as_csv, as_json=as_json)
