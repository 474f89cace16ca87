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

from headloom.analysis.sql.database import connect
from headloom.analysis.sql.views import view_parts, views_in
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

    columns: their names; rows: what JSON holds; more: whether there are others besides.
    """

    columns: list[str]
    rows: list[list[object]]
    more: bool


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
    parts = view_parts(trace, views_in(connect(), query))
    with TemporaryDirectory() as folder:
        views = {}
        for view, (part,) in parts.items():
            views[view] = part.data
            if isinstance(part.data, pa.Table):
                views[view] = str(Path(folder) / f"{view}.parquet")
                pq.write_table(part.data, views[view], compression="none")
        answer = _answer({"query": query, "views": views, "seconds": seconds, "rows": rows})
    if "problem" in answer:
        raise (DataError if answer["data"] else InputError)(answer["problem"])
    return BoundedAnswer(**answer)


def _answer(request: JsonObject) -> JsonObject:
    # The packages that this process finds, and none that lies in the working folder.
    paths = os.pathsep.join(path for path in sys.path if path)
    seconds: float = request["seconds"]
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "headloom.analysis.sql.worker"],
            input=json.dumps(request).encode("ascii"),
            capture_output=True,
            env={**os.environ, "PYTHONPATH": paths},
            timeout=_START + seconds,
            check=False,
            start_new_session=True,  # Ctrl-C is meant for the program that asks
        )
    except subprocess.TimeoutExpired:
        done = subprocess.CompletedProcess([], 1)
    if done.returncode == 1:
        raise InputError(
            f"query: stopped after {seconds:g} s. Ask for less, or use headloom query."
        )
    if done.returncode or not done.stdout:
        raise InputError(
            "query: DuckDB broke off, for want of memory perhaps. Ask for less, or use headloom "
            "query."
        )
    answer: JsonObject = json.loads(done.stdout.splitlines()[-1])
    return answer
