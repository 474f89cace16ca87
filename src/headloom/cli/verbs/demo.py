"""`headloom demo`."""

from pathlib import Path
from typing import Annotated

from typer import Option

import headloom
from headloom.cli import options as option
from headloom.cli.output import print_json

Folder = Annotated[Path, Option("--run", help="The folder for run, pictures and page.")]


def demo(
    run: Folder = Path("runs/demo"), seed: option.Seed = 1, as_json: option.AsJson = False
) -> None:
    """Train a translator of dates, trace it, and draw its weights."""
    result = headloom.demo(run, seed)
    if as_json:
        print_json(result)
