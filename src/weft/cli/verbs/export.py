"""`weft export`."""

from pathlib import Path
from typing import Annotated

import typer

from weft.cli.options import TracePath

PLACE = ("See", 2)

Page = Annotated[
    Path | None, typer.Option("--html", help="One self-contained page, which works offline.")
]
Picture = Annotated[Path | None, typer.Option(help="All heads at a glance: .png, .svg or .pdf.")]
Table = Annotated[Path | None, typer.Option("--parquet", help="All edges as one Parquet file.")]
Graph = Annotated[
    Path | None,
    typer.Option("--graphml", help="The graph of one head; choose it by --layer and --head."),
]
Layer = Annotated[
    int, typer.Option(min=0, help="The layer of the graph, in the order of the trace.")
]
Head = Annotated[int, typer.Option(min=0, help="The head of the graph.")]


def export(
    path: TracePath, html: Page = None, picture: Picture = None, parquet: Table = None,
    graphml: Graph = None, layer: Layer = 0, head: Head = 0,
) -> None:  # fmt: skip
    """Write a trace as a page, a picture, a table or a graph for other programs."""
    from weft.jobs.export import export_trace

    for file in export_trace(
        path, html=html, picture=picture, parquet=parquet, graphml=graphml, layer=layer, head=head
    ):
        print(file)
