"""What a verb prints: a table, comma-separated values, JSON; and its progress."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from weft.cli.safe_text import exact_output, safe_console

if TYPE_CHECKING:
    import pandas
    from rich.console import Console
    from rich.table import Table

    from weft.walkthrough.parts import Span

__all__ = [
    "cell",
    "console",
    "print_csv",
    "print_frame",
    "print_json",
    "print_lines",
    "print_places",
    "print_table",
    "progress_bar",
    "records",
    "say",
]


def console() -> Console:
    """Where progress is written: standard error, so that results can be piped."""
    return safe_console(stderr=True)


def say(text: str) -> None:
    """Print a line on standard error."""
    console().print(text, markup=False, soft_wrap=True)


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


def print_json(content: dict[str, Any]) -> None:
    """The last line of a command that was asked for --json: null for what is no finite number."""
    from weft.formats.files import finite

    print(json.dumps(finite(content), ensure_ascii=False, default=str))


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

    from weft.cli.safe_text import safe

    terminal = safe_console(width=10_000)
    for line in lines:
        text = Text(no_wrap=True, overflow="ignore")
        for span in line:
            text.append(safe(span.text), _STYLES.get(span.style, ""))
        text.rstrip()
        terminal.print(text, soft_wrap=True)


def print_frame(frame: pandas.DataFrame, as_csv: bool = False) -> None:
    """A DataFrame, aligned or as comma-separated values."""
    import pyarrow as pa

    from weft.analysis.sql.query import shown

    if as_csv:
        frame.to_csv(exact_output(), index=False)
    else:
        print(shown(pa.Table.from_pandas(frame, preserve_index=False), len(frame)))


def records(frame: pandas.DataFrame) -> list[dict[str, Any]]:
    """The rows of a DataFrame, by the names of its columns."""
    return [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]


def print_places(values: Sequence[float], tokens: Sequence[str], top: int) -> None:
    """The largest values, each with its position and its token."""
    from weft.formats.tokens import visible

    for place in sorted(range(len(values)), key=lambda index: -values[index])[:top]:
        print(f"{values[place]:8.4f}  {place:6}  {visible(tokens[place])}")


def cell(name: str, value: Any) -> str:
    """A cell of a table of heads: digits as its column needs them, - where there is no number.

    >>> cell("p", 0.000123), cell("score", 0.5), cell("score", None)
    ('1e-04', '0.5000', '-')
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if name == "cluster":
        return f"{value:.0f}"
    if name in ("p", "needle_p"):
        return "<1e-99" if value < 1e-99 else f"{value:.0e}"
    if name in ("z", "entropy", "distance"):
        return f"{value:.2f}"
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def print_table(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    left: Collection[str] = (),
    wide: bool = False,
    needed: Collection[str] = (),
) -> list[str]:
    """Print a table, in which no number is cut.

    Args:
        header: the headings of its columns.
        rows: their cells.
        left: headings of columns that begin on the left; others end on the right.
        wide: a row longer than the terminal's line goes on in the next one. Else the last columns
            for which there is no room are left out.
        needed: headings of columns that stay.

    Returns: the headings of the columns left out.
    """
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in header:
        table.add_column(name, justify="left" if name in left else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
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
