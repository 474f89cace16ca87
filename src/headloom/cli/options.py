"""The arguments and options of the verbs: their names, limits and help, each written once."""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, TypeVar

import typer

_LARGEST = 2**63 - 1
#: Tokens that a model writes at most: the caches of its keys and values grow with each.
MOST_TOKENS = 100_000
_Paths = TypeVar("_Paths", Path, list[Path])


class Split(StrEnum):
    """Which held-out data."""

    valid = "valid"
    test = "test"


class Program(StrEnum):
    """Which program shall open a trained model."""

    huggingface = "huggingface"
    ctranslate2 = "ctranslate2"
    onnx = "onnx"


class StoredType(StrEnum):
    """The number types of stored queries and keys."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


def is_there(paths: _Paths) -> _Paths:
    """Raise a DataError where a trace is missing, before torch is imported, which takes seconds."""
    return _all_there(paths, "trace")


def trace_or_run_is_there(paths: _Paths) -> _Paths:
    """As `is_there`, of a verb that takes runs too."""
    return _all_there(paths, "trace or run")


def _all_there(paths: _Paths, what: str) -> _Paths:
    from headloom.formats.folders import check_there

    for path in [paths] if isinstance(paths, Path) else paths:
        check_there(path, what)
    return paths


def is_model(name: str) -> str:
    """Raise a DataError where a path is missing, as `is_there`."""
    from headloom.tracing.locating import check_model_path

    check_model_path(name)
    return name


def is_picture(path: Path | None) -> Path | None:
    """Raise an InputError where no picture can be written as that, before anything is printed."""
    if path is not None:
        from headloom.studio.pictures.canvas import picture_format

        picture_format(path)
    return path


def _use_threads(threads: int | None) -> int | None:
    """Let torch compute with so many threads."""
    if threads is not None:
        import torch

        torch.set_num_threads(threads)
    return threads


# What is read.

TracePath = Annotated[
    Path, typer.Argument(metavar="TRACE", callback=is_there, help="A trace folder.")
]
SecondTrace = Annotated[
    Path,
    typer.Argument(metavar="TRACE", callback=is_there, help="Another, with as many tokens."),
]
TraceOrRun = Annotated[
    Path,
    typer.Argument(
        metavar="TRACE",
        callback=trace_or_run_is_there,
        help="A trace folder; with --to, a training run.",
    ),
]
ForProgram = Annotated[
    Program | None,
    typer.Option(help="Write the model of a training run, for this program; needs --output."),
]
ModelOutput = Annotated[
    Path | None, typer.Option("-o", "--output", help="The folder to write the model to.")
]
TraceOrFolder = Annotated[
    Path,
    typer.Argument(
        metavar="TRACE", callback=is_there, help="A trace folder, or a folder of traces."
    ),
]
TracePaths = Annotated[
    list[Path],
    typer.Argument(
        metavar="TRACE...",
        callback=trace_or_run_is_there,
        help="Traces of one model, or a folder of them; or a training run.",
    ),
]
RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a training run.")]
ModelName = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        callback=is_model,
        help="A training run; or a model of Hugging Face, by its folder or its name.",
    ),
]
Text = Annotated[str | None, typer.Option(help="The text that the model reads.")]
TextOrData = Annotated[
    str | None,
    typer.Option(help="The text that the model reads; default for a run: its validation data."),
]
TextFile = Annotated[
    Path | None, typer.Option("--file", help="A file with the text that the model reads.")
]


def _some_text(text: str) -> str:
    if not text.strip():
        raise typer.BadParameter("it is empty; give at least one character that is no space.")
    return text


Target = Annotated[
    str | None,
    typer.Option(
        parser=_some_text,
        metavar="TEXT",
        help="For an encoder-decoder: the text that it writes; default for a run: its own "
        "translation.",
    ),
]

# What is done with it, by several verbs.

Threads = Annotated[
    int | None,
    typer.Option(
        min=1, max=4_096, callback=_use_threads, help="Processor threads; default: all cores."
    ),
]
Seed = Annotated[int, typer.Option(min=0, max=_LARGEST, help="The seed of the random numbers.")]
Beam = Annotated[
    int, typer.Option(min=1, max=1_000, help="Hypotheses kept while decoding; 1: greedy.")
]
Exact = Annotated[
    bool | None,
    typer.Option(
        "--exact/--kept",
        help="Compute from all weights, or from the kept edges; default: from all weights where "
        "the trace has queries and keys.",
    ),
]
By = Annotated[str, typer.Option(help="A row of the table is a layer, or a head.")]
Position = Annotated[
    int, typer.Option("--token", help="A position; negative ones count from the end.")
]
FlowSources = Annotated[
    list[int] | None,
    typer.Option("--from", help="An input position; may be repeated. Default: all, up to 256."),
]
Kind = Annotated[
    str | None, typer.Option(help="encoder, decoder or cross; default: the whole model.")
]
Logit = Annotated[
    str | None,
    typer.Option(
        help="The predicted token, or for a classifier the label; default: the likeliest."
    ),
]
MeasuredLogit = Annotated[
    str | None,
    typer.Option(
        "--logit", help="Measure the logit of this token after the text, instead of the loss."
    ),
]
Against = Annotated[
    str | None, typer.Option(help="With --logit: subtract the logit of this token.")
]
LayerName = partial(typer.Option, "--layer", metavar="LAYER")

# What is printed.

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object, and nothing else.")]
AsCsv = Annotated[bool, typer.Option("--csv", help="Print comma-separated values.")]
_LIMIT = "Print this many rows at most."
_LIMIT_OF_TABLE = f"{_LIMIT} JSON is whole."
Limit = Annotated[int | None, typer.Option(min=0, show_default="all", help=_LIMIT)]
Rows = Annotated[int, typer.Option("--limit", min=0, help=_LIMIT)]
RowsOfTable = Annotated[int, typer.Option("--limit", min=0, help=_LIMIT_OF_TABLE)]
#: Of a table that is read from the top; see `rows_of`.
FewRows = Annotated[
    int | None,
    typer.Option("--limit", min=0, show_default="20; with --csv all", help=_LIMIT_OF_TABLE),
]
SomeRows = Annotated[
    int | None,
    typer.Option("--limit", min=0, show_default="50; with --csv all", help=_LIMIT_OF_TABLE),
]


def rows_of(limit: int | None, as_csv: bool, usual: int, count: int) -> int:
    """How many of so many rows a table has: for a program all, for a person the usual number."""
    if limit is None:
        limit = count if as_csv else usual
    return min(limit, count)


PictureToo = Annotated[
    Path | None,
    typer.Option("--picture", callback=is_picture, help="Draw it too: .png, .svg or .pdf."),
]

# Of `headloom trace`.

Output = Annotated[
    Path,
    typer.Option(
        "-o", "--output", help="The trace to write; with --window or --corpus a folder for traces."
    ),
]
Stdin = Annotated[bool, typer.Option("--stdin", help="Read the text from standard input.")]
Image = Annotated[
    Path | None,
    typer.Option(
        help="A picture that the model sees, PNG or JPEG, or FILE.npz:NUMBER; with --text, both."
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
        max=MOST_TOKENS,
        help="Let the model write this many tokens; each adds a row to the trace.",
    ),
]
Data = Annotated[
    Path | None,
    typer.Option(help="Where a run's data are now, as its task.folder, task.file or task.graph."),
]
Window = Annotated[
    int | None,
    typer.Option(
        min=2,
        help="Split a long text into windows of this many tokens: one trace for each. The same "
        "command continues where it stopped.",
    ),
]
Overlap = Annotated[
    int | None, typer.Option(min=0, help="Tokens that two windows share; default: a quarter.")
]
Keep = Annotated[int, typer.Option(min=0, max=1_000_000, help="Edges kept for each query.")]
Layers = Annotated[
    str | None,
    typer.Option(help="Only these layers, by number or path, as 0,3 or '*cross*'."),
]
Dtype = Annotated[
    StoredType | None,
    typer.Option(help="The number type of kept queries and keys; default: the model's."),
]
QueriesKeys = Annotated[
    bool,
    typer.Option(help="Keep queries and keys; with them the whole matrix can be computed again."),
]
Verify = Annotated[
    str | None,
    typer.Option(
        help="How many tokens the model also reads without headloom, to compare: a number, all "
        "or no; "
        "default: 64. With --corpus and --window: of the first text."
    ),
]
Received = Annotated[
    str | None,
    typer.Option(
        help="Keep what each key receives from all queries, exactly: all; or a number, what it "
        "receives from so many last queries too.",
    ),
]
Overwrite = Annotated[bool, typer.Option(help="Replace a trace that is there.")]
Workers = Annotated[
    int,
    typer.Option(min=1, max=10_000, help="With --corpus: processes; each of them opens the model."),
]
RayAddress = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="With --corpus: the head of a Ray cluster whose processes do the work; or auto; or "
        "local, a cluster of this machine that ends with the command.",
    ),
]
