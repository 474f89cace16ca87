"""Lesson as a picture: its tables, every matrix with its numbers in coloured cells."""

from __future__ import annotations

import numpy as np
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from headloom.studio.pictures import canvas
from headloom.studio.pictures.canvas import Page, weight_norm
from headloom.studio.steps.lesson import Lesson, Row, Table, number

#: Matrices of up to this many columns have their numbers written in their cells.
_WRITTEN = 8
#: Inches: of a cell with its number, its height, a narrow cell, a letter; a matrix of narrow cells.
_CELL, _HIGH, _NARROW, _LETTER, _MOST = 0.37, 0.235, 0.15, 0.06, 1.5
_LEFT, _GAP, _LINE = 0.16, 0.2, 0.19
#: Width in inches of rows of tables that stand side by side.
_ROOM = 8.0


@canvas.picture
def picture(page: Page, lesson: Lesson) -> Figure:
    """Draw all tables of a lesson, step by step, each step below its name and formula.

    Small tables have numbers in their cells. Colours show sign and size, scaled to each matrix;
    weights are scaled from 0 to 1.
    """
    steps = [step for step in lesson.steps if step.rows or step.number]
    bands = [_folded(step.rows) for step in steps]
    across = [sum(map(_across, row)) for rows in bands for row in rows]
    down = [0.5 + sum(map(_down, rows)) for rows in bands]
    texts = [lesson.title, "ᵀ√Σ−∞×→"]
    for step in steps:
        for table in (table for row in step.rows for table in row):
            texts += [*table.rows, *table.columns, table.name]
    lines = (0.09 * len(lesson.title), *(0.055 * len(line) for line in lesson.about))
    page.letters(texts)
    high = 0.3 + _LINE * (1 + len(lesson.about)) + sum(down)
    page.lay(max(*lines, *across) + 2 * _LEFT, high)
    top = 0.3
    _say(page, _LEFT, top, page.written(lesson.title), 11, fontweight="bold")
    for line in lesson.about:
        top += _LINE
        _say(page, _LEFT, top, line, 7, page.colours.faint)
    for step, rows, high in zip(steps, bands, down, strict=True):
        below = top + 0.34
        _say(page, _LEFT, below, step.title, 9, fontweight="bold")
        _say(page, _LEFT, below + _LINE, step.formula, 8, page.colours.query)
        below += _LINE + 0.1
        for row in rows:
            left, first = _LEFT, below + 0.2 + max(map(_above, row))
            for table in row:
                _draw(page, table, left, first, lesson.digits)
                left += _across(table)
            below += _down(row)
        top += high
    return page.figure


def _say(
    page: Page, across: float, down: float, text: str, size: float, ink: str = "", **how: object
) -> None:
    how = {"va": "center", "parse_math": False} | how
    page.say(across, down, text, size, ink or page.colours.ink, **how)


def _folded(rows: tuple[Row, ...]) -> list[Row]:
    """Join rows of tables side by side where there is room."""
    folded: list[Row] = []
    for row in rows:
        if folded and sum(map(_across, (*folded[-1], *row))) <= _ROOM:
            folded[-1] += row
        else:
            folded.append(row)
    return folded


def _size(table: Table) -> tuple[float, float]:
    """Return width and height of the cells of a table."""
    rows, columns = table.values.shape
    if columns <= _WRITTEN and rows <= 2 * _WRITTEN:
        return columns * _CELL, rows * _HIGH
    wide, high = columns * _NARROW, rows * _NARROW
    # A cell with a name keeps the width of a letter.
    return wide if table.columns else min(wide, _MOST), high if table.rows else min(high, _MOST)


def _beside(table: Table) -> float:
    """Return the width of the sign and the row names, in inches."""
    longest = max(map(len, table.rows), default=0)
    return 0.3 * bool(table.before) + (_LETTER * longest + 0.08) * bool(longest)


def _turned(table: Table) -> bool:
    """Return whether a column is narrower than its name, which is then vertical."""
    longest = max(map(len, table.columns), default=0)
    return longest * _LETTER > _size(table)[0] / table.values.shape[1]


def _above(table: Table) -> float:
    """Return the height of the column names, in inches."""
    longest = max(map(len, table.columns), default=0)
    return _LETTER * longest if _turned(table) else 0.14 * bool(longest)


def _across(table: Table) -> float:
    return _beside(table) + max(_size(table)[0], _LETTER * len(table.name)) + 0.14


def _down(row: Row) -> float:
    return max(map(_above, row)) + max(_size(table)[1] for table in row) + 0.2 + _GAP


def _draw(page: Page, table: Table, left: float, top: float, digits: int) -> None:
    """Draw a table, its names above and beside it, with numbers where there is room."""
    colours, values, (wide, high) = page.colours, table.values.numpy(), _size(table)
    rows, columns = values.shape
    if table.before:
        _say(page, left + 0.1, top + high / 2, table.before, 11, colours.faint, ha="center")
    left += _beside(table)
    name = table.name + f" {rows}×{columns}" * (columns > _WRITTEN)
    _say(page, left, top - _above(table) - 0.09, name, 7, colours.faint)
    for place, name in enumerate(table.rows):
        middle = top + (place + 0.5) * high / rows
        _say(page, left - 0.05, middle, page.written(name), 6.5, ha="right")
    turned = _turned(table)
    for place, name in enumerate(table.columns):
        middle = left + (place + 0.5) * wide / columns
        _say(page, middle, top - (0.03 if turned else 0.08), page.written(name), 6, ha="center",
             va="bottom" if turned else "center", rotation=90 * turned)  # fmt: skip
    finite = np.isfinite(values)
    largest = float(np.abs(values[finite]).max(initial=0)) or 1.0
    weights = table.kind == "weights"
    ramp = colours.weight if weights else colours.difference
    # Use the weaker part of the ramp, so that numbers stay readable.
    scale = weight_norm() if weights else Normalize(-1.6 * largest, 1.6 * largest)
    axes = page.matrix(
        left, top, wide, high, np.ma.masked_array(values, ~finite), cmap=ramp, norm=scale
    )
    for i, j in zip(*np.nonzero(~finite), strict=True):
        hidden = Rectangle((j - 0.5, i - 0.5), 1, 1, facecolor=colours.ground,
                           edgecolor=colours.line, hatch="////", linewidth=0)  # fmt: skip
        axes.add_patch(hidden)
    if columns > _WRITTEN or rows > 2 * _WRITTEN:
        return
    for (i, j), value in np.ndenumerate(values):
        colour = _on(*ramp(scale(value))[:3]) if np.isfinite(value) else colours.faint
        text = number(float(value), digits).replace("-", "−")
        axes.text(j, i, text, ha="center", va="center", fontsize=6.2, color=colour)


def _on(*ground: float) -> str:
    """Return black or white, whichever has more contrast on a colour, by WCAG 2.

    >>> _on(1.0, 1.0, 1.0), _on(0.7, 0.3, 0.1)
    ('#101317', '#ffffff')
    """
    light = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in ground]
    luminance = 0.2126 * light[0] + 0.7152 * light[1] + 0.0722 * light[2]
    return "#101317" if luminance > 0.185 else "#ffffff"
