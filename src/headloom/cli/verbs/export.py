"""`headloom export`."""

from pathlib import Path
from typing import Annotated, Any, cast

from typer import Option

import headloom
from headloom.cli import options as option
from headloom.cli.output import print_json, progress_bar

Page = Annotated[Path | None, Option("--html", help="One self-contained page that works offline.")]
Picture = Annotated[
    Path | None,
    Option(help="A picture of all heads, or of one by --layer and --head: .png, .svg or .pdf."),
]
Table = Annotated[Path | None, Option("--parquet", help="All edges as one Parquet file.")]
Graph = Annotated[
    Path | None,
    Option(
        "--graphml", help="The graph of one head, by --layer and --head. Default: the first head."
    ),
]
Live = Annotated[
    bool, Option("--live", help="The page has the model inside, which reads new texts.")
]
Bits = Annotated[
    int | None,
    Option(help="Bits of a weight in such a page: 8 or 32. Default: 32 up to 10 million weights."),
]
Layer = Annotated[
    str | None, option.LayerName(help="The layer of the picture or graph, by number or path.")
]
Head = Annotated[
    int | None,
    Option(min=0, help="The head. Default: the mean of all for a picture, the first for a graph."),
]


def export(
    path: option.TraceOrModel, html: Page = None, picture: Picture = None, parquet: Table = None,
    graphml: Graph = None, live: Live = False, bits: Bits = None, layer: Layer = None,
    head: Head = None, to: option.ForProgram = None, output: option.ModelOutput = None,
    as_json: option.AsJson = False,
) -> None:  # fmt: skip
    """Write a trace as page, picture, table or graph; export a model."""
    with progress_bar("writing"):
        written = headloom.export(
            path, html=html, picture=picture, parquet=parquet, graphml=graphml, live=live,
            bits=cast(Any, bits), layer=layer, head=head, to=to, output=output,
        )  # fmt: skip
    if isinstance(written, list):
        print(*written, sep="\n")
        content = {"trace": str(path), "files": [str(file) for file in written]}
    else:
        print(written)
        content = {"run": str(path), **vars(written)}
    if as_json:
        print_json(content)
