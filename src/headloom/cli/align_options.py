"""The options of `headloom align`."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from headloom.cli.options import is_model


class AligningStep(StrEnum):
    """The row that stands for a target token."""

    read = "read"
    write = "write"


class AligningMethod(StrEnum):
    """How weights become links."""

    mutual = "mutual"
    argmax = "argmax"
    dtw = "dtw"


Aligned = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        callback=is_model,
        help="A run of a translator, an encoder-decoder of Hugging Face, or traces in a folder.",
    ),
]
SourceFile = Annotated[
    Path | None, typer.Option("--source-file", help="For a model: a file with a source a line.")
]
TargetFile = Annotated[
    Path | None,
    typer.Option("--target-file", help="The targets, in lines of the same order."),
]
Gold = Annotated[
    Path | None,
    typer.Option(help="The right links, in the Pharaoh format: 0-0 1-2, 1?2 for a possible one."),
]
AligningHeads = Annotated[
    str | None,
    typer.Option(
        help="best: chosen on half of the gold links; agreement: whose two directions agree; or "
        "names, as 3.1,5.2:write. Default: best with --gold, else agreement."
    ),
]
AlignMethod = Annotated[
    AligningMethod,
    typer.Option(
        help="mutual: words that are each other's best; argmax: each target word's best; dtw: the "
        "best path that never goes back."
    ),
]
AlignStep = Annotated[
    AligningStep | None,
    typer.Option(
        help="The query of a target word: of the step that reads it, or that writes it. Default: "
        "the better of each head, by gold, or by words that occur together."
    ),
]
Norms = Annotated[bool, typer.Option("--norms", help="Weights times the norms of the values.")]
MostHeads = Annotated[int, typer.Option("--most", min=1, help="Take so many heads at most.")]
LinksPicture = Annotated[
    Path | None,
    typer.Option(
        "--picture", help="Draw the first pair, its links outlined: a .png, .svg or .pdf file."
    ),
]
LinksOutput = Annotated[Path, typer.Option("-o", "--output", help="The links to write.")]
