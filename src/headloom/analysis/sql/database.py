"""In-memory database with the views of `headloom.analysis.sql.views` only; and its answers.

This module does not load torch, so that a process for queries starts quickly.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pyarrow.types as types

from headloom.errors import DataError, InputError, optional_package
from headloom.formats.files import atomic_file, finite

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection as Connection
    from duckdb import Statement

VIEWS = ("edges", "rows", "keys", "received", "tokens", "layers", "heads", "named")

#: Formats of an answer, by the suffix of the file.
SUFFIXES = (".csv", ".parquet", ".json")

_NAMED = """
    create view named as select e.*, q.token as query_token, k.token as key_token,
        q.text as query_text, k.text as key_text, l.kind
    from edges e join layers l on {0}l.layer = e.layer
    left join tokens q on {1}q.sequence = l.queries_from and q.position = e.query
    left join tokens k on {2}k.sequence = l.keys_from and k.position = e.key
"""


@dataclass(frozen=True, eq=False)
class Part:
    """Part of a view from one trace: a Parquet file, or a table.

    trace: its name, for the view's column `trace`. None: no such column, or the table has it.
    """

    trace: str | None
    data: str | pa.Table


@dataclass(frozen=True, eq=False)
class Answer:
    """Answer to a query: read it once, by one of its methods."""

    reader: pa.RecordBatchReader
    connection: Connection

    @property
    def schema(self) -> pa.Schema:
        """Names and types; of ``select a.layer, b.layer`` the names are layer and layer_2."""
        counts: dict[str, int] = {}
        fields = []
        for field in self.reader.schema:
            counts[field.name] = count = counts.get(field.name, 0) + 1
            fields.append(field if count == 1 else field.with_name(f"{field.name}_{count}"))
        return pa.schema(fields)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield batches of rows."""
        with one_line():
            for batch in self.reader:
                yield pa.RecordBatch.from_arrays(batch.columns, schema=self.schema)

    def table(self) -> pa.Table:
        """Return the whole answer."""
        return pa.Table.from_batches(self.batches(), self.schema)

    def write(self, path: Path | str) -> int:
        """Write it to a file whose suffix chooses the format: .csv, .parquet or .json.

        Returns: the number of rows.

        Raises: InputError: another suffix; DataError: the file cannot be written.
        """
        path = Path(path)
        if path.suffix.lower() not in SUFFIXES:
            raise InputError(f"{path}: expected a file name that ends in {', '.join(SUFFIXES)}.")
        with atomic_file(path) as temporary:
            if path.suffix.lower() == ".json":
                rows = self.table().to_pylist()
                temporary.write_text(_json(rows, indent=1) + "\n", encoding="utf-8")
                return len(rows)
            csv, count = path.suffix.lower() == ".csv", 0
            schema = plain(pa.Table.from_batches([], self.schema)).schema if csv else self.schema
            new = pyarrow.csv.CSVWriter if csv else pq.ParquetWriter
            with one_line(), new(temporary, schema) as writer:
                for batch in self.batches():
                    table = pa.Table.from_batches([batch])
                    writer.write_table(plain(table) if csv else table)
                    count += batch.num_rows
            return count


def plain(table: pa.Table) -> pa.Table:
    """Return a table for CSV: lists and structures as JSON, bytes as hexadecimal."""
    for place, field in enumerate(table.schema):
        if types.is_nested(field.type) or types.is_binary(field.type):
            texts = [None if cell is None else _text(cell) for cell in table[place].to_pylist()]
            table = table.set_column(place, field.name, pa.array(texts, pa.string()))
    return table


def _text(cell: object) -> str:
    return cell.hex() if isinstance(cell, bytes) else _json(cell)


def _json(value: object, indent: int | None = None) -> str:
    """Return a value as JSON, with null for numbers that are not finite."""
    return json.dumps(finite(value), ensure_ascii=False, default=str, indent=indent)


