"""`weft view`: the studio in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["view"]


def view(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="A trace, a run, or a folder of traces.")
    ],
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="0: any; default: the first free one from 8137 on."),
    ] = None,
    browser: Annotated[bool, typer.Option(help="Open a browser.")] = True,
) -> None:
    """See every head of a trace, or a training from its random birth, in a browser."""
    from weft.cli.terminal import console
    from weft.studio.runs import open_collection
    from weft.studio.serving import serve

    try:
        collection = open_collection(path)
        for problem in collection.damaged:
            console().print(f"weft: left out: {problem}", markup=False, soft_wrap=True)
        serve(collection, port, browser)
    except KeyboardInterrupt:
        # How one ends it: nothing is wrong.
        raise SystemExit(0) from None
