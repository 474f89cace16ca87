"""What a verb prints: tables, comma-separated values, JSON; and its progress."""

from __future__ import annotations

import io
import json
import math
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, TextIO

from headloom.cli.safe_text import exact_output, safe, safe_console

if TYPE_CHECKING:
    import pandas
    import pyarrow as pa
    from rich.console import Console

    from headloom.formats.trace import TraceData
    from headloom.studio.steps.steps import Line


def console() -> Console:
    """Where progress is written: standard error, so that results can be piped."""
    return safe_console(stderr=True)


def say(text: str) -> None:
    """Print a line on standard error."""
    # Not by a console of its own: below a bar, which rich keeps last, the line goes above it.
    print(text, file=sys.stderr)


class Progress(Protocol):
    """Told how much is done, of how much or None, and perhaps of what."""

    def __call__(self, done: int, total: int | None, description: str | None = None) -> None: ...


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
def progress_bar(what: str, *, lines: bool = False) -> Iterator[Progress]:
    """A bar on standard error, if that is a terminal.

    Args:
        what: is done, until the block says otherwise.
        lines: whether something else than a terminal gets a line now and then, or nothing.
    """
    if lines and not sys.stderr.isatty():
        yield _Lines(what)
        return

    from rich import progress as rich

    with rich.Progress(
        rich.TextColumn("{task.description}", markup=False), rich.BarColumn(),
        rich.MofNCompleteColumn(), rich.TimeElapsedColumn(),
        console=console(), transient=True, disable=not sys.stderr.isatty(),
    ) as bar:  # fmt: skip
        task = bar.add_task(what, total=None)

        def show(done: int, total: int | None, description: str | None = None) -> None:
            bar.update(task, completed=done, total=total, description=description)

        yield show


@contextmanager
def working(what: str) -> Iterator[None]:
    """Say on standard error, if that is a terminal, what is done and for how long, until it is."""
    with progress_bar(what):
        yield


class JsonAlone(io.TextIOBase):
    """In place of standard output: discards all but what `print_json` writes to it."""

    def __init__(self, output: TextIO) -> None:
        self.output = output

    def write(self, text: str) -> int:
        return len(text)


def print_json(content: Mapping[str, object]) -> None:
    """Print one JSON object on a line: null for what is no finite number."""
    from headloom.formats.files import finite

    output = sys.stdout.output if isinstance(sys.stdout, JsonAlone) else sys.stdout
    ascii_alone = "utf" not in (output.encoding or "utf-8").lower()
    text = json.dumps(finite(dict(content)), ensure_ascii=ascii_alone, default=str)
    print(text, file=output, flush=True)


def print_csv(header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print comma-separated values."""
    import csv

    writer = csv.writer(exact_output(), lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)


#: The styles of a walk through attention, in colours of the terminal's own.
_STYLES = {
    "title": "bold", "name": "bold", "formula": "cyan", "faint": "dim", "strong": "bold green",
}  # fmt: skip


def print_lines(lines: Iterable[Line]) -> None:
    """Print lines of styled text: in colour on a terminal, plain elsewhere; none is broken."""
    from rich.text import Text

    terminal = safe_console(width=10_000)
    for line in lines:
        pieces = [(safe(text), _STYLES.get(style, "")) for text, style in line]
        text = Text.assemble(*pieces, no_wrap=True, overflow="ignore")
        text.rstrip()
        terminal.print(text, soft_wrap=True)


def cell(name: str, value: object) -> str:
    """A cell of a table: digits as its column needs them, - where there is no number.

    >>> cell("p", 0.000123), cell("score", 0.5), cell("score", None)
    ('1e-04', '0.5000', '-')
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if not isinstance(value, float):
        return str(value)
    if name in ("p", "needle_p"):
        return "<1e-99" if value < 1e-99 else f"{value:.0e}"
    return format(value, ".2f" if name in ("z", "entropy", "distance") else ".4f")


def records(frame: pandas.DataFrame) -> list[dict[str, object]]:
    """The rows of a DataFrame, by the names of its columns."""
    return [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]


def print_table(
    header: Sequence[str], rows: Iterable[Sequence[str]], *, left: Collection[str] = ()
) -> None:
    """Print a table in aligned columns.

    Args:
        header: the headings of its columns.
        rows: their cells.
        left: headings of columns of words, which begin on the left; others are numbers.
    """
    from rich.cells import cell_len

    lines = [[safe(text) for text in row] for row in (header, *rows)]
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    terminal = safe_console()
    for number, line in enumerate(lines):
        parts = []
        for name, text, width in zip(header, line, widths, strict=True):
            blanks = " " * (width - cell_len(text))
            parts.append(text + blanks if name in left else blanks + text)
        style = "bold" if number == 0 else None
        terminal.print("  ".join(parts).rstrip(), style=style, markup=False, soft_wrap=True)


def print_frame(frame: pandas.DataFrame, as_csv: bool = False) -> None:
    """Print a DataFrame, aligned or as comma-separated values."""
    import pyarrow as pa

    if as_csv:
        frame.to_csv(exact_output(), index=False)
    else:
        print_arrow(pa.Table.from_pandas(frame, preserve_index=False), len(frame))


def print_arrow(table: pa.Table, limit: int) -> None:
    """Print the first rows of a table of PyArrow, and how many there are more."""
    from headloom.analysis.sql.database import cells

    header, rows, words = cells(table, limit)
    print_table(header, rows, left=words)
    if table.num_rows > limit:
        print(f"... and {table.num_rows - limit:,} more rows")


def with_layers(frame: pandas.DataFrame, *traces: TraceData) -> pandas.DataFrame:
    """A table whose layers have their names, 5 (cross 1), in place of a column of kinds."""
    labels = {
        name: [trace.label(number) for number in frame[name]]
        for name, trace in zip(("layer", "other_layer"), traces, strict=False)
    }
    return frame.assign(**labels).drop(columns="kind", errors="ignore")
