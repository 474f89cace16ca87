"""Questions to traces in SQL: to one, or to a folder of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from weft.analysis.sql.views import VIEWS, make_views
from weft.errors import DataError, InputError, optional_package
from weft.formats.files import atomic_file, finite
from weft.formats.tokens import visible
from weft.formats.trace import TraceData
from weft.formats.trace_writer import MANIFEST

if TYPE_CHECKING:
    import pandas

__all__ = ["WRITERS", "Answer", "ask", "open_traces", "sql"]


def sql(trace: TraceData | Mapping[str, TraceData], query: str) -> pandas.DataFrame:
    """The answer to a query as a DataFrame.

    Takes what `ask` takes.

    Raises: InputError: the query is none, or asks for what there is not; pandas is missing.
    """
    with optional_package("sql"):
        import pandas  # noqa: F401
    frame: pandas.DataFrame = ask(trace, query).table().to_pandas()
    return frame


def ask(
    trace: TraceData | Mapping[str, TraceData],
    query: str,
    *,
    memory: str | None = None,
    begun: Callable[[Any], None] = lambda connection: None,
) -> Answer:
    """Ask a trace a question in SQL.

    Args:
        trace: one; or several by name, and then every view has a column `trace`.
        query: one SELECT statement over the views of `weft.analysis.sql.views`.
        memory: how much it may take, as "512MB", on one thread; None: as DuckDB chooses.
        begun: told the connection when the query is about to run, as to interrupt it.

    Returns: the answer, which is computed while it is read.

    Raises: InputError: the query is no SELECT, or asks for what there is not; DuckDB is missing.
    """
    traces = {"trace": trace} if isinstance(trace, TraceData) else trace
    with _one_line():
        import duckdb

        connection = duckdb.connect(":memory:")
        if memory is not None:
            connection.execute("set threads = 1")
            connection.execute(f"set memory_limit = '{memory}'")
        statements = connection.extract_statements(query)
        if len(statements) != 1 or statements[0].type.name not in ("SELECT", "EXPLAIN"):
            kind = (
                f"a {statements[0].type.name} statement"
                if len(statements) == 1
                else f"{len(statements)} statements"
            )
            raise InputError(f"query: {kind}; traces are only read: expected one SELECT.")
        asked = _asked_for(connection, query)
        make_views(connection, traces, column=not isinstance(trace, TraceData), asked=asked)
        begun(connection)
        relation = connection.sql(statements[0])
        return Answer(relation.to_arrow_reader(100_000), connection)


def _asked_for(connection: Any, query: str) -> set[str]:
    """The views that a query needs, and perhaps others."""
    import duckdb

    try:
        asked = {name.lower() for name in connection.get_table_names(query)}
    except duckdb.Error:
        # As of `join ... using`, which looks for columns of views that are not there yet.
        asked = {view for view in VIEWS if view in query.lower()}
    return asked | {"edges"} if "named" in asked else asked


@dataclass(frozen=True, eq=False)
class Answer:
    """The answer to a query: read it once, by one of its methods."""

    reader: pa.RecordBatchReader
    connection: Any

    @property
    def columns(self) -> list[str]:
        """Their names; of ``select a.layer, b.layer`` layer and layer_2."""
        seen: dict[str, int] = {}
        names = []
        for name in self.reader.schema.names:
            seen[name] = seen.get(name, 0) + 1
            names.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
        return names

    @property
    def schema(self) -> pa.Schema:
        """Names and types."""
        return self.reader.schema.empty_table().rename_columns(self.columns).schema

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Some rows at a time."""
        schema = self.schema
        with _one_line():
            for batch in self.reader:
                yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)

    def table(self) -> pa.Table:
        """The whole of it."""
        return pa.Table.from_batches(self.batches(), self.schema)

    def write(self, path: Path | str) -> int:
        """Write it to a file whose suffix chooses the format: .csv, .parquet or .json.

        Returns: how many rows.

        Raises: InputError: another suffix; DataError: the file cannot be written.
        """
        path = Path(path)
        writer = WRITERS.get(path.suffix.lower())
        if writer is None:
            raise InputError(f"{path}: expected a file name that ends in {', '.join(WRITERS)}.")
        with atomic_file(path) as temporary:
            return writer(self, temporary)


