"""`headloom export`."""

from pathlib import Path
from typing import Annotated

import typer

from headloom.cli import options as option
from headloom.cli.output import print_json, working
from headloom.errors import InputError

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
    option.LayerName(help="Of the picture or the graph: its number in the trace, or its path."),
]
Head = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Of that layer; without it the picture is of the mean of its heads, the graph of its "
        "first.",
    ),
]


def export(
    path: option.TraceOrRun, html: Page = None, picture: Picture = None, parquet: Table = None,
    graphml: Graph = None, layer: Layer = None, head: Head = None, to: option.ForProgram = None,
    output: option.ModelOutput = None, as_json: option.AsJson = False,
) -> None:  # fmt: skip
    """Write a trace as a page, a picture, a table or a graph; or a run for another program."""
    if to is None and output is None:
        from headloom.api.export import export_trace

        with working("writing"):
            files = export_trace(
                path, html=html, picture=picture, parquet=parquet, graphml=graphml, layer=layer,
                head=head,
            )  # fmt: skip
        print(*files, sep="\n")
        if as_json:
            print_json({"trace": str(path), "files": [str(file) for file in files]})
        return
    if to is None or output is None or any((html, picture, parquet, graphml)):
        raise InputError(
            "export: a model is written by --to and --output alone, a trace by --html, --picture, "
            "--parquet or --graphml. Give one kind."
        )
    from headloom.api.model_export import export_model
    from headloom.formats.verification import outward

    with working("writing, and comparing its numbers with the run's"):
        written = export_model(path, output, to.value)
    print(written.folder)
    within = outward(written.difference, ".1e", upper=True)
    print(f"{written.kind}: {written.numbers} within {within} of the run's.")
    print(f"Open it in Python: {written.loading}")
    if as_json:
        print_json({"run": str(path), **vars(written)})
