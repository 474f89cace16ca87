"""`headloom clusters`."""

from typing import Annotated

import typer

from headloom.cli.cluster_report import print_clusters, print_layers, say_of_fewer
from headloom.cli.options import AsCsv, AsJson, Exact, FewRows, LayerName, TracePath, rows_of
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
    from headloom.api.token_clusters import chosen_layers, clusters_of
    from headloom.errors import InputError
    from headloom.formats.trace import TraceData

    if head is not None and layer is None:
        raise InputError(f"--head {head} of no layer; give its --layer too.")
    trace = TraceData.open(path)
    with working("dividing"):
        found = [
            clusters_of(trace, each, head, count, without or (), exact)
            for each in chosen_layers(trace, layer)
        ]
    say_of_fewer(found, count)
    most = rows_of(limit, as_csv, 20, len(found) if layer is None else found[0].layer.shape[2])
    if layer is None:
        print_layers(path, found, most, as_csv, as_json)
    else:
        print_clusters(path, found[0], most, as_csv, as_json)
