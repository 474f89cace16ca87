"""`headloom evaluate`."""

from pathlib import Path
from typing import Annotated

import typer

from headloom.cli.options import AsJson, Beam, Data, Seed, Split, Threads
from headloom.cli.output import print_json, progress_bar

PLACE = ("Make", 3)

First = Annotated[
    Path, typer.Argument(metavar="RUN", help="A training run, or a file of translations.")
]
Second = Annotated[
    Path | None, typer.Argument(metavar="OTHER", help="Another one, to compare on the same data.")
]
HeldOut = Annotated[
    Split | None, typer.Option(help="The held-out data; default: test, where there is such data.")
]
Reference = Annotated[
    Path | None, typer.Option(help="For files of translations: the right ones, a line each.")
]


def evaluate(
    run: First, second: Second = None, split: HeldOut = None, beam: Beam = 5,
    reference: Reference = None, data: Data = None, seed: Seed = 1,
    threads: Threads = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Measure a run on held-out data, or compare two; both with intervals."""
    with progress_bar("starting", lines=True) as progress:
        progress(0, None)
        from headloom.api.evaluation import Evaluation, evaluate_one, evaluate_two, resampling_notes
        from headloom.cli.evaluation_report import print_one, print_two
        from headloom.training.measures.resampling import Resampling

        resampling = Resampling(seed=seed)
        how = Evaluation(split.value if split else None, beam, reference, data, resampling)
        if second is None:
            evaluated = evaluate_one(run, how, progress)
            intervals = evaluated.intervals()
        else:
            pair = evaluate_two(run, second, how, progress)
    if second is None:
        print_one(evaluated, intervals)
        report = evaluated.report(intervals)
    else:
        print_two(pair)
        report = pair.report()
    if as_json:
        print_json({**report, "resampling": resampling_notes(resampling)})
