"""`headloom.query`: SQL queries over a trace, or a folder of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import overload

import pandas
import pyarrow.types as types

from headloom.analysis.sql.database import Answer, answered, connect
from headloom.analysis.sql.views import view_parts, views_in
from headloom.formats.manifest import MANIFEST
from headloom.formats.trace import TraceData

#: A trace; several by name, then every view has a column `trace`; or a path of these.
Asked = TraceData | Mapping[str, TraceData] | Path | str


@overload
def query(x: Asked, sql: str, *, output: None = None) -> pandas.DataFrame: ...
@overload
def query(x: Asked, sql: str, *, output: Path | str) -> int: ...
def query(x: Asked, sql: str, *, output: Path | str | None = None) -> pandas.DataFrame | int:
    """Query traces in SQL.

    Args:
        x: a trace, or its path; several by name, or a folder of them, then every view has a column
            `trace`.
        sql: one SELECT statement over the views edges, rows, keys, received, tokens, layers, heads,
            named: see `headloom.analysis.sql.views`.
        output: a .csv, .parquet or .json file for the answer, written as it is computed.

    Returns: the answer; with an output, the number of rows written.

    Raises: InputError: the query is not a SELECT, or uses unknown names; DuckDB is missing.
    DataError: no trace, or a damaged one.

    >>> import headloom, torch
    >>> weights = torch.tensor([[[0.5, 0.5], [0.25, 0.75]]])
    >>> trace = headloom.from_weights(weights, tokens=["a", "b"])
    >>> headloom.query(trace, "select max(weight) as most from edges")["most"].item()
    0.75
    """
    answer = ask(open_traces(x) if isinstance(x, str | Path) else x, sql)
    if output is not None:
        return answer.write(output)
    table = answer.table()
    frame: pandas.DataFrame = table.to_pandas()
    for name, column in zip(table.column_names, table.columns, strict=True):
        if column.null_count and types.is_integer(column.type):  # would become float
            frame[name] = pandas.array(column.to_pylist(), "Int64")
    return frame


def ask(trace: TraceData | Mapping[str, TraceData], query: str) -> Answer:
    """Query a trace in SQL.

    Args:
        trace: one; or several by name, then every view has a column `trace`.
        query: one SELECT statement over the views of `headloom.analysis.sql.views`.

    Returns: the answer, computed while it is read.

    Raises: InputError: the query is not a SELECT, or uses unknown names; DuckDB is missing.
    """
    connection = connect()
    parts = view_parts(trace, views_in(connection, query))
    return answered(connection, query, parts, column=not isinstance(trace, TraceData))


def open_traces(path: Path | str) -> TraceData | dict[str, TraceData]:
    """Open a trace; or all traces of a folder, at any depth, by their paths in it.

    Raises: DataError: no trace, or a damaged one.
    """
    folder = Path(path)
    if (folder / MANIFEST).exists() or not folder.is_dir():
        return TraceData.open(folder)
    folders = sorted(
        manifest.parent
        for manifest in folder.rglob(MANIFEST)
        # An unfinished trace has a hidden name.
        if not any(part.startswith(".") for part in manifest.relative_to(folder).parts)
    )
    if not folders:
        return TraceData.open(folder)
    return {str(trace.relative_to(folder)): TraceData.open(trace) for trace in folders}
