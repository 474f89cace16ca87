"""`headloom translate`."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from headloom.cli.options import Beam, RunPath, Threads
from headloom.cli.verbs.align import AligningMethod
from headloom.cli.verbs.align import Method as AlignMethod
from headloom.errors import InputError

PLACE = ("Make", 4)

#: Lines that are read at once.
WINDOW = 2_000

LengthPenalty = Annotated[
    float | None,
    typer.Option(
        help="How much long translations are preferred, 0 to 10; 0: not at all. Default: the "
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
        "window, as headloom align does; or names, as 3.1,5.2:write; none: no alignment, which is "
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
        help="Of the linear maps. bfloat16: quicker where the processor multiplies it (headloom "
        "doctor), and a rare translation differs; else the same as float32.",
    ),
]
Described = Annotated[
    bool, typer.Option("--json", help="Print one JSON object a line, described in docs/formats.md.")
]


def translate(
    run: RunPath, file: Lines = None, beam: Beam = 5, length_penalty: LengthPenalty = None,
    n_best: NBest = 1, heads: Heads = None, method: AlignMethod = AligningMethod.mutual,
    lines_at_once: Window = WINDOW, products: ProductsAre = ProductsKind.float32,
    threads: Threads = None, as_json: Described = False,
) -> None:  # fmt: skip
    """Translate standard input to standard output, line by line, with a run of a translator.

    With --json, each line becomes an object: n best, tokens, scores, word alignment.
    """
    import sys

    from headloom.api.notices import UnknownParts
    from headloom.api.translations import Request, described_windows, plain_windows
    from headloom.cli.input import iterate_standard_input
    from headloom.cli.output import print_json
    from headloom.cli.safe_text import exact_output
    from headloom.formats.lines import file_lines
    from headloom.training.inference import open_translator
    from headloom.training.translation import Search

    if length_penalty is not None and not 0 <= length_penalty <= 10:
        raise InputError(f"--length-penalty {length_penalty}: expected a number from 0 to 10.")
    for name, asked in (("--n-best", n_best > 1), ("--heads", heads is not None)):
        if asked and not as_json:
            raise InputError(f"{name} is for --json: without it, each line is a translation.")
    trained = open_translator(run)
    penalty = trained.length_penalty if length_penalty is None else length_penalty
    search = Search(beam, penalty, products=products.value)
    request = Request(search, lines_at_once, n_best, heads or "all", method.value)
    unknown = UnknownParts(trained.vocabulary)
    lines = unknown.watching(iterate_standard_input() if file is None else file_lines(file))
    if as_json:
        for described in described_windows(trained, lines, request):
            for line in described:
                print_json(line)
            sys.stdout.flush()
    else:
        for texts in plain_windows(trained, lines, request):
            for text in texts:
                print(text, file=exact_output())
            exact_output().flush()
    unknown.tell("standard input" if file is None else str(file))
