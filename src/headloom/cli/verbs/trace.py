"""`headloom trace`."""

from pathlib import Path
from typing import Annotated

import typer

from headloom.cli import options as option
from headloom.cli.output import print_json, progress_bar, say
from headloom.errors import InputError

Output = Annotated[
    Path,
    typer.Option(
        "-o", "--output", help="The trace to write; with --window or --corpus a folder for traces."
    ),
]
Read = Annotated[
    Path | None,
    typer.Option(
        "--file",
        help="A file with what the model reads: a text, - for standard input; or a picture, PNG or "
        "JPEG, or FILE.npz:NUMBER; a picture and a --text go together.",
    ),
]
Corpus = Annotated[
    Path | None,
    typer.Option(
        help="A file with a text on each line, or a folder of .txt files: one trace for each text. "
        "The same command continues where it stopped."
    ),
]
Generate = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=option.MOST_TOKENS,
        help="Let the model write this many tokens; each adds a row to the trace.",
    ),
]
Window = Annotated[
    int | None,
    typer.Option(
        min=2,
        help="Split a long text into windows of this many tokens, which share a quarter: one trace "
        "for each. The same command continues where it stopped.",
    ),
]
Layers = Annotated[
    str | None,
    typer.Option(help="Only these layers, by number or path, as 0,3 or '*cross*'."),
]
Workers = Annotated[
    str,
    typer.Option(
        metavar="N|HOST:PORT",
        help="With --corpus and --window: processes, each of which opens the model; or the head of "
        "a Ray cluster that does the work; or auto; or local, a cluster of this machine.",
    ),
]


def trace(
    model: option.ModelName, output: Output, text: option.Text = None, file: Read = None,
    corpus: Corpus = None, target: option.Target = None, generate: Generate = None,
    window: Window = None, keep: option.Keep = 32, layers: Layers = None,
    overwrite: option.Overwrite = False, workers: Workers = "1", as_json: option.AsJson = False,
) -> None:  # fmt: skip
    """Run a model on a text, and keep the attention graph of every layer."""
    from headloom.api.questions import TraceChoices
    from headloom.api.tracing import TraceRequest, is_image, run_trace

    options = TraceChoices(target, generate, keep, layers, overwrite=overwrite)
    image = file if file is not None and is_image(file) else None
    read = option.given_text(text, None if image else file)
    request = TraceRequest(model, output, read, image, window, corpus, workers)
    with progress_bar("opening the model") as show:
        report = run_trace(request, options, show)
    for line in report.lines:
        say(line)
    if as_json:
        print_json(report.content)
    if report.failed:
        raise InputError(report.failed)
