"""`headloom train`."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headloom.cli import options as option
from headloom.cli.output import console, print_json, say
from headloom.errors import InputError

if TYPE_CHECKING:
    from headloom.training.config import RunConfig

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


def train(
    config: ConfigPath, run: Folder = None, overrides: Overrides = None, processes: Processes = 1,
    threads: option.Threads = None, as_json: option.AsJson = False,
) -> None:  # fmt: skip
    """Train a model, continue a run that was stopped, or extend one: raise training.max_steps."""
    folder = Path("runs") / config.stem if run is None else run
    ranked = "RANK" in os.environ
    if ranked:
        # Before torch is loaded, and without a line of its that is no news: that each gradient is
        # looked for is decided in headloom.training.ranks.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from headloom.api.launch import launch, one_of_several
    from headloom.cli.commands import one_line
    from headloom.training.config import load_config

    with one_of_several(one_line) if ranked else nullcontext():
        settings = load_config(config, overrides)
        if processes == 1:
            _train(settings, folder, as_json)
            return
    if not config.is_file():
        raise InputError(
            f"{config}: --processes {processes} needs a file, which each process reads; this is a "
            "pipe. Save it, and give its name."
        )
    command = ["train", str(config), "--run", str(folder)]
    command += [part for override in overrides or () for part in ("--set", override)]
    command += [] if threads is None else ["--threads", str(threads)]
    launch([*command, *(["--json"] if as_json else [])], processes)


def _train(settings: RunConfig, folder: Path, as_json: bool) -> None:
    """Train, and say how it went; one of several processes speaks for all."""
    from headloom.models.dense import why_not_here
    from headloom.training.loop import train
    from headloom.training.progress import ConsoleListener, SilentListener

    if os.environ.get("RANK", "0") != "0":
        train(settings, folder, SilentListener())
        return
    kind = settings.training.products
    if reason := why_not_here(kind):
        say(f'Products are torch\'s in float32, not "{kind}": {reason}. See headloom doctor.')
    with ConsoleListener(console()) as listener:
        result = train(settings, folder, listener)
    done = f"Trained {result.steps:,} steps in {result.seconds:,.1f} s."
    if result.already:
        done = (
            f"Finished already, after {result.steps:,} steps. To train again: --run FOLDER; "
            f"further: a larger training.{result.reason}."
        )
    elif result.reason != "max_steps":
        done += f" Ended by training.{result.reason}."
    best = f"Best validation loss {result.best_loss:.4f}, at step {result.best_step:,}."
    say(f"{done} {best} Run: {folder}")
    if as_json:
        print_json(
            {
                "run": str(folder), "steps": result.steps, "train_seconds": result.seconds,
                "tokens": result.tokens, "best_loss": result.best_loss,
                "best_step": result.best_step, "reason": result.reason,
            }
        )  # fmt: skip
