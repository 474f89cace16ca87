"""Questions in SQL from a page: with a limit of time, of memory and of rows, whatever they do.

What a question may read is what `weft.analysis.sql.views` says: the views, and nothing else.

DuckDB cannot be interrupted inside of one function: `repeat('x', 2000000000)` takes most of a
minute and 4 GB. So questions are answered by a process of their own, `weft.analysis.sql.worker`,
which is killed where one takes too long.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import weakref
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from weft.analysis.sql.messages import receive, send
from weft.analysis.sql.views import view_parts
from weft.analysis.sql.worker import TOO_MUCH_MEMORY
from weft.errors import DataError, InputError
from weft.formats.files import JsonObject
from weft.formats.trace import TraceData

__all__ = ["LONGEST", "BoundedAnswer", "BoundedQueries"]

#: Characters of a query, at most.
LONGEST = 10_000
#: Seconds until the process can be asked, at most.
_START = 60.0


@dataclass(frozen=True)
class BoundedAnswer:
    """columns: their names; rows: what JSON holds; more: whether there are others besides; note: of
    what the trace holds nothing, or "".
    """

    columns: list[str]
    rows: list[list[Any]]
    more: bool
    note: str


class _StoppedError(Exception):
    """The process took longer than it may."""


class BoundedQueries:
    """Answers questions, one at a time, by a process that is kept for the next one.

    It starts when it is first needed, again after it was killed, and ends with this program,
    however that ends, or by `close`.
    """

    def __init__(self) -> None:
        self._process: _Process | None = None
        self._lock = threading.Lock()

    def ask(
        self, trace: TraceData, query: str, *, seconds: float = 5.0, rows: int = 1000
    ) -> BoundedAnswer:
        """The first rows of an answer.

        Args:
            trace: what is asked.
            query: one SELECT statement over the views of `weft.analysis.sql.views`.
            seconds: what it may take, without what is to be worked out for the view `heads`.
            rows: at most.

        Raises: InputError: the query is no SELECT, asks for what there is not, is too long, takes
        too much time, or too much memory; DuckDB is missing. DataError: the trace is damaged.
        """
        if len(query) > LONGEST:
            raise InputError(f"query: {len(query):,} characters; expected {LONGEST:,} at most.")
        with self._lock:
            process, whole = self._running(), False
            try:
                said = process.exchange({"query": query, "seconds": seconds}, seconds=seconds)
                if "problem" not in said:
                    places, tables = process.places(trace, said["asked"], said["made"])
                    said = process.exchange({**places, "rows": rows}, tables, seconds=seconds)
                whole = True
            except _StoppedError:
                raise InputError(
                    f"query: stopped after {seconds:g} s. Ask for less, or use weft query."
                ) from None
            except EOFError:
                too_much = process.ended() == TOO_MUCH_MEMORY
                why = "took more than 1 GB of memory" if too_much else "DuckDB broke off"
                raise InputError(f"query: {why}. Ask for less, or use weft query.") from None
            finally:
                if not whole:
                    process.end()
                if process.ended() is not None and self._process is process:
                    # Whoever asks next need not wait for the start.
                    with suppress(InputError):
                        self._started()
        if "problem" in said:
            raise (DataError if said["data"] else InputError)(said["problem"])
        return BoundedAnswer(said["columns"], said["rows"], said["more"], said["note"])

    def start(self) -> None:
        """Start the process, where none runs; does not wait for it.

        Raises: InputError: it cannot be started.
        """
        with self._lock:
            self._started()

    def close(self) -> None:
        """End the process, and what it works out; another question would start it again."""
        process, self._process = self._process, None
        if process is not None:
            process.end()

    def _started(self) -> _Process:
        process = self._process
        if process is None or process.ended() is not None:
            try:
                self._process = process = _Process()
            except OSError as error:
                raise InputError(
                    f"query: {sys.executable} cannot be started, which answers: {error.strerror}. "
                    "Use weft query."
                ) from None
        return process

    def _running(self) -> _Process:
        """A process that can be asked."""
        process = self._started()
        try:
            process.wait_until_ready()
        except (EOFError, _StoppedError):
            process.end()
            raise InputError(
                "query: the process that answers did not start. Ask again, or use weft query."
            ) from None
        return process


@dataclass(eq=False)
class _Process:
    """The process, and what it holds: the trace that it was last asked about, and its views."""

    _ready: bool = False
    _trace: weakref.ref[TraceData] | None = None
    _views: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        # The packages that this process finds, and none that lies in the working folder.
        paths = os.pathsep.join(path for path in sys.path if path)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "weft.analysis.sql.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": paths, "PYTHONSAFEPATH": "1"},
        )
        self._end = weakref.finalize(self, _end, self._process)

    def wait_until_ready(self) -> None:
        """Raises: InputError: DuckDB is missing; EOFError, _StoppedError: it did not start."""
        if not self._ready:
            said = self._answer(_START)
            if "problem" in said:
                self.end()
                raise InputError(said["problem"])
            self._ready = True

    def exchange(
        self, content: JsonObject, tables: tuple[Any, ...] = (), *, seconds: float
    ) -> JsonObject:
        """Send a message, and wait for what is said to it.

        Raises: _StoppedError: it took longer, and the process is killed; EOFError: it has ended.
        """
        assert self._process.stdin is not None
        try:
            send(self._process.stdin, content, tables)
        except BrokenPipeError:
            raise EOFError from None
        return self._answer(seconds)

    def places(
        self, trace: TraceData, asked: list[str], made: list[str]
    ) -> tuple[JsonObject, tuple[Any, ...]]:
        """Where the views lie that the process does not know yet: a message, and its tables."""
        fresh = self._trace is None or self._trace() is not trace
        if fresh:
            self._trace, self._views = weakref.ref(trace), set()
        wanted = {"tokens", "layers", *made} - self._views
        parts = view_parts(trace, set(asked), wanted)
        new = {view: part.data for view, (part,) in parts.items() if view not in self._views}
        self._views |= set(new)
        views = {view: data if isinstance(data, str) else None for view, data in new.items()}
        tables = tuple(data for data in new.values() if not isinstance(data, str))
        return {"fresh": fresh, "views": views}, tables

    def ended(self) -> int | None:
        """How it ended; None: it runs."""
        return self._process.poll()

    def end(self) -> None:
        """Kill it."""
        self._end()

    def _answer(self, seconds: float) -> JsonObject:
        """What the process says, within some seconds."""
        over = threading.Event()

        def stop() -> None:
            over.set()
            self._process.kill()

        timer = threading.Timer(seconds, stop)
        timer.daemon = True
        timer.start()
        try:
            assert self._process.stdout is not None
            said, _ = receive(self._process.stdout)
        except EOFError:
            self.end()
            if over.is_set():
                raise _StoppedError from None
            raise
        finally:
            timer.cancel()
            timer.join()
        if over.is_set():  # as the answer came
            self.end()
            raise _StoppedError
        return said


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        with suppress(BrokenPipeError):  # of a message that it has not read
            if stream is not None:
                stream.close()
