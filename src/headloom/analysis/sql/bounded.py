"""Questions in SQL from a page: with limits of time, memory and rows, whatever they do.

A question reads the views of `headloom.analysis.sql.views`, and nothing else. DuckDB cannot be
interrupted inside of one function: `repeat('x', 2000000000)` takes most of a minute and 4 GB. So a
process of its own, `headloom.analysis.sql.worker`, answers each question, and ends where it takes
too much.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq

from headloom.analysis.sql.database import VIEWS, connect, made_without, statement_of, views_in
from headloom.analysis.sql.views import view_parts
from headloom.analysis.sql.worker import TOO_LONG, TOO_MUCH
from headloom.errors import DataError, InputError
from headloom.formats.files import JsonObject
from headloom.formats.trace import TraceData

__all__ = ["LONGEST", "BoundedAnswer", "ask_bounded"]

#: Characters of a query, at most.
LONGEST = 10_000
#: Seconds that the process may take to start, on a busy machine.
_START = 60.0


@dataclass(frozen=True)
class BoundedAnswer:
    """The first rows of an answer.

    columns: their names; rows: what JSON holds; more: whether there are others besides; note: which
    views the trace has nothing for, or "".
    """

    columns: list[str]
    rows: list[list[object]]
    more: bool
    note: str


def ask_bounded(
    trace: TraceData, query: str, *, seconds: float = 5.0, rows: int = 1000
) -> BoundedAnswer:
    """Answer a question, in a process that ends where it takes too long.

    Args:
        trace: what is asked.
        query: one SELECT statement over the views of `headloom.analysis.sql.views`.
        seconds: what it may take, without what is to be computed for the view `heads`.
        rows: at most.

    Raises: InputError: the query is no SELECT, asks for what there is not, is too long, takes
    too much time, or too much memory; DuckDB is missing. DataError: the trace is damaged.
    """
    if len(query) > LONGEST:
        raise InputError(f"query: {len(query):,} characters; expected {LONGEST:,} at most.")
    connection = connect()
    statement_of(connection, query)
    asked = views_in(connection, query)
    # Functions of DuckDB take the names of views as texts, and `show tables` takes none.
    wanted = asked | ({view for view in VIEWS if view in query.lower()} - {"heads"})
    wanted |= {"edges"} if "named" in wanted else set()
    parts = view_parts(trace, asked, {"tokens", "layers", *(wanted or VIEWS)})
    with TemporaryDirectory() as folder:
        views = {}
        for view, (part,) in parts.items():
            views[view] = part.data
            if isinstance(part.data, pa.Table):
                views[view] = str(Path(folder) / f"{view}.parquet")
                pq.write_table(part.data, views[view], compression="none")
        request = {"query": query, "views": views, "seconds": seconds, "rows": rows}
        answer = _answered(request, seconds)
    if "problem" in answer:
        raise (DataError if answer["data"] else InputError)(answer["problem"])
    return BoundedAnswer(**answer, note=made_without(parts, asked))


def _answered(request: JsonObject, seconds: float) -> JsonObject:
    """What the process answers to a request."""
    # The packages that this process finds, and none that lies in the working folder.
    paths = os.pathsep.join(path for path in sys.path if path)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "headloom.analysis.sql.worker"],
            input=json.dumps(request).encode("ascii"),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": paths, "PYTHONSAFEPATH": "1"},
            timeout=_START + seconds,
            check=False,
        )
    except OSError as error:
        raise InputError(
            f"query: {sys.executable} cannot be started: {error.strerror}. Use headloom query."
        ) from None
    except subprocess.TimeoutExpired:
        done = subprocess.CompletedProcess([], TOO_LONG, b"")
    if done.returncode == TOO_LONG:
        raise InputError(
            f"query: stopped after {seconds:g} s. Ask for less, or use headloom query."
        )
    if done.returncode or not done.stdout:
        why = "took too much memory" if done.returncode == TOO_MUCH else "DuckDB broke off"
        raise InputError(f"query: {why}. Ask for less, or use headloom query.")
    answer: JsonObject = json.loads(done.stdout)
    return answer
