"""A lesson as text: tables that fit a terminal of 80 columns, in which no number is cut."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from itertools import zip_longest

from rich.cells import cell_len

from headloom.studio.steps.lesson import Ledger, Lesson, Row, Step, Table, number, shortened

__all__ = ["Line", "Span", "lines"]

_WIDTH = 80
_INDENT = " "
#: Rows, and columns, of a matrix without tokens that are shown at most; and where it has more.
_ROWS, _COLUMNS = (12, 5), (8, 6)


@dataclass(frozen=True)
class Span:
    """A piece of a line. style: "title", "name", "formula", "faint", "strong"; ""."""

    text: str
    style: str = ""


Line = list[Span]
#: The lines of a table, all of one width.
_Block = list[Line]


def lines(lesson: Lesson) -> list[Line]:
    """The lines of a lesson."""
    shown = _filled(lesson.title, "title")
    for line in lesson.about:
        shown += _filled(line, "faint")
    for step in lesson.steps:
        shown += [[], *_step(step, lesson.digits)]
    return shown


def _filled(text: str, style: str = "") -> list[Line]:
    wrapped = textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False)
    return [[Span(line, style)] for line in wrapped]


def _step(step: Step, digits: int) -> list[Line]:
    formula = f"{step.formula}   {step.shapes}".rstrip()
    shown: list[Line] = [[Span(step.title, "title"), Span(f"   {formula}", "formula")]]
    if _length(shown[0]) > _WIDTH:
        whole = cell_len(formula) + len(_INDENT) <= _WIDTH
        parts = [formula] if whole else [step.formula, step.shapes]
        shown = [[Span(step.title, "title")]]
        shown += [[Span(_INDENT + part, "formula")] for part in parts if part]
    shown += _filled(step.sentence)
    for row in step.rows:
        shown += _row(row, digits)
    for ledger in step.ledgers:
        shown += [[], *_ledger(ledger)]
    return shown + _filled(step.result, "strong")


def _row(row: Row, digits: int) -> list[Line]:
    """Tables side by side, in as many rows as the width needs.

    Tokens that stand beside the table before are not repeated.
    """
    shown: list[Line] = []
    beside: _Block = []
    named: tuple[str, ...] = ()
    headed = any(table.columns for table in row)
    for table in row:
        blocks = _blocks(table, digits, headed, table.rows)
        if beside and table.rows and table.rows == named:
            bare = _blocks(table, digits, headed, ())
            if len(bare) == 1 and _fits(beside, bare[0]):
                blocks = bare
        for place, block in enumerate(blocks):
            sign = table.before if place == 0 else ""
            if beside and _fits(beside, block):
                beside = _joined(beside, block, sign, 1 + headed)
                continue
            shown += [[], *beside] if beside else []
            start: _Block = [[Span(_INDENT)] for _ in block]
            beside = _joined(start, block, sign, 1 + headed) if sign else [
                [Span(_INDENT), *line] for line in block
            ]  # fmt: skip
        named = table.rows
    return [*shown, [], *beside]


def _fits(left: _Block, right: _Block) -> bool:
    return _length(left[0]) + 3 + _length(right[0]) <= _WIDTH


def _joined(left: _Block, right: _Block, sign: str, above: int) -> _Block:
    """Two blocks beside each other; the sign stands in the middle of the right one's numbers.

    above: lines of each before its numbers.
    """
    middle = above + (len(right) - above) // 2
    empty = [Span(" " * _length(left[0]))]
    return [
        [*(start or empty), Span(f" {sign if sign and place == middle else ' '} "), *(end or [])]
        for place, (start, end) in enumerate(zip_longest(left, right))
    ]


def _length(line: Line) -> int:
    return sum(cell_len(span.text) for span in line)


def _blocks(table: Table, digits: int, headed: bool, labels: tuple[str, ...]) -> list[_Block]:
    """A table as one block, or as several where its columns are too many for a line.

    headed: whether a line for names of columns is kept. labels: beside its rows; (): none.
    """
    count, columns = table.values.shape
    many = not table.rows and count > _ROWS[0]
    rows = shortened(count, _ROWS[1] if many else count)
    texts = [[number(value, digits) for value in row] for row in table.values.tolist()]
    wide = max(cell_len(text) for line in (*texts, table.columns) for text in line)
    names = max(map(cell_len, labels), default=-1) + 1
    # Numbers with a space between them, after the indent, the tokens, and maybe a sign.
    room = _WIDTH - len(_INDENT) - names
    if table.columns:
        fit = max(room // (wide + 1), 1)
        parts = [[*range(start, min(start + fit, columns))] for start in range(0, columns, fit)]
        places: list[list[int | None]] = [[*part] for part in parts]
    else:
        fit = (room - 3) // (wide + 1)
        whole = columns <= min(fit, _COLUMNS[0])
        places = [shortened(columns, columns if whole else min(fit - 1, _COLUMNS[1]))]
    name = table.name
    if None in rows or None in places[0]:
        name += f" ({count}×{columns})"
    blocks = []
    for part in places:
        from_here = f", from “{table.columns[part[0] or 0]}”" if part[0] else ""
        block: _Block = [[Span(" " * names + name + from_here, "name")]]
        if headed:
            above = [table.columns[place or 0] for place in part] if table.columns else []
            block.append([Span(" " * names + _aligned(above, wide), "faint")])
        for row in rows:
            label = labels[row] if labels and row is not None else ""
            start = Span(label + " " * (names - cell_len(label)), "faint")
            block.append([start, *_cells(table, texts, row, part, wide)])
        longest = max(map(_length, block))
        blocks.append([[*line, Span(" " * (longest - _length(line)))] for line in block])
    return blocks


def _cells(
    table: Table, texts: list[list[str]], row: int | None, columns: list[int | None], wide: int
) -> Line:
    """The numbers of a row; the largest weight is strong, what is hidden faint."""
    if row is None:
        return [Span(_aligned(["⋮"], wide), "faint")]
    cells, largest = [], float(table.values[row].max())
    for place, column in enumerate(columns):
        text, style = ("…", "faint") if column is None else (texts[row][column], "")
        if column is not None:
            value = float(table.values[row, column])
            if value == float("-inf") or (table.kind == "weights" and not value):
                style = "faint"
            elif table.kind == "weights" and value == largest:
                style = "strong"
            text = _aligned([text], wide)
        cells.append(Span((" " if place else "") + text, style))
    return cells


def _aligned(texts: list[str], wide: int) -> str:
    return " ".join(" " * (wide - cell_len(text)) + text for text in texts)


def _ledger(ledger: Ledger) -> list[Line]:
    rows = [ledger.header, *ledger.lines]
    wide = [max(map(cell_len, cells)) for cells in zip(*rows, strict=True)]
    too_wide = len(_INDENT) + sum(wide) + 2 * (len(wide) - 1) > _WIDTH
    parts = [(0, ledger.split), (ledger.split, len(wide))] if too_wide else [(0, len(wide))]
    shown: list[Line] = []
    for count, row in enumerate(rows):
        style = "faint" if count == 0 else "strong" if count == len(rows) - 1 else ""
        for start, end in parts:
            cells = [
                cell + space if place < ledger.left else space + cell
                for place, cell in enumerate(row)
                if start <= place < end
                for space in [" " * (wide[place] - cell_len(cell))]
            ]
            text = _INDENT * (1 if start == 0 else 3) + "  ".join(cells)
            if text.strip():
                shown.append([Span(text, style)])
    return shown
