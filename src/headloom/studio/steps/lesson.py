"""A lesson as data: steps with sentences and tables, which text and pictures render."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

__all__ = ["Ledger", "Lesson", "Row", "Step", "Table", "number", "shortened"]


@dataclass(frozen=True, eq=False)
class Table:
    """A matrix with its name.

    name: above it. values: (rows, columns); (heads, rows, columns) of a table of every head.
    rows, columns: tokens beside and above; empty: the numbers have no names.
    kind: "numbers", "scores" (minus infinity is hidden) or "weights" (0 to 1).
    before: the sign between the table before and this one, as "+" or "=".
    """

    name: str
    values: Tensor
    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    kind: Literal["numbers", "scores", "weights"] = "numbers"
    before: str = ""


#: Tables side by side.
Row = tuple[Table, ...]


@dataclass(frozen=True)
class Ledger:
    """Sums written out, a line each; the last line is the result.

    header: names of the columns. lines: cells; the first one is a token.
    left: how many columns begin on the left.
    split: the column from which cells go to a second line, where there is no room for one.
    """

    header: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]
    left: int = 2
    split: int = 2


@dataclass(frozen=True)
class Step:
    """A step of a lesson.

    number: of the six steps; None: what comes before and after them.
    formula: as the paper writes it; shapes: of its parts.
    sentence: what happens, plainly.
    rows, ledgers: what is shown. result: the line at its end; "": none.
    """

    number: int | None
    name: str
    formula: str
    shapes: str
    sentence: str
    rows: tuple[Row, ...] = ()
    ledgers: tuple[Ledger, ...] = ()
    result: str = ""

    @property
    def title(self) -> str:
        """Its name, after its number where it is one of the six."""
        return self.name if self.number is None else f"{self.number}. {self.name}"


@dataclass(frozen=True)
class Lesson:
    """All that is shown. about: lines below the title; digits: decimals of every number."""

    title: str
    about: tuple[str, ...]
    steps: tuple[Step, ...]
    digits: int = 2


def shortened(count: int, most: int) -> list[int | None]:
    """Places of so many rows or columns at most; None stands for those left out before the last.

    >>> shortened(3, 4), shortened(9, 4)
    ([0, 1, 2], [0, 1, 2, None, 8])
    """
    return [*range(count)] if count <= most else [*range(most - 1), None, count - 1]


def number(value: float, digits: int) -> str:
    """A number with so many decimals; never "-0.00".

    >>> number(-0.001, 2), number(2.5, 2), number(float("-inf"), 2)
    ('0.00', '2.50', '−∞')
    """
    if value == float("-inf"):
        return "−∞"
    text = f"{value:.{digits}f}"
    return text.removeprefix("-") if not text.strip("-0.") else text
