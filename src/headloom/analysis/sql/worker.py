"""The process that answers one question in SQL for `headloom.analysis.sql.bounded`.

    python -m headloom.analysis.sql.worker

It reads one JSON object from standard input: query, seconds, rows, and views, a Parquet file by the
name of each. It writes one: columns, rows, and whether there are more; or the problem, and whether
it is a DataError.
"""

from __future__ import annotations

import faulthandler
import json
import math
import mmap
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from headloom.analysis.sql.answer import Answer
from headloom.analysis.sql.database import (
    Part,
    connect,
    make_views,
    one_line,
    reader_of,
    statement_of,
)
from headloom.errors import DataError, HeadloomError
from headloom.formats.files import JsonObject
from headloom.formats.tokens import visible

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection as Connection

__all__ = ["TOO_LONG", "TOO_MUCH", "main"]

#: What DuckDB may take; and bytes of the process, with the tables that it reads.
_MEMORY, _PROCESS = "512MB", 3 << 29
#: Characters of a cell, at most.
_CELL = 500
#: How the process ends that took too long: `faulthandler` chooses no other number.
TOO_LONG = 1
#: How it ends that took too much memory.
TOO_MUCH = 77

_STATM = Path("/proc/self/statm")


def _answer(connection: Connection, request: JsonObject) -> JsonObject:
    views = {view: [Part(None, path)] for view, path in request["views"].items()}
    with one_line():
        statement = statement_of(connection, request["query"])
        make_views(connection, views, column=False)
        answer = Answer(reader_of(connection, statement), connection)
        rows: list[list[object]] = []
        limit = request["rows"]
        for batch in answer.batches():
            part = batch.slice(0, limit + 1 - len(rows))
            rows += [[_cell(row[name]) for name in batch.schema.names] for row in part.to_pylist()]
            if len(rows) > limit:
                break
        return {"columns": answer.columns, "rows": rows[:limit], "more": len(rows) > limit}


def _cell(value: object) -> object:
    """What JSON holds of a cell: numbers as they are, all else as a text that is not too long.

    Of numbers that JSON has not, the text is that of CSV: nan, inf, -inf.
    """
    if value is None or isinstance(value, bool | int):
        return value if value is None or abs(value) < 2**53 else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return visible(str(value), _CELL)


def _watch_memory() -> None:
    """End the process where it takes too much memory: where the system says so, on Linux.

    DuckDB's own limit does not count what its functions take.
    """
    while _STATM.exists():
        if int(_STATM.read_text("ascii").split()[1]) * mmap.PAGESIZE > _PROCESS:
            os._exit(TOO_MUCH)
        time.sleep(0.01)


def main() -> None:
    """Answer the question on standard input."""
    # Ctrl-C is meant for the program that asks.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # What a library prints must not come before the answer.
    output = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)
    request = json.load(sys.stdin)
    connection = connect(_MEMORY)
    threading.Thread(target=_watch_memory, daemon=True).start()
    with output, Path(os.devnull).open("w", encoding="ascii") as nowhere:
        # A thread of C, which ends the process though a library holds Python's lock.
        faulthandler.dump_traceback_later(request["seconds"], file=nowhere, exit=True)
        try:
            answer = _answer(connection, request)
        except HeadloomError as error:
            answer = {"problem": str(error), "data": isinstance(error, DataError)}
        except Exception as error:  # as of a date that Python does not know, or for want of memory
            text = visible(f"{type(error).__name__}: {error}".rstrip(" :."), _CELL)
            problem = f"query: {text}. Ask for less, or for other columns."
            answer = {"problem": problem, "data": False}
        faulthandler.cancel_dump_traceback_later()
        json.dump(answer, output, allow_nan=False)


if __name__ == "__main__":
    main()
