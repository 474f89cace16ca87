"""`weft train`."""

from pathlib import Path
from typing import Annotated

import typer

from weft.cli.options import AsJson, Threads
from weft.cli.output import console, print_json, say

PLACE = ("Make", 2)

ConfigPath = Annotated[Path, typer.Argument(metavar="CONFIG", help="A TOML file; see examples/.")]
Folder = Annotated[
    Path | None, typer.Option("--run", help="The run's folder; default: runs/ and CONFIG's name.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a value, as in training.seed=2."),
]


def train(
    config: ConfigPath,
    run: Folder = None,
    overrides: Overrides = None,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Train a model, continue a run that was stopped, or extend one: raise training.max_steps."""
    from weft.training.config import defaults_of, load_config
    from weft.training.loop import train as train_run
    from weft.training.progress import ConsoleListener

    folder = Path("runs") / config.stem if run is None else run
    settings = load_config(config, overrides)
    for notice in defaults_of(config, settings):
        say(notice)
    with ConsoleListener(console()) as listener:
        result = train_run(settings, folder, listener)
    ended = "" if result.reason == "max_steps" else f" Ended by training.{result.reason}."
    say(
        f"Trained {result.steps:,} steps in {result.seconds:,.1f} s. Best validation loss "
        f"{result.best_loss:.4f}, at step {result.best_step:,}.{ended} Run: {folder}"
    )
    if as_json:
        print_json(
            {
                "run": str(folder),
                "steps": result.steps,
                "train_seconds": result.seconds,
                "tokens": result.tokens,
                "best_loss": result.best_loss,
                "best_step": result.best_step,
                "reason": result.reason,
            }
        )
