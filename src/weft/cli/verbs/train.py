"""`weft train`."""

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli.options import AsJson, Threads
from weft.cli.output import console, print_json, say

if TYPE_CHECKING:
    from weft.training.loop import Listener

PLACE = ("Make", 2)

ConfigPath = Annotated[Path, typer.Argument(metavar="CONFIG", help="A TOML file; see examples/.")]
Folder = Annotated[
    Path | None, typer.Option("--run", help="The run's folder; default: runs/ and CONFIG's name.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a value, as in training.seed=2."),
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
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Train a model, continue a run that was stopped, or extend one: raise training.max_steps."""
    from weft.training.config import defaults_of, load_config
    from weft.training.loop import train as train_run
    from weft.training.progress import ConsoleListener, SeveralListeners

    folder = Path("runs") / config.stem if run is None else run
    settings = load_config(config, overrides)
    for notice in defaults_of(config, settings):
        say(notice)
    with ExitStack() as stack:
        listeners: list[Listener] = [stack.enter_context(ConsoleListener(console()))]
        if tensorboard is not None:
            from weft.jobs.training_board import BoardListener

            listeners.append(stack.enter_context(BoardListener(tensorboard, folder)))
        result = train_run(settings, folder, SeveralListeners(*listeners))
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
