"""`headloom train`."""

from pathlib import Path
from typing import Annotated

import typer

from headloom.cli.options import AsJson, Threads
from headloom.cli.training import launched, one_of_several, trained

PLACE = ("Make", 2)

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


def train(
    config: ConfigPath,
    run: Folder = None,
    overrides: Overrides = None,
    tensorboard: BoardFolder = None,
    processes: Processes = 1,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Train a model, continue a run that was stopped, or extend one: raise training.max_steps."""
    folder = Path("runs") / config.stem if run is None else run
    with one_of_several():
        from headloom.training.config import load_config

        settings = load_config(config, overrides)
        if processes == 1:
            trained(settings, folder, tensorboard, as_json=as_json)
            return
        command = ["train", str(config), "--run", str(folder)]
        command += [part for override in overrides or () for part in ("--set", override)]
        command += [] if tensorboard is None else ["--tensorboard", str(tensorboard)]
        command += [] if threads is None else ["--threads", str(threads)]
        launched(config, [*command, *(["--json"] if as_json else [])], processes)
