"""`headloom evaluate`."""

from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

import headloom
from headloom.cli import options as option
from headloom.cli.output import print_json, print_table, progress_bar

First = Annotated[Path, Argument(metavar="RUN", help="A training run.")]
Second = Annotated[
    Path | None, Argument(metavar="OTHER", help="Another run to compare with, on the same data.")
]
HeldOut = Annotated[
    Literal["valid", "test"] | None,
    Option(help="The held-out data. Default: test, if the run has it."),
]
Data = Annotated[
    Path | None,
    Option(
        help="Where the data of the run are now (its task.folder, task.file or "
        "task.graph), or a file of other examples."
    ),
]


def evaluate(
    run: First, against: Second = None, split: HeldOut = None, beam: option.Beam = 5,
    data: Data = None, seed: option.Seed = 1,
    as_json: option.AsJson = False,
) -> None:  # fmt: skip
    """Measure a run on held-out data, or compare two; with intervals."""
    with progress_bar("starting", lines=True) as progress:
        progress(0, None)
        scores = headloom.evaluate(
            run, data, split=split, beam=beam, seed=seed, against=against,
            progress=progress,
        )  # fmt: skip
    print(*scores.titles, sep="\n")
    print_table(scores.header, scores.rows, left=("measure",))
    print(*scores.notes, sep="\n")
    if as_json:
        print_json(scores.content)
