"""The tables that verbs print: no number is cut, and on a terminal no line is too long."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from headloom.cli.safe_text import exact_output, safe, safe_console

if TYPE_CHECKING:
    import pandas
    import pyarrow as pa

    from headloom.formats.trace import TraceData

__all__ = [
    "cell",
    "fitted",
    "largest",
    "print_arrow",
    "print_frame",
    "print_places",
    "print_table",
    "records",
    "significant",
    "with_layers",
]

#: Characters between columns.
_GAP = 2
#: Characters that a word keeps where it is shortened.
_SHORTEST = 10
#: What a row is of: these columns come again where the others go on below.
_KEYS = frozenset(
    ("layer", "kind", "head", "heads", "step", "policy", "budget", "run", "measure", "role",
     "position", "query", "key", "loss")
)  # fmt: skip


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
    if not isinstance(value, float):
        return str(value)
    return format(value, ".2f" if name in ("z", "entropy", "distance") else ".4f")


def records(frame: pandas.DataFrame) -> list[dict[str, Any]]:
    """The rows of a DataFrame, by the names of its columns."""
    return [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]


@dataclass(frozen=True)
class _Column:
    """A heading and the cells below it; words begin on the left, and may be shortened."""

    name: str
    cells: Sequence[str]
    words: bool

    @cached_property
    def width(self) -> int:
        return max(map(_width, (self.name, *self.cells)))

    def shortened(self, width: int) -> _Column:
        return _Column(self.name, [_shortened(cell, width) for cell in self.cells], self.words)

    def lines(self) -> list[str]:
        width = self.width
        blanks = (" " * (width - _width(cell)) for cell in (self.name, *self.cells))
        return [
            cell + blank if self.words else blank + cell
            for cell, blank in zip((self.name, *self.cells), blanks, strict=True)
        ]


def _width(text: str) -> int:
    from rich.cells import cell_len

    return cell_len(text)


def _shortened(text: str, width: int) -> str:
    """A text without its middle: names that begin alike end otherwise, and the other way."""
    from rich.cells import set_cell_size

    if _width(text) <= width:
        return text
    end = (width - 1) // 2
    tail = text[-end:]
    while _width(tail) > end:
        tail = tail[1:]
    return set_cell_size(text, width - 1 - _width(tail)).rstrip() + "…" + tail


def _total(columns: Sequence[_Column]) -> int:
    return sum(column.width + _GAP for column in columns) - _GAP


def fitted(columns: Sequence[_Column], width: int) -> list[list[_Column]]:
    """Columns in parts that are at most so wide, one below the other.

    Words are shortened first, but for layers; then the columns go on below, after those that say
    what a row is of. A column of numbers stays as it is.
    """
    columns = list(columns)
    while _total(columns) > width:
        longest = max(
            (n for n, column in enumerate(columns) if column.words and column.name != "layer"),
            key=lambda number: columns[number].width,
            default=None,
        )
        if longest is None:
            break
        column = columns[longest]
        least = max(_width(column.name), _SHORTEST)
        if column.width <= least:
            break
        wanted = column.width - (_total(columns) - width)
        columns[longest] = column.shortened(max(wanted, least))
    count = next((n for n, column in enumerate(columns) if column.name not in _KEYS), 1) or 1
    keys = columns[:count]
    if _total(keys) > width // 2:
        keys = columns[:1]
    parts = [list(keys)]
    for column in columns[len(keys) :]:
        if len(parts[-1]) > len(keys) and _total([*parts[-1], column]) > width:
            parts.append(list(keys))
        parts[-1].append(column)
    return parts


def print_table(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    left: Collection[str] = (),
    may_go: Collection[str] = (),
) -> list[str]:
    """Print a table; on a terminal, in lines that fit: see `fitted`.

    Args:
        header: the headings of its columns.
        rows: their cells.
        left: headings of columns of words, which begin on the left; others are numbers.
        may_go: headings of columns that are left out, from the last one on, where there is no room.

    Returns: the headings of the columns left out.
    """
    lines = [[safe(text) for text in row] for row in rows]
    columns = [
        _Column(safe(name), [line[number] for line in lines], name in left)
        for number, name in enumerate(header)
    ]
    gone: list[str] = []
    terminal = safe_console()
    parts = [columns]
    if terminal.is_terminal:
        for column in reversed(columns[1:]):
            if _total(columns) <= terminal.width:
                break
            if column.name in may_go:
                columns.remove(column)
                gone.insert(0, column.name)
        parts = fitted(columns, terminal.width)
    for number, part in enumerate(parts):
        if number:
            print()
        first, *others = (
            (" " * _GAP).join(cells).rstrip()
            for cells in zip(*(column.lines() for column in part), strict=True)
        )
        terminal.print(first, style="bold", markup=False, soft_wrap=True)
        for line in others:
            print(line)
    return gone


def print_frame(frame: pandas.DataFrame, as_csv: bool = False) -> None:
    """A DataFrame, aligned or as comma-separated values."""
    import pyarrow as pa

    if as_csv:
        frame.to_csv(exact_output(), index=False)
    else:
        table = pa.Table.from_pandas(frame, preserve_index=False)
        print_arrow(table, len(frame))


def with_layers(frame: pandas.DataFrame, *traces: TraceData) -> pandas.DataFrame:
    """A table whose layers have their names, 5 (cross 1), in place of a column of kinds."""
    labels = {
        name: [trace.label(number) for number in frame[name]]
        for name, trace in zip(("layer", "other_layer"), traces, strict=False)
    }
    return frame.assign(**labels).drop(columns="kind", errors="ignore")


def print_arrow(table: pa.Table, limit: int) -> None:
    """The first rows of a table of PyArrow, and how many there are more."""
    from headloom.analysis.sql.answer import cells

    header, rows, words = cells(table, limit)
    print_table(header, rows, left=words)
    if table.num_rows > limit:
        print(f"... and {table.num_rows - limit:,} more rows")


def largest(values: Sequence[float], limit: int) -> list[int]:
    """Where the largest values stand, the largest first."""
    return sorted(range(len(values)), key=lambda index: -values[index])[:limit]


def significant(values: Iterable[float]) -> list[str]:
    """A column of numbers, each to six digits of its own: 0 is none at all, 1e-05 is little.

    >>> significant([0.65546721, 1e-5, 0.0])
    ['0.655467', '   1e-05', '       0']
    """
    texts = [f"{value:.6g}" for value in values]
    width = max(map(len, texts), default=0)
    return [text.rjust(width) for text in texts]


def print_places(values: Sequence[float], tokens: Sequence[str], limit: int) -> None:
    """The largest values, each with its position and its token."""
    from headloom.formats.tokens import visible

    places = largest(values, limit)
    numbers = significant(values[place] for place in places)
    for place, number in zip(places, numbers, strict=True):
        print(f"  {number}  {place:6}  {visible(tokens[place])}")
    if 0 < limit < len(values):
        print(f"and {len(values) - limit:,} more")