def _write_csv(answer: Answer, path: Path) -> int:
    import pyarrow.csv
    import pyarrow.types as types

    # Lists and the like have no form of their own in CSV: they are written as JSON.
    nested = [types.is_nested(field.type) for field in answer.schema]
    schema = pa.schema(
        [
            pa.field(field.name, pa.string()) if is_nested else field
            for field, is_nested in zip(answer.schema, nested, strict=True)
        ]
    )
    count = 0
    with _one_line(), pyarrow.csv.CSVWriter(path, schema) as writer:
        for batch in answer.batches():
            columns = [
                pa.array(
                    [None if cell is None else _json(cell) for cell in column.to_pylist()],
                    pa.string(),
                )
                if is_nested
                else column
                for column, is_nested in zip(batch.columns, nested, strict=True)
            ]
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
            count += batch.num_rows
    return count


def _write_parquet(answer: Answer, path: Path) -> int:
    count = 0
    with pq.ParquetWriter(path, answer.schema, compression="zstd") as writer:
        for batch in answer.batches():
            writer.write_batch(batch)
            count += batch.num_rows
    return count


def _write_json(answer: Answer, path: Path) -> int:
    rows = answer.table().to_pylist()
    path.write_text(_json(rows, indent=1) + "\n", encoding="utf-8")
    return len(rows)


def _json(value: Any, indent: int | None = None) -> str:
    """A value as JSON, which has no number that is none."""
    return json.dumps(
        finite(value), ensure_ascii=False, default=str, indent=indent, allow_nan=False
    )


#: How an answer is written, by the suffix of the file.
WRITERS = {".csv": _write_csv, ".parquet": _write_parquet, ".json": _write_json}


@contextmanager
def _one_line() -> Iterator[None]:
    """DuckDB's errors, which draw an arrow under the query, as one line."""
    with optional_package("query"):
        import duckdb
    try:
        yield
    except (duckdb.Error, pa.ArrowException) as error:
        # Without the copy of the query, and without where in DuckDB it was.
        text = str(error).split("\nLINE ")[0].split("\n\nStack Trace")[0]
        _, _, rest = text.partition("Error: ")
        message = " ".join((rest or text).split()).rstrip(" .!")
        if isinstance(error, duckdb.IOException) or "No magic bytes" in message:
            raise DataError(f"query: cannot read the trace: {message}. Trace it again.") from None
        raise InputError(f"query: {message}. The views are {', '.join(VIEWS)}.") from None


def open_traces(path: Path | str) -> TraceData | dict[str, TraceData]:
    """A trace; or, of a folder that holds traces at any depth, all of them by their paths in it.

    Raises: DataError: there is none, or one is damaged.
    """
    folder = Path(path)
    if (folder / MANIFEST).exists() or not folder.is_dir():
        return TraceData.open(folder)
    folders = sorted(
        manifest.parent
        for manifest in folder.rglob(MANIFEST)
        # A trace that is being written has a hidden name.
        if not any(part.startswith(".") for part in manifest.relative_to(folder).parts)
    )
    if not folders:
        return TraceData.open(folder)
    return {str(trace.relative_to(folder)): TraceData.open(trace) for trace in folders}


def cells(table: pa.Table, limit: int) -> tuple[list[str], list[list[str]], list[str]]:
    """The headings, the first rows as texts, and the headings of columns that are no numbers.

    >>> cells(pa.table({"token": ["dog", " cat"], "weight": [0.25, 1e-9]}), 10)
    (['token', 'weight'], [['dog', '0.25'], ['␣cat', '1e-09']], ['token'])
    """
    import pyarrow.types as types

    header = [visible(name) for name in table.column_names]
    words = [
        name
        for name, column in zip(header, table.columns, strict=True)
        if not (types.is_integer(column.type) or types.is_floating(column.type))
    ]
    columns = (column.to_pylist() for column in table.slice(0, limit).columns)
    rows = [[_cell(value) for value in row] for row in zip(*columns, strict=True)]
    return header, rows, words


def _cell(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, float):
        return f"{value:.6g}"
    return visible(value, 60) if isinstance(value, str) else str(value)
