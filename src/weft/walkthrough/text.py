"""A walk as text: tables that fit a terminal of 80 columns, in which no number is cut."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import replace

from rich.cells import cell_len
from torch import Tensor

from weft.formats.tokens import visible
from weft.walkthrough.explain import SOURCES, explain
from weft.walkthrough.parts import Ledger, Line, Row, Span, Step, Table, TableKind, number
from weft.walkthrough.walk import Kinds, Walk, title_of

__all__ = ["comparison", "plain", "walk"]

_WIDTH = 80
_INDENT = " "
#: Rows, and columns, of a matrix without tokens that are shown; the rest is an ellipsis.
_ROWS, _COLUMNS = 6, 6


#: The lines of a table, all of one width.
_Block = list[Line]


def plain(lines: Iterable[Line]) -> str:
    """The text without its styles."""
    return "\n".join("".join(span.text for span in line).rstrip() for line in lines)


def walk(steps: Walk) -> list[Line]:
    """The lines of a walk."""
    lines: list[Line] = [[Span(line, "title")] for line in _filled(title_of(steps))]
    heads, _, depth = steps.Q.shape
    which = f", tables of head {steps.shown[0]}" if len(steps.shown) < heads else ""
    size = f"width {steps.X.shape[1]}, {heads} head{'s' * (heads > 1)} of depth {depth}{which}"
    queries_from, keys_from, mask = SOURCES[steps.kind]
    for line in (
        f"{steps.kind.capitalize()}: Q from {queries_from}; K, V from {keys_from}; {mask}.",
        f"{size}. {steps.origin[:1].upper()}{steps.origin[1:]}.",
        f"Shown to {steps.digits} decimals, computed in float64.",
    ):
        lines += [[Span(part, "faint")] for part in _filled(line)]
    for step in explain(steps):
        lines += [[], *_step(step, steps.digits)]
    return lines


def comparison(kinds: Kinds) -> list[Line]:
    """The lines of three kinds side by side: who gives what, and the weights."""
    lines: list[Line] = [[Span("Three kinds of attention", "title")]]
    lines += [[Span(part, "faint")] for part in _filled(f"{kinds.sameness}.")]
    origins = dict.fromkeys(walk.origin for walk in kinds.kinds)
    for origin in origins:
        lines += [[Span(part, "faint")] for part in _filled(f"{origin[:1].upper()}{origin[1:]}.")]
    lines.append([])
    lines.append([Span(f"{'':9}{'Q from':25}{'K, V from':24}may not look at", "faint")])
    hidden = {"encoder": "nothing is hidden", "decoder": "words after it", "cross": "nothing is "
              "hidden"}  # fmt: skip
    for each in kinds.kinds:
        queries_from, keys_from, _ = SOURCES[each.kind]
        lines.append(
            [Span(f"{each.kind:9}", "name"), Span(f"{queries_from:25}{keys_from:24}"),
             Span(hidden[each.kind])]
        )  # fmt: skip
    head = kinds.encoder.head
    for title, formula, names in (
        ("Masked scores", "S = Q Kᵀ / √d, −∞ where hidden", "scores"),
        ("Weights", "A = softmax(S), row by row", "weights"),
    ):
        lines += [[], [Span(f"{title}, head {head}", "title"), Span(f"   {formula}", "formula")]]
        tables = tuple(_kind_table(each, names) for each in kinds.kinds)
        lines += _row(tables, kinds.encoder.digits)
    lines.append([])
    for each in kinds.kinds:
        text = f"{each.kind}: matrix form and one word at a time differ by {each.difference:.1e}"
        lines.append([Span(text, "strong")])
    return lines


def _kind_table(steps: Walk, what: str) -> Table:
    matrix = steps.weights if what == "weights" else steps.masked
    kind: TableKind = "weights" if what == "weights" else "scores"
    rows, columns = _cut(steps.queries.tokens), _cut(steps.keys.tokens)
    return Table(steps.kind, matrix[steps.head], rows, columns, kind)


def _cut(tokens: Sequence[str]) -> tuple[str, ...]:
    return tuple(visible(token, 8) for token in tokens)


def _step(step: Step, digits: int) -> list[Line]:
    head = step.name if step.number is None else f"{step.number}. {step.name}"
    formula = f"{step.formula}   {step.shapes}".rstrip()
    lines: list[Line] = []
    if cell_len(head) + 3 + cell_len(formula) <= _WIDTH:
        lines.append([Span(head, "title"), Span(f"   {formula}", "formula")])
    else:
        lines.append([Span(head, "title")])
        whole = cell_len(formula) + len(_INDENT) <= _WIDTH
        parts = [formula] if whole else [step.formula, step.shapes]
        lines += [[Span(_INDENT + part, "formula")] for part in parts if part]
    lines += [[Span(part)] for part in _filled(step.sentence)]
    for row in step.rows:
        lines += _row(row, digits)
    for ledger in step.ledgers:
        lines += [[], *_ledger(ledger)]
    if step.result:
        lines += [[Span(part, "strong")] for part in _filled(step.result)]
    return lines


def _filled(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False) or [""]


def _row(row: Row, digits: int) -> list[Line]:
    """Tables side by side, in as many rows as the width needs.

    Tokens that stand beside the table before are not repeated.
    """
    lines: list[Line] = []
    beside: _Block = []
    named: tuple[str, ...] = ()
    #: Lines above the numbers of the tables so far.
    above = 0
    for table in row:
        own = 1 + bool(table.columns)
        if beside and named and table.rows == named:
            (block, *more) = _blocks(replace(table, rows=(), of_tokens=True), digits)
            if not more and _fits(beside, block):
                beside = _joined(_lowered(beside, own - above), block, table.before, above - own)
                above = max(above, own)
                continue
        for place, block in enumerate(_blocks(table, digits)):
            sign = table.before if place == 0 else ""
            if beside and _fits(beside, block):
                beside = _joined(_lowered(beside, own - above), block, sign, above - own)
                above = max(above, own)
                continue
            above = own
            lines += [[], *beside] if beside else []
            start: _Block = [[Span(_INDENT)] for _ in block]
            beside = _joined(start, block, sign) if sign else [
                [Span(_INDENT), *line] for line in block
            ]  # fmt: skip
        named = table.rows
    return [*lines, [], *beside] if beside else lines


def _fits(left: _Block, right: _Block) -> bool:
    return _width(left) + 3 + _width(right) <= _WIDTH


def _lowered(block: _Block, by: int) -> _Block:
    """A block so many lines lower."""
    return [*([[Span(" " * _width(block))]] * by), *block]


def _joined(left: _Block, right: _Block, sign: str, lower: int = 0) -> _Block:
    """Two blocks beside each other; the sign stands in the middle of the right one's numbers.

    lower: by how many lines the right one is, so that rows of numbers stand beside each other.
    """
    middle = max(lower, 0) + (len(right) + 1) // 2
    right = _lowered(right, lower)
    height, wide = max(len(left), len(right)), _width(left)
    lines = []
    for place in range(height):
        start = left[place] if place < len(left) else [Span(" " * wide)]
        end = right[place] if place < len(right) else []
        between = sign if place == middle else " "
        lines.append([*start, Span(f" {between} " if sign else "   "), *end])
    return lines


def _width(block: _Block) -> int:
    return max((sum(cell_len(span.text) for span in line) for line in block), default=0)


def _blocks(table: Table, digits: int) -> list[_Block]:
    """A table as one block, or as several where its columns are too many for a line."""
    values, columns = table.values, list(table.columns)
    row_names = list(table.rows)
    if not (row_names or table.of_tokens) and len(values) > 2 * _ROWS:
        kept = [*range(_ROWS - 2), len(values) - 1]
        values, break_at = values[kept], _ROWS - 2
    else:
        break_at = None
    labels = max(map(cell_len, row_names), default=0)
    if columns:
        cells = _cells(values, table.kind, digits)
        wide = max([cell_len(span.text) for row in cells for span in row]
                   + [cell_len(name) for name in columns])  # fmt: skip
        fit = max((_WIDTH - len(_INDENT) - labels) // (wide + 1), 1)
        starts = range(0, len(columns), fit)
        return [
            _block(table.name if start == 0 else f"{table.name}, from “{columns[start]}”",
                   row_names, columns[start : start + fit],
                   [row[start : start + fit] for row in cells], break_at, wide)
            for start in starts
        ]  # fmt: skip
    count = values.shape[1]
    cells = _cells(values, table.kind, digits)
    wide = max(cell_len(span.text) for row in cells for span in row)
    # The sign before it, its tokens, and numbers with a space between them.
    room = (_WIDTH - len(_INDENT) - 3 - labels - bool(labels)) // (wide + 1)
    if count > min(room, _COLUMNS + 2):
        first = min(room - 1, _COLUMNS) - 1
        cells = [[*row[:first], Span("…", "faint"), row[-1]] for row in cells]
    cut = break_at is not None or any(span.text == "…" for span in cells[0])
    name = f"{table.name} ({len(table.values)}×{count})" if cut else table.name
    return [_block(name, row_names, [], cells, break_at, wide)]


def _block(
    name: str,
    row_names: Sequence[str],
    columns: Sequence[str],
    cells: Sequence[Sequence[Span]],
    break_at: int | None,
    wide: int,
) -> _Block:
    labels = max(map(cell_len, row_names), default=0)
    start = " " * (labels + bool(labels))
    lines: _Block = [[Span(f"{start}{name}", "name")]]
    if columns:
        lines.append([Span(start + " ".join(_right(column, wide) for column in columns), "faint")])
    for place, row in enumerate(cells):
        if place == break_at:
            lines.append([Span(start + _right("⋮", wide), "faint")])
        line: Line = []
        if row_names:
            label = row_names[place]
            line.append(Span(label + " " * (labels - cell_len(label) + 1), "faint"))
        for column, span in enumerate(row):
            own = 1 if span.text == "…" else wide
            line.append(Span((" " if column else "") + _right(span.text, own), span.style))
        lines.append(line)
    whole = _width(lines)
    return [[*line, Span(" " * (whole - _width([line])))] for line in lines]


def _cells(values: Tensor, kind: str, digits: int) -> list[list[Span]]:
    """Numbers as text; the largest weight of a row is strong, what is hidden faint."""
    cells = []
    for row in values.tolist():
        largest = max(row)
        line = []
        for value in row:
            style = "faint" if value == float("-inf") or (kind == "weights" and not value) else ""
            if kind == "weights" and value == largest and value > 0:
                style = "strong"
            line.append(Span(number(value, digits), style))
        cells.append(line)
    return cells


def _right(text: str, wide: int) -> str:
    return " " * max(wide - cell_len(text), 0) + text


def _ledger(ledger: Ledger) -> list[Line]:
    rows = [ledger.header, *ledger.lines]
    wide = [max(cell_len(row[place]) for row in rows) for place in range(len(ledger.header))]
    too_wide = len(_INDENT) + sum(wide) + 2 * (len(wide) - 1) > _WIDTH
    parts = [(0, ledger.split), (ledger.split, len(wide))] if too_wide else [(0, len(wide))]
    lines: list[Line] = []
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
                lines.append([Span(text, style)])
    return lines
