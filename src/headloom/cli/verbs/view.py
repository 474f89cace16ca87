"""`headloom view`."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

import headloom

Paths = Annotated[
    list[Path],
    Argument(
        metavar="PATH",
        help="minilm; a trace, or several to compare; a run; a folder of traces; or a "
        "model of Hugging Face, by folder or name.",
    ),
]
FirstText = Annotated[str | None, Option("--text", help="The first text that a model reads.")]
Port = Annotated[
    int | None, Option(min=0, max=65535, help="0: any. Default: the first free port from 8137.")
]
Browser = Annotated[bool, Option(help="Open a browser.")]


def view(paths: Paths, text: FirstText = None, port: Port = None, browser: Browser = True) -> None:
    """Show every head of a trace, a run or a model in a browser."""
    try:
        headloom.view(*paths, text=text, port=port, browser=browser, block=True)
    except KeyboardInterrupt:
        # Ctrl-C is the normal end.
        raise SystemExit(0) from None
