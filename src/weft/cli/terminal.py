"""The terminal: what a command reads from it, and says on it."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.output import safe_console
from weft.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

    from weft.training.inference import TrainedRun

__all__ = [
    "AsJson",
    "Threads",
    "console",
    "print_json",
    "print_table",
    "progress_bar",
    "standard_input_lines",
    "tell_unknown",
    "use_threads",
]

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")]
Threads = Annotated[
    int | None, typer.Option(min=1, max=4_096, help="Processor threads; default: all cores.")
]


def console() -> Console:
    """Where progress is written: standard error, so that results can be piped."""
    found: Console = safe_console(stderr=True)
    return found


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


def print_table(table: Table, *, wide: bool = False, needed: Collection[str] = ()) -> list[str]:
    """Print a table of rich, in which no number is cut.

    Args:
        table: what is printed.
        wide: a row longer than the terminal's line goes on in the next one. Else the last columns
            for which there is no room are left out.
        needed: headings of columns that stay.

    Returns: the headings of the columns left out.
    """
    terminal = safe_console()
    dropped: list[str] = []
    if terminal.is_terminal and not wide:
        for column in reversed(table.columns[1:]):
            if _width(terminal, table) <= terminal.width:
                break
            if column.header not in needed:
                table.columns.remove(column)
                dropped.insert(0, str(column.header))
    safe_console(width=max(terminal.width, _width(terminal, table))).print(table)
    return dropped


def _width(out: Console, table: Table) -> int:
    """Characters that a table takes where nothing of it is cut."""
    from rich.measure import Measurement

    whole = out.options.update(width=10_000, max_width=10_000)
    return Measurement.get(out, whole, table).maximum


def use_threads(threads: int | None) -> None:
    """So many threads for what follows; None: as it is."""
    if threads is not None:
        import torch

        torch.set_num_threads(threads)


def tell_unknown(run: TrainedRun, what: str, text: str) -> None:
    """Say on standard error which characters of a text a run has never seen."""
    from weft.formats.tokens import visible

    unknown = run.vocabulary.unknown_characters(text)
    if unknown:
        shown = " ".join(map(visible, unknown[:10])) + (" ..." if len(unknown) > 10 else "")
        print(
            f"weft: {what} has {len(unknown)} characters that are not in the vocabulary of this "
            f"run, and that the model reads as unknown: {shown}",
            file=sys.stderr,
        )


def standard_input_lines() -> list[str]:
    """Lines as other programs count them: they end in a line feed, and in nothing else."""
    if sys.stdin is None:
        raise InputError("standard input is closed; give the text by a file or a pipe.")
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
