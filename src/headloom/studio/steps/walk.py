"""A walk as data: every matrix of attention on one sentence, and what of it is shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Self

from torch import Tensor

from headloom.errors import InputError
from headloom.formats.tokens import visible
from headloom.mechanism.multihead import LayerKind as Kind
from headloom.studio.steps.lesson import Row, Table
from headloom.studio.steps.matrices import Words
from headloom.studio.steps.worked import Worked
from headloom.studio.steps.worked_back import Learned

__all__ = ["Kind", "Walk", "shape_of"]

#: Heads whose tables all are shown.
_FEW = 2


@dataclass(frozen=True, eq=False)
class Walk(Worked):
    """Multi-head attention on a short sentence, worked through; every matrix is an attribute.

    kind        "encoder", "decoder" or "cross"
    queries     the words that look, with their vectors; keys: those that are looked at
    origin      where the matrices come from, in words
    query       the position that is also worked through alone
    shown       the heads whose tables are shown; query is worked through in the first
    digits      decimals that are shown; everything is computed in float64
    learned     what gradient descent made of the matrices; None: they did not learn
    wish        what the output should be, as a sentence, where they did
    """

    kind: Kind
    queries: Words
    keys: Words
    origin: str
    query: int
    shown: tuple[int, ...]
    digits: int = 2
    learned: Learned | None = None
    wish: str = ""

    @classmethod
    def of(
        cls,
        worked: Worked,
        kind: Kind,
        queries: Words,
        keys: Words,
        origin: str,
        *,
        query: str | int | None = None,
        head: int | None = None,
        digits: int = 2,
        learned: Learned | None = None,
        wish: str = "",
    ) -> Self:
        """What was worked through, with the words and what of them is shown.

        query: a word, or its number; None: the last. head: None: both of two, else head 0.
        Raises: InputError: no such head or word.
        """
        heads = len(worked.Z)
        if head is not None and not 0 <= head < heads:
            raise InputError(f"head {head}: there are heads 0 to {heads - 1}.")
        shown = range(heads) if head is None and heads <= _FEW else (head or 0,)
        matrices = {field.name: getattr(worked, field.name) for field in fields(Worked)}
        return cls(
            **matrices, kind=kind, queries=queries, keys=keys, origin=origin,
            query=_place_of(query, queries.tokens), shown=tuple(shown), digits=digits,
            learned=learned, wish=wish,
        )  # fmt: skip

    @property
    def W_Q(self) -> Tensor:  # noqa: N802
        """(heads, width, depth)."""
        return self.projections.W_Q

    @property
    def W_K(self) -> Tensor:  # noqa: N802
        """(heads, width, depth)."""
        return self.projections.W_K

    @property
    def W_V(self) -> Tensor:  # noqa: N802
        """(heads, width, depth)."""
        return self.projections.W_V

    @property
    def W_O(self) -> Tensor:  # noqa: N802
        """(heads * depth, width)."""
        return self.projections.W_O

    @property
    def names(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Tokens of queries and of keys as they are shown."""
        return self.queries.shown, self.keys.shown

    def by_head(self, *tables: Table) -> tuple[Row, ...]:
        """Tables of every head as a row of tables for each head that is shown."""
        return tuple(
            tuple(
                replace(
                    table,
                    name=self.named(table.name, head),
                    values=table.values[head],
                )
                for table in tables
            )
            for head in self.shown
        )

    def side_by_side(self, *tables: Table) -> tuple[Row, ...]:
        """Likewise, the tables of all heads in one row."""
        return (tuple(table for row in self.by_head(*tables) for table in row),)

    def named(self, name: str, head: int) -> str:
        """The name of a table, with its head where there are several."""
        return f"{name}, head {head}" if name and len(self.Z) > 1 else name


def shape_of(matrix: Tensor) -> str:
    """As a person writes it: (3×4)."""
    return f"({matrix.shape[0]}×{matrix.shape[1]})"


def _place_of(query: str | int | None, tokens: Sequence[str]) -> int:
    """The position of a word, or of its number; None: the last.

    >>> _place_of("cat", ("the", " cat")), _place_of(-2, ("the", "cat")), _place_of("0", ("a", "b"))
    (1, 0, 0)
    """
    if query is None:
        return len(tokens) - 1
    for words in (list(tokens), [token.strip() for token in tokens]):
        if query in words:
            return words.index(str(query))
    try:
        place = int(query)
    except ValueError:
        listed = ", ".join(map(partial(visible, limit=12), tokens[:12]))
        raise InputError(
            f"query {query!r}: not among the words that look: {listed}"
            f"{', ...' * (len(tokens) > 12)}. Give one of them, or its number, 0 to "
            f"{len(tokens) - 1}."
        ) from None
    if not -len(tokens) <= place < len(tokens):
        raise InputError(f"query {place}: there are words 0 to {len(tokens) - 1}.")
    return place % len(tokens)
