"""A lesson as a picture: its tables, every matrix with its numbers in coloured cells."""

from __future__ import annotations

import numpy as np
from matplotlib.colors import Normalize, PowerNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from headloom.studio.pictures.canvas import axes_of_cells, bare, new_figure, weight_norm
from headloom.studio.pictures.fonts import Lettering, lettering
from headloom.studio.pictures.palette import Palette, Theme, palette
from headloom.studio.steps.lesson import Lesson, Row, Table, number

__all__ = ["picture"]

#: Columns of a matrix up to which its numbers are written into it.
_WRITTEN = 8
#: Inches: of a cell with its number, of a narrow one, of a letter; of a matrix of narrow cells.
_CELL, _HIGH, _NARROW, _LETTER, _MOST = 0.37, 0.235, 0.15, 0.06, 1.5
_LEFT, _GAP, _LINE = 0.16, 0.2, 0.19
#: Inches up to which rows of tables stand beside each other.
_ROOM = 8.0
#: Letters of a token.
_LONGEST = 10


def picture(lesson: Lesson, theme: Theme = "light") -> Figure:
    """All tables of a lesson, step by step, each step below its name and formula.

    Numbers stand in their cells where there are few; their colour is their sign and size, on a
    scale of each matrix's own; that of weights goes from 0 to 1.
    """
    return _Drawing(lesson, palette(theme)).figure


