"""Questions to traces in SQL: to one, or to a folder of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from headloom.analysis.sql.database import Answer, answered, connect
from headloom.analysis.sql.views import view_parts, views_in
from headloom.errors import optional_package
from headloom.formats.manifest import MANIFEST
from headloom.formats.trace import TraceData

if TYPE_CHECKING:
    import pandas


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
    connection = connect()
    parts = view_parts(trace, views_in(connection, query))
    return answered(connection, query, parts, column=not isinstance(trace, TraceData))


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
