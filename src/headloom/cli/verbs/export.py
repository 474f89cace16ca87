"""`headloom export`."""

from headloom.cli.export_options import Graph, Head, Layer, Page, Picture, Table
from headloom.cli.options import AsJson, ForProgram, ModelOutput, TraceOrRun
from headloom.cli.output import print_json, working
from headloom.errors import InputError


def export(
    path: TraceOrRun, html: Page = None, picture: Picture = None, parquet: Table = None,
    graphml: Graph = None, layer: Layer = None, head: Head = None, to: ForProgram = None,
    output: ModelOutput = None, as_json: AsJson = False,
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
