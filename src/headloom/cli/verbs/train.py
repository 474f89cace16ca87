"""`headloom train`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

import headloom
from headloom.cli import options as option
from headloom.cli.output import print_json

ConfigPath = Annotated[
    Path,
    Argument(
        metavar="CONFIG", help="A TOML file (see examples/), a file of data, or a run to continue."
    ),
]
Folder = Annotated[
    Path | None,
    Option(
        "--run",
        "--run-folder",
        help="The folder of the run. Default: runs/ and the name of CONFIG.",
    ),
]
Overrides = Annotated[
    list[str] | None,
    Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a value, for example training.seed=2. Repeatable.",
    ),
]
Processes = Annotated[
    int, Option(min=1, max=1_024, help="Number of processes that train together on this machine.")
]


def train(
    config: ConfigPath, run: Folder = None, overrides: Overrides = None, processes: Processes = 1,
    threads: option.Threads = None, as_json: option.AsJson = False,
) -> None:  # fmt: skip
    """Train a model from random matrices, continue a run, or extend it.

    A finished run is extended by --set training.max_steps=N, with more steps than it has.
    """
    from headloom.cli.commands import one_of_several

    if threads is not None and processes > 1:
        os.environ["OMP_NUM_THREADS"] = str(threads)  # of each process
    with one_of_several():
        trained = headloom.train(config, run=run, overrides=overrides, processes=processes)
        if as_json and os.environ.get("RANK", "0") == "0":
            print_json(trained.outcome)
