r"""Output of the verbs: tables, comma-separated values, JSON; and progress.

Names of tokens, models and files are untrusted: an escape sequence in them could clear the screen,
a bidirectional override could reverse the text after it. All output of a command passes through
`safe`. In JSON, such characters occur in strings only, where `\u001b` means the same.
"""

from __future__ import annotations

import io
import json
import math
import re
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, TypeAlias, cast

from headloom.formats.tokens import visible as visible

if TYPE_CHECKING:
    import pandas
    import pyarrow as pa
    from rich.console import Console

    from headloom.formats.trace import TraceData
    from headloom.studio.steps.steps import Line


#: Called with the amount done, its total or None, and perhaps a description.
Progress: TypeAlias = Callable[..., None]
#: Control characters except tab and line feed, bidirectional marks, line separators, and lone
#: surrogates.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
#: Seconds before the first line of progress without a terminal, and between two.
_FIRST, _BETWEEN = 1.0, 10.0


def safe(text: str) -> str:
    r"""Escape control characters that could change a terminal.

    >>> safe("red \x1b[31m, \u202egnorw")
    'red \\u001b[31m, \\u202egnorw'
    """
    return _UNSAFE.sub(lambda mark: f"\\u{ord(mark[0]):04x}", text)


class _SafeStream:
    """Text stream whose output passes through `safe`.

    rich writes to `rich_proxied_file` directly, so that its own control sequences pass;
    `safe_console` escapes its text.
    """

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = stream

    def write(self, text: str) -> int:
        encoding = self.rich_proxied_file.encoding or "utf-8"
        known = safe(text).encode(encoding, "backslashreplace").decode(encoding)
        self.rich_proxied_file.write(known)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> object:
        return getattr(self.rich_proxied_file, name)


@contextmanager
def safe_output() -> Iterator[None]:
    """Pass standard output and standard error through `safe` while the block runs."""
    before = sys.stdout, sys.stderr
    closed = io.StringIO()  # replaces a closed stream
    sys.stdout = cast(TextIO, _SafeStream(sys.stdout or closed))
    sys.stderr = cast(TextIO, _SafeStream(sys.stderr or closed))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def exact_output() -> TextIO:
    """Return the stream for data: unchanged for another program, through `safe` on a terminal."""
    stream = sys.stdout
    if isinstance(stream, _SafeStream) and not stream.rich_proxied_file.isatty():
        return stream.rich_proxied_file
    return stream


def safe_console(*, stderr: bool = False, width: int | None = None) -> Console:
    """Make a rich console on standard output, or standard error, whose text is `safe`."""
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    class SafeConsole(Console):
        def on_broken_pipe(self) -> None:
            raise  # called by rich in its except block; `commands` handles the error

        def render(
            self, renderable: RenderableType, options: ConsoleOptions | None = None
        ) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                text = segment.text if segment.control else safe(segment.text)
                yield Segment(text, segment.style, segment.control)

    # Passed explicitly: while rich shows a bar it replaces our streams, and its control sequences
    # would pass through `safe`.
    stream = sys.stderr if stderr else sys.stdout
    while (below := getattr(stream, "rich_proxied_file", None)) is not None:
        stream = below
    # Notebooks set FORCE_COLOR, for which rich treats a pipe as a terminal: colours are fine there,
    # hundreds of bars are not.
    return SafeConsole(
        file=stream, stderr=stderr, highlight=False, width=width,
        force_interactive=stream.isatty(),
    )  # fmt: skip


def say(text: str) -> None:
    """Print a line on standard error."""
    # By print, so that rich puts the line above its bar.
    print(text, file=sys.stderr)


@contextmanager
def progress_bar(what: str, *, lines: bool = False) -> Iterator[Progress]:
    """Show a progress bar if standard error is a terminal; else, with `lines`, print lines."""
    if lines and not sys.stderr.isatty():
        following = time.monotonic() + _FIRST

        def tell(done: int, total: int | None, description: str | None = None) -> None:
            nonlocal what, following
            what = description or what
            if total is not None and time.monotonic() >= following:
                following = time.monotonic() + _BETWEEN
                say(f"{what}: {done:,} of {total:,}")

        yield tell
        return

    from rich import progress as rich

    with rich.Progress(
        rich.TextColumn("{task.description}", markup=False), rich.BarColumn(),
        rich.MofNCompleteColumn(), rich.TimeElapsedColumn(),
        console=safe_console(stderr=True), transient=True, disable=not sys.stderr.isatty(),
    ) as bar:  # fmt: skip
        task = bar.add_task(what, total=None)

        def show(done: int, total: int | None, description: str | None = None) -> None:
            bar.update(task, completed=done, total=total, description=description)

        yield show


class JsonAlone(io.TextIOBase):
    """Standard output that discards everything except the output of `print_json`."""

    def __init__(self, output: TextIO) -> None:
        self.output = output

    def write(self, text: str) -> int:
        return len(text)


def print_json(content: Mapping[str, object]) -> None:
    """Print one JSON object on a line; numbers that are not finite become null."""
    from headloom.formats.files import finite

    output = sys.stdout.output if isinstance(sys.stdout, JsonAlone) else sys.stdout
    ascii_alone = "utf" not in (output.encoding or "utf-8").lower()
    text = json.dumps(finite(dict(content)), ensure_ascii=ascii_alone, default=str)
    print(text, file=output, flush=True)


#: Styles of `headloom steps`, in the terminal's colours.
_STYLES = {
    "title": "bold", "name": "bold", "formula": "cyan", "faint": "dim", "strong": "bold green",
}  # fmt: skip


