"""The options of `weft train`."""

from pathlib import Path
from typing import Annotated

import typer

ConfigPath = Annotated[Path, typer.Argument(metavar="CONFIG", help="A TOML file; see examples/.")]
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

BoardFolder = Annotated[
    Path | None,
    typer.Option(
        "--tensorboard", help="Write TensorBoard's event files to this folder: losses, learning "
        "rate, gradient norm, tokens a second."
    ),
]  # fmt: skip
