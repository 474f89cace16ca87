"""The options of `headloom export`."""

from pathlib import Path
from typing import Annotated

import typer

from headloom.cli.options import LayerName

__all__ = ["Graph", "Head", "Layer", "Page", "Picture", "Table"]

Page = Annotated[
    Path | None, typer.Option("--html", help="One self-contained page, which works offline.")
]
Picture = Annotated[
    Path | None,
    typer.Option(
        help="All heads at a glance, or with --layer and --head one with its tokens: .png, .svg or "
        ".pdf."
    ),
]
Table = Annotated[Path | None, typer.Option("--parquet", help="All edges as one Parquet file.")]
Graph = Annotated[
    Path | None,
    typer.Option(
        "--graphml", help="The graph of one head; chosen by --layer and --head, else the first."
    ),
]
Layer = Annotated[
    str | None,
    LayerName(help="Of the picture or the graph: its number in the trace, or its path."),
]
Head = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Of that layer; without it the picture is of the mean of its heads, the graph of its "
        "first.",
    ),
]
