"""The options of `weft translate`."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

#: Lines that are read at once.
WINDOW = 2_000

LengthPenalty = Annotated[
    float | None,
    typer.Option(
        help="How much long translations are preferred, -10 to 10; 0: not at all. Default: the "
        "run's, 1 where it names none."
    ),
]
Lines = Annotated[
    Path | None,
    typer.Option(
        "--file", help="A file with a text a line, of any size, also .gz; default: standard input."
    ),
]
NBest = Annotated[
    int, typer.Option(min=1, max=1_000, help="With --json: hypotheses a line, the beam at most.")
]
Heads = Annotated[
    str | None,
    typer.Option(
        help="With --json: whose weights align the words. all: the mean of every head of every "
        "layer of cross-attention, by the step that writes a word; agreement: chosen on the first "
        "window, as weft align does; or names, as 0.1,3.2:write; none: no alignment, which is "
        "quicker. Default: all."
    ),
]
Window = Annotated[
    int,
    typer.Option(
        "--lines-at-once", min=1, max=1_000_000,
        help="Lines read, sorted by length and written at once; 1: each as it comes.",
    ),
]  # fmt: skip


class ProductsKind(StrEnum):
    """How factors of products are rounded."""

    float32 = "float32"
    bfloat16 = "bfloat16"


ProductsAre = Annotated[
    ProductsKind,
    typer.Option(
        "--products",
        help="Of the linear maps. bfloat16: quicker where the processor multiplies it (weft "
        "doctor), and a rare translation differs; else the same as float32.",
    ),
]
Described = Annotated[
    bool, typer.Option("--json", help="Print one JSON object a line, described in docs/formats.md.")
]
