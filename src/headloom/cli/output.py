"""What a verb prints: lines, comma-separated values, JSON; and its progress. See also `tables`."""

from __future__ import annotations

import io
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from headloom.cli.safe_text import exact_output, safe, safe_console

if TYPE_CHECKING:
    from rich.console import Console

    from headloom.studio.steps.text import Span

__all__ = [
    "JsonAlone",
    "console",
    "print_csv",
    "print_json",
    "print_lines",
    "progress_bar",
    "say",
    "say_all",
    "working",
]


def console() -> Console:
    """Where progress is written: standard error, so that results can be piped."""
    return safe_console(stderr=True)


def say(text: str) -> None:
    """Print a line on standard error."""
    # Not by a console of its own: below a bar, which rich keeps last, the line goes above it.
    print(text, file=sys.stderr)


def say_all(notes: Iterable[str | None]) -> None:
    """Print what goes with a table for a program on standard error; None: nothing is said."""
    for note in filter(None, notes):
        say(note)


class _Lines:
    """Progress where there is no terminal: now and then a line on standard error."""

    #: Seconds before the first line, and between two.
    FIRST, BETWEEN = 1.0, 10.0

    def __init__(self, what: str) -> None:
        self.what = what
        self._next = time.monotonic() + self.FIRST

    def __call__(self, done: int, total: int | None, description: str | None = None) -> None:
        self.what = description or self.what
        if total is not None and time.monotonic() >= self._next:
            self._next = time.monotonic() + self.BETWEEN
            say(f"{self.what}: {done:,} of {total:,}")


@contextmanager
def progress_bar(what: str, *, lines: bool = False) -> Iterator[Callable[..., None]]:
    """A bar on standard error, if that is a terminal.

    Args:
        what: is done, until the block says otherwise.
        lines: whether something else than a terminal gets a line now and then, or nothing.

    Yields: a function of how much is done, of how much or None, and perhaps of what.
    """
    if lines and not sys.stderr.isatty():
        yield _Lines(what)
        return

    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    with Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console(),
        transient=True,
        disable=not sys.stderr.isatty(),
    ) as bar:
        task = bar.add_task(what, total=None)

        def show(done: int, total: int | None, description: str | None = None) -> None:
            bar.update(task, completed=done, total=total, description=description)

        yield show


@contextmanager
def working(what: str) -> Iterator[None]:
    """Say on standard error, if that is a terminal, what is done and for how long, until it is."""
    if not sys.stderr.isatty():
        yield
        return

    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
    with Progress(*columns, console=console(), transient=True) as shown:
        shown.add_task(what, total=None)
        yield


class JsonAlone(io.TextIOBase):
    """In place of standard output: discards all but what `print_json` writes to it."""

    def __init__(self, output: TextIO) -> None:
        self.output = output

    def write(self, text: str) -> int:
        return len(text)


def print_json(content: dict[str, Any]) -> None:
    """Print one JSON object on a line: null for what is no finite number."""
    from headloom.formats.files import finite

    output = sys.stdout.output if isinstance(sys.stdout, JsonAlone) else sys.stdout
    print(json.dumps(finite(content), ensure_ascii=False, default=str), file=output, flush=True)


def print_csv(header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Comma-separated values."""
    import csv

    writer = csv.writer(exact_output(), lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)


#: The styles of a walk through attention, in colours of the terminal's own.
_STYLES = {
    "title": "bold", "name": "bold", "formula": "cyan", "faint": "dim", "strong": "bold green",
}  # fmt: skip


def print_lines(lines: Iterable[Iterable[Span]]) -> None:
    """Lines of styled text: in colour on a terminal, plain elsewhere; none is broken or cut."""
    from rich.text import Text

    terminal = safe_console(width=10_000)
    for line in lines:
        text = Text(no_wrap=True, overflow="ignore")
        for span in line:
            text.append(safe(span.text), _STYLES.get(span.style, ""))
        text.rstrip()
        terminal.print(text, soft_wrap=True)