def connect() -> Connection:
    """Return a new database in memory. Raises: InputError: DuckDB is missing."""
    with one_line():
        import duckdb

        return duckdb.connect(":memory:")


def statement_of(connection: Connection, query: str) -> Statement:
    """Parse a query into one statement. Raises: InputError: it is not one SELECT."""
    with one_line():
        statements = connection.extract_statements(query)
    kinds = [statement.type.name for statement in statements]
    if kinds not in (["SELECT"], ["EXPLAIN"]):
        kind = f"a {kinds[0]} statement" if len(kinds) == 1 else f"{len(kinds)} statements"
        raise InputError(f"query: {kind}; traces are only read: expected one SELECT.")
    return statements[0]


def answered(
    connection: Connection, query: str, views: Mapping[str, Sequence[Part]], *, column: bool
) -> Answer:
    """Return the answer to a query, computed while it is read.

    Args:
        connection: a new one, which gets the views and is locked: Parquet files are read in place;
            it cannot read other files, write any, load extensions, or be unlocked.
        query: one SELECT statement.
        views: the parts of each, at least one.
        column: whether the views have the column `trace`.

    Raises: InputError: the query is not valid, or uses unknown names.
    """
    with one_line():
        statement = statement_of(connection, query)
        files: set[str] = set()
        for view, parts in views.items():
            _make_view(connection, view, parts, column, files)
        if {"edges", "tokens", "layers"} <= set(views):
            same = [f"{alias}.trace = e.trace and " if column else "" for alias in "lqk"]
            connection.execute(_NAMED.format(*same))
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
        return Answer(connection.sql(statement).to_arrow_reader(100_000), connection)


def _make_view(
    connection: Connection, view: str, parts: Sequence[Part], column: bool, files: set[str]
) -> None:
    """Create a view over the Parquet files of saved traces and the tables of others."""
    saved, selects = {}, []
    for number, part in enumerate(parts):
        if isinstance(part.data, str):
            saved[part.data] = part.trace
            continue
        connection.register(f"{view}_{number}", part.data)
        named = "" if part.trace is None else f"{_quoted(part.trace)} as trace, "
        selects.append(f"select {named}* from {view}_{number}")
    if saved:
        # DuckDB reads a path as a pattern, and needs permission for both.
        patterns = [
            _quoted("".join(f"[{letter}]" if letter in "*?[" else letter for letter in path))
            for path in saved
        ]
        files |= {*patterns, *map(_quoted, saved)}
        names = pa.table({"file": list(saved), "trace": list(saved.values())})
        connection.register(f"{view}_files", names)
        trace = "n.trace, " if column else ""
        selects.append(
            f"select {trace}e.* exclude (file) from read_parquet([{', '.join(patterns)}], "
            f"filename = 'file') e join {view}_files n on n.file = e.file"
        )
    connection.execute(f"create view {view} as {' union all by name '.join(selects)}")


def _quoted(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


@contextmanager
def one_line() -> Iterator[None]:
    """Turn DuckDB's errors in the block into errors of one line."""
    with optional_package("query"):
        import duckdb
    try:
        yield
    except (duckdb.Error, pa.ArrowException) as error:
        # Without the copy of the query, the stack trace, and advice on memory.
        text = str(error).split("\nLINE ")[0].split("\n\nStack Trace")[0]
        if isinstance(error, duckdb.OutOfMemoryException):
            text = text.partition("\n")[0]
        message = " ".join(text.partition("Error: ")[2].split() or text.split()).rstrip(" .!")
        if isinstance(error, duckdb.IOException) or "No magic bytes" in message:
            raise DataError(f"query: cannot read the trace: {message}. Trace it again.") from None
        # The names of the views help only if the query could not be bound.
        misread = (duckdb.ParserException, duckdb.BinderException, duckdb.CatalogException)
        advice = f" The views are {', '.join(VIEWS)}." if isinstance(error, misread) else ""
        end = "" if message.endswith("?") else "."
        raise InputError(f"query: {message}{end}{advice}") from None