def print_lines(lines: Iterable[Line]) -> None:
    """Print lines of styled text without wrapping: in colour on a terminal, else plain."""
    from rich.text import Text

    terminal = safe_console(width=10_000)
    for line in lines:
        pieces = [(safe(text), _STYLES.get(style, "")) for text, style in line]
        text = Text.assemble(*pieces, no_wrap=True, overflow="ignore")
        text.rstrip()
        terminal.print(text, soft_wrap=True)


def cell(name: str, value: object) -> str:
    """Format a table cell with the digits of its column; - where there is no number.

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
    """Convert the rows of a DataFrame to Python values: lists for arrays, None if missing."""
    import pyarrow as pa

    rows: list[dict[str, object]] = pa.Table.from_pandas(frame, preserve_index=False).to_pylist()
    return rows


def print_table(
    header: Sequence[str], rows: Iterable[Sequence[str]], *, left: Collection[str] = ()
) -> None:
    """Print a table in aligned columns; left: names of left-aligned columns."""
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


def print_frame(frame: pandas.DataFrame, as_csv: bool = False, limit: int | None = None) -> None:
    """Print the first rows of a DataFrame, aligned or as comma-separated values.

    Aligned, layers have their names in `attrs`, such as 5 (cross 1), without a column of kinds, and
    the last line has the number of omitted rows.
    """
    import pyarrow as pa

    from headloom.analysis.sql.database import plain

    rows = frame if limit is None else frame.head(limit)
    if as_csv:
        if any(
            isinstance(cell, bytes | dict | list) or hasattr(cell, "dtype")
            for name in rows
            if rows[name].dtype.kind == "O"
            for cell in rows[name]
        ):
            table = plain(pa.Table.from_pandas(rows, preserve_index=False))
            rows = table.to_pandas(integer_object_nulls=True)
        rows.to_csv(exact_output(), index=False)
        return
    header, lines, words = cells(pa.Table.from_pandas(with_layers(rows), preserve_index=False))
    print_table(header, lines, left=words)
    if len(rows) < len(frame):
        print(f"and {len(frame) - len(rows):,} more rows")


def cells(table: pa.Table) -> tuple[list[str], list[list[str]], list[str]]:
    """Return the headings, the rows as texts, and the headings of columns without numbers.

    >>> import pyarrow
    >>> cells(pyarrow.table({"token": ["dog", " cat"], "weight": [0.25, 1e-9]}))
    (['token', 'weight'], [['dog', '0.25'], ['␣cat', '1e-09']], ['token'])
    """
    from pyarrow import types

    def text(value: object) -> str:
        if isinstance(value, float):
            return f"{value:.6g}"
        if value is None:
            return "null"
        return visible(value, 60) if isinstance(value, str) else str(value)

    header = [visible(name) for name in table.column_names]
    words = [
        name
        for name, kind in zip(header, table.schema.types, strict=True)
        if not (types.is_integer(kind) or types.is_floating(kind))
    ]
    columns = [column.to_pylist() for column in table.columns]
    return header, [list(map(text, row)) for row in zip(*columns, strict=True)], words


def with_layers(frame: pandas.DataFrame) -> pandas.DataFrame:
    """Replace layer numbers by the names in `attrs`, and drop the column of kinds."""
    labels = {
        name: [frame.attrs[f"{name}s"][number] for number in frame[name]]
        for name in ("layer", "other_layer")
        if name in frame and f"{name}s" in frame.attrs
    }
    return frame.assign(**labels).drop(columns="kind", errors="ignore") if labels else frame


def changed_edges(edges: pandas.DataFrame) -> pandas.DataFrame:
    """Format the edges of a comparison: both tokens where they differ."""
    both = edges.drop(columns=["other_query_token", "other_key_token"])
    for end in ("before", "after"):
        unkept = edges["unkept"] == end
        both[end] = both[end].map("{:.6g}".format).where(~unkept, other="not kept")
    for end in ("query_token", "key_token"):
        pairs = zip(edges[end], edges[f"other_{end}"], strict=True)
        both[end] = [a if a == b else f"{visible(a)}/{visible(b)}" for a, b in pairs]
    return both


def print_trace(
    trace: TraceData, output: Path, as_json: bool, left_out: Sequence[str] | None = None,
    unit: str = "tokens",
) -> None:  # fmt: skip
    """Print a summary of a trace: tokens, layers and verification.

    left_out: arrays of no layer; None: no arrays. unit: name of a position.
    """
    from headloom.formats.tokens import shown
    from headloom.formats.verification import in_words

    for name, tokens in trace.sequences.items():
        first = " ".join(map(visible, shown(tokens)[:50])) + (" ..." if len(tokens) > 50 else "")
        say(f"{name}: {len(tokens)} {unit}: {first}")
    if left_out:
        names = ", ".join(left_out[:5]) + ", ..." * (len(left_out) > 5)
        say(f"left out: {len(left_out)} arrays, which are not queries or keys: {names}")
    verified = "" if trace.deviation is None else f" Deviation: {trace.deviation:.1e}."
    if trace.verification is not None:
        verified += f" {in_words(trace.verification).capitalize()}."
    count = len(trace.layers)
    say(f"{count} attention layer{'s' * (count != 1)}.{verified} Trace: {output}")
    if as_json:
        content = {
            "trace": str(output), "layers": count,
            "quantization": trace.model.get("quantization"), "deviation": trace.deviation,
            "verification": trace.verification,
            "sequences": {name: list(tokens) for name, tokens in trace.sequences.items()},
        }  # fmt: skip
        print_json(content | ({} if left_out is None else {"left_out": list(left_out)}))
