"""What a step shows: tables of numbers, sums written out, and the sentence about them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

__all__ = ["Ledger", "Line", "Product", "Row", "Span", "Step", "Table", "TableKind", "number"]


TableKind = Literal["numbers", "scores", "weights"]


#: Terms of a sum that are written out.
_TERMS = 6


@dataclass(frozen=True, eq=False)
class Product:
    """The two matrices that a table is the product of, and what is added.

    left, right: the names of their tables. rows, columns: their numbers, (rows, inner) and (inner,
    columns). across: whether the table of the right one shows its columns as rows, as K does of Kᵀ.
    added: a number for each column.
    """

    left: str
    right: str
    rows: Tensor
    columns: Tensor
    across: bool = False
    added: Tensor | None = None

    def sum_of(self, row: int, column: int, digits: int) -> str:
        """A cell, written out.

        >>> import torch
        >>> ones = torch.ones(1, 2)
        >>> Product("A", "B", ones, 2 * ones.T, added=torch.tensor([0.5])).sum_of(0, 0, 1)
        '1.0×2.0 + 1.0×2.0 + 0.5 = 4.5'
        """
        pairs = list(zip(self.rows[row].tolist(), self.columns[:, column].tolist(), strict=True))
        added = 0.0 if self.added is None else float(self.added[column])
        total = sum(a * b for a, b in pairs) + added
        hidden = max(0, len(pairs) - _TERMS)
        if hidden:
            pairs = [*pairs[: _TERMS - 1], pairs[-1]]
        terms = [f"{number(a, digits)}×{number(b, digits)}" for a, b in pairs]
        if hidden:
            terms.insert(-1, f"… {hidden} more …")
        if self.added is not None:
            terms.append(number(added, digits))
        return f"{' + '.join(terms)} = {number(total, digits)}"


@dataclass(frozen=True, eq=False)
class Table:
    """A matrix.

    name: above it. values: (rows, columns).
    rows, columns: tokens beside and above; empty: the numbers have no names.
    kind: "numbers", "scores" (minus infinity is hidden) or "weights" (0 to 1).
    before: the sign between the table before and this one, as "+" or "=".
    of_tokens: whether its rows are tokens, which are never left out, though not named again.
    made: what it is the product of.
    """

    name: str
    values: Tensor
    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    kind: TableKind = "numbers"
    before: str = ""
    of_tokens: bool = False
    made: Product | None = None


#: Tables side by side.
Row = tuple[Table, ...]


@dataclass(frozen=True)
class Ledger:
    """Sums written out, a line each; the last line may be the result.

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
    """A step of the walk.

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


@dataclass(frozen=True)
class Span:
    """A piece of a line. style: "title", "name", "formula", "faint", "strong", "weight"; ""."""

    text: str
    style: str = ""


Line = list[Span]


def number(value: float, digits: int) -> str:
    """A number with so many decimals; never "-0.00".

    >>> number(-0.001, 2), number(2.5, 2), number(float("-inf"), 2)
    ('0.00', '2.50', '−∞')
    """
    if value == float("-inf"):
        return "−∞"
    text = f"{value:.{digits}f}"
    return text.removeprefix("-") if not text.strip("-0.") else text
