"""`headloom clusters`."""

from typing import Annotated

import typer

from headloom.cli.measure_report import print_measure
from headloom.cli.options import AsCsv, AsJson, Exact, FewRows, LayerName, TracePath
from headloom.cli.output import working

PLACE = ("Read", 10)

Layer = Annotated[
    str | None,
    LayerName(help="Show the clusters of this layer; default: a row for each."),
]
Head = Annotated[int | None, typer.Option(min=0, help="Of this head; default: of the heads' mean.")]
Count = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=64,
        show_default="from 2 to 16, as the eigenvalues say",
        help="How many clusters.",
    ),
]
Without = Annotated[
    list[int] | None,
    typer.Option(
        metavar="N",
        help="Leave this position out, as a sink at 0; repeat it for several; below 0: from the "
        "end.",
    ),
]


def clusters(
    path: TracePath, layer: Layer = None, head: Head = None, count: Count = None,
    without: Without = None, exact: Exact = None, limit: FewRows = None, as_csv: AsCsv = False,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Print which tokens look at each other more than at the others (spectral clustering)."""
    from headloom.analysis import measures
    from headloom.formats.trace import TraceData

    trace = TraceData.open(path)
    with working("dividing"):
        table = measures.clusters(
            trace, layer=layer, head=head, count=count, without=without or (), exact=exact
        )
    print_measure(path, trace, table, limit=limit, as_csv=as_csv, as_json=as_json)
