"""Positions of the patches of an image."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Grid:
    """Rows and columns of patches or pixels, in row-major order, after special tokens.

    before: number of special tokens before the patches: class token, distillation token, registers.
    distilled: whether there is a distillation token, as in DeiT; classed: a class token.

    >>> Grid(2, 2, before=1).names()
    ['[CLS]', 'patch 0,0', 'patch 0,1', 'patch 1,0', 'patch 1,1']
    >>> Grid(1, 2, before=1).places()
    {'rows': [-1, 0, 0], 'columns': [-1, 0, 1]}
    >>> Grid(1, 1, before=3, distilled=True).names()
    ['[CLS]', '[DISTILLATION]', '[REGISTER 1]', 'patch 0,0']
    """

    rows: int
    columns: int
    before: int = 0
    distilled: bool = False
    classed: bool = True

    @property
    def length(self) -> int:
        """Number of positions."""
        return self.before + self.rows * self.columns

    def names(self) -> list[str]:
        """Return a name for each position."""
        first = ["[CLS]"] * self.classed + ["[DISTILLATION]"] * self.distilled
        registers = [f"[REGISTER {i}]" for i in range(1, self.before - len(first) + 1)]
        before = [*first, *registers][: self.before]
        return [*before, *(f"patch {row},{column}" for row, column in self._cells())]

    def places(self) -> dict[str, list[int]]:
        """Return the row and the column of each position, -1 for special tokens."""
        special, cells = [-1] * self.before, self._cells()
        return {
            "rows": special + [row for row, _ in cells],
            "columns": special + [column for _, column in cells],
        }

    def _cells(self) -> list[tuple[int, int]]:
        return [(row, column) for row in range(self.rows) for column in range(self.columns)]
