"""A database in memory that holds the views of `headloom.analysis.sql.views`, and reads nothing
else.

Nothing here loads torch: a process that only answers questions starts at once.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from headloom.errors import DataError, InputError, optional_package

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection as Connection
    from duckdb import Statement

__all__ = ["VIEWS", "Part", "connect", "made_without", "make_views", "one_line", "reader_of",
           "statement_of", "views_in"]  # fmt: skip

VIEWS = ("edges", "rows", "keys", "received", "tokens", "layers", "heads", "named")

_NAMED = """
    select e.*, q.token as query_token, k.token as key_token,
        q.text as query_text, k.text as key_text, l.kind
    from edges e join layers l on {same}l.layer = e.layer
    left join tokens q on {q_same}q.sequence = l.queries_from and q.position = e.query
    left join tokens k on {k_same}k.sequence = l.keys_from and k.position = e.key
"""


#: How a trace is made that has something in a view which others have nothing in.
_MADE_WITH = {"keys": "with values", "received": "with received=True"}


@dataclass(frozen=True, eq=False)
class Part:
    """What a view has of one trace: a Parquet file, or a table.

    trace: its name; the view's column `trace` says it. None: there is no such column, or the table
    has it.
    """

    trace: str | None
    data: str | pa.Table


def connect(memory: str | None = None) -> Connection:
    """A new database in memory. memory: how much it may take, as "512MB", on one thread.

    Raises: InputError: DuckDB is missing.
    """
    with one_line():
        import duckdb

        connection = duckdb.connect(":memory:")
        if memory is not None:
            connection.execute("set threads = 1")
            connection.execute(f"set memory_limit = '{memory}'")
        return connection


def statement_of(connection: Connection, query: str) -> Statement:
    """The one statement that a query is. Raises: InputError: it is none, or no SELECT."""
    with one_line():
        statements = connection.extract_statements(query)
    if len(statements) != 1 or statements[0].type.name not in ("SELECT", "EXPLAIN"):
        kind = (
            f"a {statements[0].type.name} statement"
            if len(statements) == 1
            else f"{len(statements)} statements"
        )
        raise InputError(f"query: {kind}; traces are only read: expected one SELECT.")
    return statements[0]


def views_in(connection: Connection, query: str) -> set[str]:
    """The views that a query needs, and perhaps others."""
    import duckdb

    try:
        asked = {name.lower() for name in connection.get_table_names(query)}
    except duckdb.Error:
        # As of `join ... using`, which looks for columns of views that are not there yet.
        asked = {view for view in VIEWS if view in query.lower()}
    return asked | {"edges"} if "named" in asked else asked


def made_without(views: Mapping[str, Sequence[Part]], asked: Collection[str]) -> str:
    """Which of the views that a query asks for are empty for want of what was not traced; "": none.

    Args:
        views: the parts of each.
        asked: the views that the query names.
    """
    said = [
        f"{view} is empty: it holds rows of traces that were made {made}."
        for view, made in _MADE_WITH.items()
        if view in asked
        and all(isinstance(part.data, pa.Table) and not part.data for part in views[view])
    ]
    return " ".join(said)


def make_views(
    connection: Connection, views: Mapping[str, Sequence[Part]], *, column: bool
) -> None:
    """Give a database in memory the views, and close it to everything else.

    Parquet files are read where they lie. No other file can be read, none can be written, no
    extension loaded, and none of that be turned on again.

    Args:
        connection: a new one.
        views: the parts of each, one at least.
        column: whether the views have the column `trace`.
    """
    files: set[str] = set()
    for view, parts in views.items():
        _make_view(connection, view, parts, column, files)
    if {"edges", "tokens", "layers"} <= set(views):
        aliases = {"same": "l", "q_same": "q", "k_same": "k"}
        joins = {
            name: f"{alias}.trace = e.trace and " if column else ""
            for name, alias in aliases.items()
        }
        connection.execute("create view named as" + _NAMED.format(**joins))
    for setting in (
        f"allowed_paths = [{', '.join(sorted(files))}]",
        "python_enable_replacements = false",
        "autoinstall_known_extensions = false",
        "autoload_known_extensions = false",
        "temp_directory = ''",
        "enable_external_access = false",
        "lock_configuration = true",
    ):
        connection.execute(f"set {setting}")


def _make_view(
    connection: Connection,
    view: str,
    parts: Sequence[Part],
    column: bool,
    files: set[str],
) -> None:
    """One view over the Parquet file of each saved trace and a table of each other one."""
    saved, selects = {}, []
    for number, part in enumerate(parts):
        if isinstance(part.data, str):
            saved[part.data] = part.trace
            continue
        connection.register(f"{view}_{number}", part.data)
        named = "" if part.trace is None else f"{_text(part.trace)} as trace, "
        selects.append(f"select {named}* from {view}_{number}")
    if saved:
        # A path is a pattern to DuckDB, which asks for permission by both.
        patterns = [_text(_pattern(path)) for path in saved]
        files |= {*patterns, *map(_text, saved)}
        read = f"read_parquet([{', '.join(patterns)}], filename = 'file')"
        if column:
            names = pa.table({"file": list(saved), "trace": list(saved.values())})
            connection.register(f"{view}_files", names)
        selects.append(
            f"select n.trace, e.* exclude (file) from {read} e join {view}_files n on n.file = "
            "e.file"
            if column
            else f"select * exclude (file) from {read}"
        )
    connection.execute(f"create view {view} as {' union all by name '.join(selects)}")


def _text(value: str) -> str:
    """A string as SQL writes it."""
    return "'" + value.replace("'", "''") + "'"


def _pattern(path: str) -> str:
    """A file pattern that matches this path and no other."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in path)


def reader_of(connection: Connection, statement: Statement) -> pa.RecordBatchReader:
    """The answer to a statement, computed while it is read."""
    reader: pa.RecordBatchReader = connection.sql(statement).to_arrow_reader(100_000)
    return reader


#: Statements that DuckDB's errors advise.
_SETTINGS = re.compile(r"\b(SET|INSTALL) \w")


@contextmanager
def one_line() -> Iterator[None]:
    """DuckDB's errors, which draw an arrow under the query, as one line."""
    with optional_package("query"):
        import duckdb
    try:
        yield
    except (duckdb.Error, pa.ArrowException) as error:
        if isinstance(error, duckdb.OutOfMemoryException):
            # What follows is advice on settings, which are locked.
            said = str(error).partition("\n")[0].partition("Error: ")[2]
            raise InputError(f"query: out of memory: {said}. Ask for less.") from None
        # Without the copy of the query, and without where in DuckDB it was.
        text = str(error).split("\nLINE ")[0].split("\n\nStack Trace")[0]
        _, _, rest = text.partition("Error: ")
        first, *others = " ".join((rest or text).split()).split(". ")
        # Without advice on settings and extensions, which a query may not change.
        message = ". ".join([first, *(part for part in others if not _SETTINGS.search(part))])
        message = message.rstrip(" .!")
        if isinstance(error, duckdb.IOException) or "No magic bytes" in message:
            raise DataError(f"query: cannot read the trace: {message}. Trace it again.") from None
        # Of a question that was understood, other names do not help.
        misread = (duckdb.ParserException, duckdb.BinderException, duckdb.CatalogException)
        advice = f" The views are {', '.join(VIEWS)}." if isinstance(error, misread) else ""
        end = "" if message.endswith("?") else "."
        raise InputError(f"query: {message}{end}{advice}") from None