class _Drawing:
    """Where everything stands, in inches from the left and the top."""

    def __init__(self, lesson: Lesson, colours: Palette) -> None:
        steps = [step for step in lesson.steps if step.rows or step.number]
        tables = [table for step in steps for row in step.rows for table in row]
        texts = {name for table in tables for name in (*table.rows, *table.columns, table.name)}
        self.digits, self.colours = lesson.digits, colours
        self.letters: Lettering = lettering([lesson.title, *texts, "ᵀ√Σ−∞×→"])
        bands = [self._folded(step.rows) for step in steps]
        across = [sum(map(self._across, row)) for rows in bands for row in rows]
        down = [0.5 + sum(map(self._down, rows)) for rows in bands]
        written = (0.09 * len(lesson.title), *(0.055 * len(line) for line in lesson.about))
        self.wide = max(*written, *across) + 2 * _LEFT
        self.high = 0.3 + _LINE * (1 + len(lesson.about)) + sum(down)
        self.figure = new_figure(self.wide, self.high, colours)
        top = 0.3
        self._say(_LEFT, top, self.letters.text(lesson.title), 11, colours.ink, bold=True)
        for line in lesson.about:
            top += _LINE
            self._say(_LEFT, top, line, 7, colours.faint)
        for step, rows, high in zip(steps, bands, down, strict=True):
            below = top + 0.34
            self._say(_LEFT, below, step.title, 9, colours.ink, bold=True)
            self._say(_LEFT, below + _LINE, step.formula, 8, colours.query)
            below += _LINE + 0.1
            for row in rows:
                self._row(row, below)
                below += self._down(row)
            top += high

    def _folded(self, rows: tuple[Row, ...]) -> list[Row]:
        """Rows of tables, beside each other where there is room."""
        folded: list[Row] = []
        for row in rows:
            if folded and sum(map(self._across, (*folded[-1], *row))) <= _ROOM:
                folded[-1] += row
            else:
                folded.append(row)
        return folded

    def _size(self, table: Table) -> tuple[float, float]:
        """Width and height of the cells of a table."""
        rows, columns = table.values.shape
        if columns <= _WRITTEN and rows <= 2 * _WRITTEN:
            return columns * _CELL, rows * _HIGH
        wide, high = columns * _NARROW, rows * _NARROW
        # Beside and below names a cell keeps the width that a letter needs.
        return wide if table.columns else min(wide, _MOST), high if table.rows else min(high, _MOST)

    def _beside(self, table: Table) -> float:
        """Inches that the sign and the names of rows take."""
        longest = max((len(self.letters.token(name, _LONGEST)) for name in table.rows), default=0)
        return 0.3 * bool(table.before) + (_LETTER * longest + 0.08) * bool(longest)

    def _turned(self, table: Table) -> bool:
        """Whether a column is narrower than its name, which then goes up."""
        longest = max(map(len, table.columns), default=0)
        return min(longest, _LONGEST) * _LETTER > self._size(table)[0] / table.values.shape[1]

    def _above(self, table: Table) -> float:
        """Inches of the names of its columns."""
        longest = min(max(map(len, table.columns), default=0), _LONGEST)
        return _LETTER * longest if self._turned(table) else 0.14 * bool(longest)

    def _across(self, table: Table) -> float:
        name = _LETTER * len(table.name)
        return self._beside(table) + max(self._size(table)[0], name) + 0.14

    def _down(self, row: Row) -> float:
        return max(map(self._above, row)) + max(self._size(each)[1] for each in row) + 0.2 + _GAP

    def _say(
        self, across: float, down: float, text: str, size: float, colour: str, *,
        bold: bool = False, place: str = "left", turned: bool = False,
    ) -> None:  # fmt: skip
        self.figure.text(
            across / self.wide, 1 - down / self.high, text, fontsize=size, color=colour,
            family=list(self.letters.families), fontweight="bold" if bold else "normal", ha=place,
            va="bottom" if turned else "center", rotation=90 * turned, parse_math=False,
        )  # fmt: skip

    def _row(self, row: Row, down: float) -> None:
        """Tables side by side, their first rows of numbers at one height."""
        colours, across = self.colours, _LEFT
        top = down + 0.2 + max(map(self._above, row))
        for table in row:
            (wide, high), left = self._size(table), across + self._beside(table)
            if table.before:
                self._say(
                    across + 0.1, top + high / 2, table.before, 11, colours.faint, place="center"
                )
            rows, columns = table.values.shape
            cut = "" if columns <= _WRITTEN else f" {rows}×{columns}"
            self._say(left, top - self._above(table) - 0.09, table.name + cut, 7, colours.faint)
            for place, name in enumerate(table.rows):
                name, middle = self.letters.token(name, _LONGEST), (place + 0.5) * high / rows
                self._say(left - 0.05, top + middle, name, 6.5, colours.ink, place="right")
            turned = self._turned(table)
            for place, name in enumerate(table.columns):
                self._say(left + (place + 0.5) * wide / columns, top - (0.03 if turned else 0.08),
                          self.letters.token(name, _LONGEST), 6, colours.ink, place="center",
                          turned=turned)  # fmt: skip
            self._cells(table, left, top)
            across += self._across(table)

    def _cells(self, table: Table, left: float, top: float) -> None:
        """The cells of a matrix, with their numbers where there is room."""
        colours, values = self.colours, table.values.numpy()
        axes = axes_of_cells(self.figure, left, top, *self._size(table))
        finite = np.isfinite(values)
        largest = float(np.abs(values[finite]).max(initial=0)) or 1.0
        weights = table.kind == "weights"
        ramp = colours.weight if weights else colours.difference
        # Half as strong as the ramp goes, so that numbers are read on every cell.
        scale: Normalize | PowerNorm = (
            weight_norm() if weights else Normalize(-1.6 * largest, 1.6 * largest)
        )
        shown = np.ma.masked_array(values, ~finite)
        axes.imshow(shown, cmap=ramp, norm=scale, aspect="auto", interpolation="nearest")
        for i, j in zip(*np.nonzero(~finite), strict=True):
            hidden = Rectangle((j - 0.5, i - 0.5), 1, 1, facecolor=colours.ground,
                               edgecolor=colours.line, hatch="////", linewidth=0)  # fmt: skip
            axes.add_patch(hidden)
        bare(axes, colours)
        if values.shape[1] > _WRITTEN or len(values) > 2 * _WRITTEN:
            return
        for (i, j), value in np.ndenumerate(values):
            colour = _on(*ramp(scale(value))[:3]) if np.isfinite(value) else colours.faint
            text = number(float(value), self.digits).replace("-", "−")
            axes.text(j, i, text, ha="center", va="center", fontsize=6.2, color=colour)


def _on(*ground: float) -> str:
    """Black or white, whichever is read better on a colour: by the contrast of WCAG 2.

    >>> _on(1.0, 1.0, 1.0), _on(0.7, 0.3, 0.1)
    ('#101317', '#ffffff')
    """
    light = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in ground]
    luminance = 0.2126 * light[0] + 0.7152 * light[1] + 0.0722 * light[2]
    return "#101317" if luminance > 0.185 else "#ffffff"
