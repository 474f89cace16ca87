"""`headloom train`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

import headloom
from headloom.cli import options as option
from headloom.cli.output import print_json

ConfigPath = Annotated[
    Path,
    typer.Argument(
        metavar="CONFIG", help="A TOML file, see examples/; data; or a run to go on with."
    ),
]
Folder = Annotated[
    Path | None,
    typer.Option(
        "--run", "--run-folder", help="The run's folder; default: runs/ and CONFIG's name."
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a value, as in training.seed=2."),
]
Processes = Annotated[
    int,
    typer.Option(
        min=1, max=1_024, help="Processes of this machine that train together; see docs/training."
    ),
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
