"""`headloom view`."""

from pathlib import Path
from typing import Annotated

import typer

import headloom

Paths = Annotated[
    list[Path],
    typer.Argument(
        metavar="PATH",
        help="A trace, or several to compare; a run, a folder of traces; or a model of Hugging "
        "Face, by its folder or its name.",
    ),
]
FirstText = Annotated[
    str | None, typer.Option("--text", help="What a model of Hugging Face reads first.")
]
Port = Annotated[
    int | None,
    typer.Option(min=0, max=65535, help="0: any; default: the first free one from 8137 on."),
]
Browser = Annotated[bool, typer.Option(help="Open a browser.")]


def view(paths: Paths, text: FirstText = None, port: Port = None, browser: Browser = True) -> None:
    """Show every head of a trace, a run or a model in a browser."""
    try:
        headloom.view(*paths, text=text, port=port, browser=browser, block=True)
    except KeyboardInterrupt:
        # Ctrl-C is the normal end.
        raise SystemExit(0) from None
