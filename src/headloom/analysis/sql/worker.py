"""The process that answers one question in SQL for `headloom.analysis.sql.bounded`.

    python -m headloom.analysis.sql.worker

It reads one JSON object from standard input: query, seconds, rows, and views, a Parquet file by the
name of each. It writes one, its last line: columns, rows, and whether there are more; or the
problem, and whether it is a DataError.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import math
import os
import sys
from pathlib import Path

import pyarrow as pa

from headloom.analysis.sql.database import Part, answered, connect
from headloom.errors import DataError, HeadloomError
from headloom.formats.files import JsonObject
from headloom.formats.tokens import visible

__all__ = ["main"]

#: What DuckDB may take; and bytes of the process, since that does not count what functions take.
_MEMORY, _PROCESS = "512MB", 3 << 29
#: Characters of a cell, at most.
_CELL = 500


def _answer(request: JsonObject) -> JsonObject:
    views = {view: [Part(None, path)] for view, path in request["views"].items()}
    answer = answered(connect(_MEMORY), request["query"], views, column=False)
    rows: list[list[object]] = []
    limit = request["rows"]
    for batch in answer.batches():
        part = batch.slice(0, limit + 1 - len(rows))
        rows += [[_cell(row[name]) for name in batch.schema.names] for row in part.to_pylist()]
        if len(rows) > limit:
            break
    return {"columns": answer.columns, "rows": rows[:limit], "more": len(rows) > limit}


def _cell(value: object) -> object:
    """What JSON holds of a cell: numbers as they are, all else as a text that is not too long."""
    if value is None or isinstance(value, bool | int):
        return value if value is None or abs(value) < 2**53 else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return visible(str(value), _CELL)


def main() -> None:
    """Answer the question on standard input."""
    request = json.load(sys.stdin)
    with contextlib.suppress(ImportError):  # of Windows
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (_PROCESS, _PROCESS))
    pa.set_cpu_count(1)  # the stack of each thread counts
    with Path(os.devnull).open("w", encoding="ascii") as nowhere:
        # A thread of C, which ends the process, with 1, though a library holds Python's lock.
        faulthandler.dump_traceback_later(request["seconds"], file=nowhere, exit=True)
        try:
            answer = _answer(request)
        except HeadloomError as error:
            answer = {"problem": str(error), "data": isinstance(error, DataError)}
        except Exception as error:  # as of a date that Python does not know, or for want of memory
            text = visible(f"{type(error).__name__}: {error}".rstrip(" :."), _CELL)
            problem = f"query: {text}. Ask for less, or for other columns."
            answer = {"problem": problem, "data": False}
        faulthandler.cancel_dump_traceback_later()
    print("\n" + json.dumps(answer, allow_nan=False))


if __name__ == "__main__":
    main()
