"""`weft evaluate`."""

from typing import Annotated

import typer

from weft.cli.options import AsJson, Beam, RunPath, Split, Threads
from weft.cli.output import print_json, progress_bar

PLACE = ("Make", 3)

HeldOut = Annotated[
    Split | None, typer.Option(help="The held-out data; default: test, where there is such data.")
]


def evaluate(
    run: RunPath, split: HeldOut = None, beam: Beam = 5, threads: Threads = None,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Measure a run on held-out data."""
    from weft.training.inference import evaluate_run, open_run

    with progress_bar("examples") as progress:
        measures = evaluate_run(
            open_run(run), split=split.value if split else None, beam=beam, progress=progress
        )
    for name, value in measures.items():
        if isinstance(value, dict):
            for key, text in value.items():
                print(f"{name} {key}: {text}")
        else:
            print(f"{name}: {value:.4f}" if isinstance(value, float) else f"{name}: {value}")
    if as_json:
        print_json(measures)
