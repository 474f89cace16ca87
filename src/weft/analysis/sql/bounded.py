"""A question in SQL from a page: with a limit of time, of memory and of rows.

What it may read is what `weft.analysis.sql.views` says: the views, and nothing else.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from weft.analysis.sql.query import ask
from weft.errors import InputError
from weft.formats.files import finite
from weft.formats.tokens import visible
from weft.formats.trace import TraceData

__all__ = ["LONGEST", "QUESTIONS", "BoundedAnswer", "ask_bounded"]

#: Characters of a query, and of a cell, at most.
LONGEST = 10_000
_CELL = 500
_MEMORY = "512MB"

#: Questions that fit every trace: what each asks, and its SQL.
QUESTIONS = (
    ("The strongest edges between different tokens",
     "select layer, head, query_token, key_token, round(weight, 3) as weight\n"
     "from named where query <> key order by weight desc limit 20"),
    ("The keys that get most, over all heads",
     "select key_token, key, round(sum(weight), 2) as received\n"
     "from named group by all order by received desc limit 20"),
    ("The sharpest heads: least entropy",
     "select layer, head, round(avg(entropy), 3) as nats\n"
     "from rows group by all order by nats limit 20"),
    ("The broadest heads: most entropy",
     "select layer, head, round(avg(entropy), 3) as nats\n"
     "from rows group by all order by nats desc limit 20"),
    ("How far each head looks back",
     "select layer, head, round(sum(weight * (query - key)) / sum(weight), 2) as tokens_back\n"
     "from edges group by all order by tokens_back desc limit 20"),
    ("What the first key gets, by head",
     "select layer, head, round(sum(weight) / count(distinct query), 3) as share\n"
     "from edges where key = 0 group by all order by share desc limit 20"),
    ("What the token before gets, by head",
     "select layer, head, round(avg(weight), 3) as weight\n"
     "from edges where key = query - 1 group by all order by weight desc limit 20"),
    ("Pairs of tokens that look at each other",
     "select a.layer, a.head, a.query, a.key, round(a.weight, 3) as there,\n"
     "    round(b.weight, 3) as back\n"
     "from edges a join edges b on a.layer = b.layer and a.head = b.head\n"
     "    and a.query = b.key and a.key = b.query and a.query < a.key\n"
     "order by least(a.weight, b.weight) desc limit 20"),
    ("Roles: how many heads have each",
     "select role, count(*) as heads from heads group by role order by heads desc"),
    ("What the kept edges leave out, by layer",
     "select layer, round(avg(rest), 4) as left_out from rows group by layer order by layer"),
)  # fmt: skip


@dataclass(frozen=True)
class BoundedAnswer:
    """columns: their names; rows: what JSON holds; more: whether there are others besides."""

    columns: list[str]
    rows: list[list[Any]]
    more: bool


def ask_bounded(
    trace: TraceData | Mapping[str, TraceData],
    query: str,
    *,
    seconds: float = 5.0,
    rows: int = 1000,
) -> BoundedAnswer:
    """The first rows of an answer.

    Raises: InputError: as `weft.analysis.sql.query.ask`; or the query is too long, takes too much
    time, or too much memory.
    """
    if len(query) > LONGEST:
        raise InputError(f"query: {len(query):,} characters; expected {LONGEST:,} at most.")
    limit = _Limit(seconds)
    found: list[list[Any]] = []
    with limit.explained():
        answer = ask(trace, query, memory=_MEMORY, begun=limit.begin)
        for batch in answer.batches():
            part = batch.slice(0, rows + 1 - len(found))
            found += [[_cell(row[name]) for name in batch.schema.names] for row in part.to_pylist()]
            if len(found) > rows:
                break
        return BoundedAnswer(answer.columns, found[:rows], len(found) > rows)


class _Limit:
    """Interrupts a query after a while, again and again until it has ended."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._ended, self._over = threading.Event(), False

    def begin(self, connection: Any) -> None:
        """The time runs from here."""
        threading.Thread(target=self._watch, args=(connection,), daemon=True).start()

    def _watch(self, connection: Any) -> None:
        if self._ended.wait(self._seconds):
            return
        self._over = True
        while not self._ended.wait(0.05):
            connection.interrupt()

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Says that the time was over, where it was."""
        try:
            yield
        except Exception as error:
            if self._over:
                raise InputError(
                    f"query: stopped after {self._seconds:g} s. Ask for less, or use weft query."
                ) from error
            raise
        finally:
            self._ended.set()


def _cell(value: Any) -> Any:
    """What JSON holds of a cell: numbers as they are, all else as a text that is not too long."""
    if value is None or isinstance(value, bool | int):
        return value if value is None or abs(value) < 2**53 else str(value)
    if isinstance(value, float):
        return finite(value)
    return visible(str(value), _CELL)
