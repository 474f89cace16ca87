"""`headloom runs`."""

import time
from pathlib import Path
from typing import Annotated

import typer

from headloom.cli.options import AsCsv, AsJson
from headloom.cli.output import print_csv, print_json, say
from headloom.cli.tables import print_table

PLACE = ("Make", 7)

Folders = Annotated[
    list[Path] | None,
    typer.Argument(metavar="FOLDER...", help="Runs, or folders that hold some; by default: runs."),
]


def runs(folders: Folders = None, as_csv: AsCsv = False, as_json: AsJson = False) -> None:
    """List training runs: how far each is, its best validation loss, its time and speed."""
    from headloom.api.run_list import find_runs, list_runs

    listed = list_runs(find_runs(folders or [Path("runs")]))
    if as_csv:
        print_csv(list(vars(listed[0])), (list(vars(run).values()) for run in listed))
    else:
        header = ["run", "task", "state", "step", "best loss", "at step", "took", "tokens/s"]
        rows = []
        for run in listed:
            ends = "" if run.steps is None else f" of {run.steps:,}"
            ago = "" if run.reported is None else f", {_time(time.time() - run.reported)} ago"
            rows.append([
                str(run.path), run.task, run.state + (ago if run.state == "training" else ""),
                "-" if run.step is None else f"{run.step:,}{ends}",
                "-" if run.best is None else f"{run.best:.4f}",
                "-" if run.best_step is None else f"{run.best_step:,}",
                "-" if run.seconds is None else _time(run.seconds),
                "-" if run.speed is None else f"{run.speed:,.0f}",
            ])  # fmt: skip
        print_table(header, rows, left=("run", "task", "state"))
    for run in listed:
        if run.problem:
            say(f"headloom: {run.problem}")
    if as_json:
        print_json({"runs": [vars(run) for run in listed]})


def _time(seconds: float) -> str:
    """As a person says it."""
    for size, name in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {name}"
    return f"{max(seconds, 0.0):.0f} s"
