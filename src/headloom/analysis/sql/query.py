"""Questions to traces in SQL: to one, or to a folder of them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from headloom.analysis.arguments import check_text, check_trace
from headloom.analysis.sql.answer import Answer
from headloom.analysis.sql.database import (
    connect,
    made_without,
    make_views,
    one_line,
    reader_of,
    statement_of,
    views_in,
)
from headloom.analysis.sql.views import view_parts
from headloom.errors import optional_package
from headloom.formats.trace import TraceData
from headloom.formats.trace_writer import MANIFEST
from headloom.mechanism.shapes import check_type

if TYPE_CHECKING:
    import pandas

__all__ = ["ask", "open_traces", "sql"]


def sql(trace: TraceData | Mapping[str, TraceData], query: str) -> pandas.DataFrame:
    """The answer to a query as a DataFrame.

    Takes what `ask` takes.

    Raises: InputError: the query is none, or asks for what there is not; pandas is missing.
    """
    with optional_package("sql"):
        import pandas  # noqa: F401
    frame: pandas.DataFrame = ask(trace, query).table().to_pandas()
    return frame


def ask(trace: TraceData | Mapping[str, TraceData], query: str) -> Answer:
    """Ask a trace a question in SQL.

    Args:
        trace: one; or several by name, and then every view has a column `trace`.
        query: one SELECT statement over the views of `headloom.analysis.sql.views`.

    Returns: the answer, which is computed while it is read.

    Raises: InputError: the query is no SELECT, or asks for what there is not; DuckDB is missing.
    """
    if isinstance(trace, Mapping):
        for name, one in trace.items():
            check_text("query", "the name of a trace", name)
            check_trace("query", one, f"{name!r}")
    else:
        check_trace("query", trace)
    check_text("query", "the query", query, 'a text, as "select * from layers"')
    connection = connect()
    statement = statement_of(connection, query)
    with one_line():
        asked = views_in(connection, query)
        parts = view_parts(trace, asked)
        make_views(connection, parts, column=not isinstance(trace, TraceData))
        return Answer(reader_of(connection, statement), connection, made_without(parts, asked))


def open_traces(path: Path | str) -> TraceData | dict[str, TraceData]:
    """A trace; or, of a folder that holds traces at any depth, all of them by their paths in it.

    Raises: DataError: there is none, or one is damaged.
    """
    check_type("open", "the path", path, str | os.PathLike, "that of a trace, as 't.loom'")
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
