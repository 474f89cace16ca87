"""The terminal: what a command reads from it, and says on it."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

__all__ = [
    "AsJson",
    "Threads",
    "console",
    "print_json",
    "progress_bar",
    "standard_input_lines",
    "use_threads",
]

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")]
Threads = Annotated[int | None, typer.Option(min=1, help="Processor threads; default: all cores.")]


def console() -> Console:
    """Where progress is written: standard error, so that results can be piped."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def progress_bar() -> Progress:
    """A bar on standard error; nothing is written where that is no terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console(),
        transient=True,
        disable=not sys.stderr.isatty(),
    )


def print_json(content: dict[str, Any]) -> None:
    """The last line of a command that was asked for --json."""
    print(json.dumps(content, ensure_ascii=False, default=str))


def use_threads(threads: int | None) -> None:
    """So many threads for what follows; None: as it is."""
    if threads is not None:
        import torch

        torch.set_num_threads(threads)


def standard_input_lines() -> list[str]:
    """Lines as other programs count them: they end in a line feed, and in nothing else."""
    content = sys.stdin.buffer.read()
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise InputError(
            f"standard input: line {line} is not UTF-8 text. Convert it, as in: iconv -f latin1 -t "
            "utf-8."
        ) from None
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")] if text else []
