"""The process that answers questions in SQL for `weft.analysis.sql.bounded`, and can be killed.

    python -m weft.analysis.sql.worker

It reads from standard input and writes to standard output what `weft.analysis.sql.messages` says:

    {"ready"}                             from here, once it can be asked
    {"query", "seconds"}                  a question
    {"asked"}                             from here: the views that it needs
    {"fresh", "views", "rows"}, tables    where they lie, by name: a path, or null and the next
                                          table; fresh: those of earlier questions are another
                                          trace's
    {"columns", "rows", "more"}           from here: the answer
    {"problem", "data"}                   from here, in place of any: why there is none; data: a
                                          DataError

It ends where standard input does, so with the process that started it, in whatever way that ends.
"""

from __future__ import annotations

import faulthandler
import math
import mmap
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, TextIO

import pyarrow as pa

from weft.analysis.sql.answer import Answer
from weft.analysis.sql.database import (
    VIEWS,
    Part,
    connect,
    made_without,
    make_views,
    one_line,
    reader_of,
    statement_of,
    views_in,
)
from weft.analysis.sql.messages import receive, send
from weft.errors import DataError, WeftError
from weft.formats.files import JsonObject
from weft.formats.tokens import visible

__all__ = ["TOO_MUCH_MEMORY", "main"]

#: What DuckDB may take; and bytes of the process, besides the tables that it was given.
_MEMORY, _PROCESS = "512MB", 1 << 30
#: Characters of a cell, at most.
_CELL = 500
#: How a process ends that took more memory than that.
TOO_MUCH_MEMORY = 77
#: Seconds that a question may take beyond its own, in a process that nobody is left to kill.
_ALONE = 2.0

_STATM = Path("/proc/self/statm")
_Message = tuple[JsonObject, list[pa.Table]]


@dataclass(eq=False)
class _Worker:
    """answers: where they go; messages: what came; nowhere: a file that keeps nothing."""

    answers: IO[bytes]
    messages: queue.SimpleQueue[_Message]
    nowhere: TextIO
    views: dict[str, list[Part]] = field(default_factory=dict)
    #: Of the tables that it was given, at most so far.
    held: int = 0
    busy: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Answer questions until the process ends."""
        try:
            connection = connect(_MEMORY)
        except WeftError as error:
            send(self.answers, {"problem": str(error), "data": False})
            return
        # The first table of a process takes long: DuckDB looks for libraries.
        connection.register("first", pa.table({"one": [1]}))
        connection.unregister("first")
        send(self.answers, {"ready": True})
        while True:
            question, _ = self.messages.get()
            send(self.answers, self._answered(connection, question))
            connection.close()
            # To connect takes longer than most answers, so it is done before the next question.
            connection = connect(_MEMORY)

    def _answered(self, connection: Any, question: JsonObject) -> JsonObject:
        try:
            return self._answer(connection, question["query"], question["seconds"])
        except WeftError as error:
            return {"problem": str(error), "data": isinstance(error, DataError)}
        except Exception as error:  # as of a date that Python does not know, or for want of memory
            said = visible(f"{type(error).__name__}: {error}".rstrip(" :."), _CELL)
            return {"problem": f"query: {said}. Ask for less, or for other columns.", "data": False}

    def _answer(self, connection: Any, query: str, seconds: float) -> JsonObject:
        with self._bounded(seconds):
            statement = statement_of(connection, query)
            asked = views_in(connection, query)
            # Functions of DuckDB take the names of views as texts, and `show tables` takes none.
            named = {view for view in VIEWS if view in query.lower()} - {"heads"}
            made = {"edges", *asked, *named} if "named" in named else asked | named
        send(self.answers, {"asked": sorted(asked), "made": sorted(made) or list(VIEWS)})
        places, tables = self.messages.get()
        self._take(places, tables)
        with self._bounded(seconds), one_line():
            make_views(connection, self.views, column=False)
            reader = reader_of(connection, statement)
            note = made_without(self.views, asked)
            return {**_first(Answer(reader, connection), places["rows"]), "note": note}

    def _take(self, places: JsonObject, tables: list[pa.Table]) -> None:
        """Note where views lie."""
        if places["fresh"]:
            self.views.clear()
        given = iter(tables)
        for view, path in places["views"].items():
            self.views[view] = [Part(None, next(given) if path is None else path)]
        datas = [part.data for parts in self.views.values() for part in parts]
        held = sum(data.nbytes for data in datas if isinstance(data, pa.Table))
        self.held = max(self.held, held)

    @contextmanager
    def _bounded(self, seconds: float) -> Iterator[None]:
        """Watches memory meanwhile; and time, in case that whoever asked has been killed."""
        # A thread of C, which ends the process though a library holds Python's lock.
        faulthandler.dump_traceback_later(seconds + _ALONE, file=self.nowhere, exit=True)
        self.busy.set()
        try:
            yield
        finally:
            self.busy.clear()
            faulthandler.cancel_dump_traceback_later()

    def watch(self) -> None:
        """End the process where it takes too much memory. DuckDB's own limit is not that of all
        that its functions take.
        """
        while True:
            self.busy.wait()
            if _resident() > _PROCESS + self.held:
                os._exit(TOO_MUCH_MEMORY)
            time.sleep(0.01)


def _resident() -> int:
    """Bytes of memory that this process has; on macOS, that it had at most; on Windows, 0."""
    if _STATM.exists():
        # Not the most so far, which begins with that of the program that started this process.
        return int(_STATM.read_text("ascii").split()[1]) * mmap.PAGESIZE
    try:
        import resource
    except ImportError:
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _first(answer: Answer, rows: int) -> JsonObject:
    """The first rows of an answer."""
    found: list[list[Any]] = []
    for batch in answer.batches():
        part = batch.slice(0, rows + 1 - len(found))
        found += [[_cell(row[name]) for name in batch.schema.names] for row in part.to_pylist()]
        if len(found) > rows:
            break
    return {"columns": answer.columns, "rows": found[:rows], "more": len(found) > rows}


def _cell(value: Any) -> Any:
    """What JSON holds of a cell: numbers as they are, all else as a text that is not too long.

    Of numbers that JSON has not, the text is that of CSV: nan, inf, -inf.
    """
    if value is None or isinstance(value, bool | int):
        return value if value is None or abs(value) < 2**53 else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return visible(str(value), _CELL)


def _read(messages: queue.SimpleQueue[_Message]) -> None:
    """Take in messages; end the process where there are no more, whatever it is doing."""
    try:
        while True:
            messages.put(receive(sys.stdin.buffer))
    finally:
        os._exit(0)


def main() -> None:
    """Answer questions until standard input ends."""
    # Ctrl-C is meant for the program that asks.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # What a library prints must not come between the messages.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    messages: queue.SimpleQueue[_Message] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(messages,), daemon=True).start()
    with answers, Path(os.devnull).open("w", encoding="ascii") as nowhere:
        worker = _Worker(answers, messages, nowhere)
        threading.Thread(target=worker.watch, daemon=True).start()
        worker.run()


if __name__ == "__main__":
    main()
