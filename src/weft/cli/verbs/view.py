"""`weft view`."""

from pathlib import Path
from typing import Annotated

import typer

from weft.cli.output import say

PLACE = ("See", 1)

Seen = Annotated[
    Path, typer.Argument(metavar="PATH", help="A trace, a run, or a folder of traces.")
]
Port = Annotated[
    int | None,
    typer.Option(min=0, max=65535, help="0: any; default: the first free one from 8137 on."),
]
Browser = Annotated[bool, typer.Option(help="Open a browser.")]


def view(path: Seen, port: Port = None, browser: Browser = True) -> None:
    """Show every head of a trace, or a training run step by step, in a browser."""
    from weft.studio.runs import open_collection
    from weft.studio.serving import serve

    try:
        collection = open_collection(path)
        for problem in collection.damaged:
            say(f"weft: left out: {problem}")
        serve(collection, port, browser)
    except KeyboardInterrupt:
        # The way to end it: nothing is wrong.
        raise SystemExit(0) from None
