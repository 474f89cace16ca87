"""`Steps`: the six steps of attention on a short sentence, as text, page or picture.

Tables fit a terminal of 80 columns, and no number is cut.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Self

from rich.cells import cell_len, set_cell_size

from headloom.errors import InputError
from headloom.formats.files import atomic_file
from headloom.formats.tokens import visible
from headloom.mechanism.attention_layer import LayerKind as Kind
from headloom.studio.steps.learning import explain_learning
from headloom.studio.steps.lesson import (
    SOURCES,
    Ledger,
    Lesson,
    Row,
    Step,
    Table,
    Walk,
    explain,
    number,
)  # fmt: skip
from headloom.studio.steps.matrices import Words
from headloom.studio.steps.worked import Learned, Worked

if TYPE_CHECKING:
    from headloom.studio.pictures.palette import Theme

#: Pieces of text, each with its style: "title", "name", "formula", "faint", "strong" or "".
Line = list[tuple[str, str]]

_WIDTH = 80
#: Rows, and columns, shown of a matrix without tokens at most; and of a larger one.
_ROWS, _COLUMNS = (12, 5), (8, 6)
#: Up to this many heads, the tables of all are shown.
_FEW = 2
_STYLE = """
.headloom-steps{white-space:pre;overflow-x:auto;margin:0;font:13px/1.45 ui-monospace,monospace}
.headloom-steps .title,.headloom-steps .strong{font-weight:700}
.headloom-steps .formula{color:#14857f}
.headloom-steps .faint,.headloom-steps .name{opacity:.7}
"""


@dataclass(frozen=True, eq=False, repr=False)
class Steps(Walk):
    """Multi-head attention on a short sentence, step by step.

    Fields and matrices are those of `headloom.studio.steps.lesson.Walk`. `print` shows them as
    text, a notebook as HTML; `page` and `picture` write files.
    """

    @classmethod
    def of(
        cls, worked: Worked, kind: Kind, queries: Words, keys: Words, origin: str, *,
        query: str | int | None = None, head: int | None = None, digits: int = 2,
        learned: Learned | None = None, goal: str = "",
    ) -> Self:  # fmt: skip
        """Build from matrices, their words, and the choice of query and head.

        query: a word, or its number; None: the last. head: None: both of two, else head 0.
        Raises: InputError: no such head or word.
        """
        heads = len(worked.Z)
        if head is not None and not 0 <= head < heads:
            raise InputError(f"head {head}: there are heads 0 to {heads - 1}.")
        shown = range(heads) if head is None and heads <= _FEW else (head or 0,)
        return cls(
            **vars(worked), kind=kind, queries=queries, keys=keys, origin=origin,
            query=_place_of(query, queries.tokens), shown=tuple(shown), digits=digits,
            learned=learned, goal=goal,
        )  # fmt: skip

    def lesson(self) -> Lesson:
        """Return the six steps, one word alone, and the learning of the matrices, if any."""
        heads, _, depth = self.Q.shape
        queries_from, keys_from, mask = SOURCES[self.kind]
        which = f", tables of head {self.shown[0]}" if len(self.shown) < heads else ""
        about = (
            f"{self.kind.capitalize()}: Q from {queries_from}; K, V from {keys_from}; {mask}.",
            f"Width {self.X.shape[1]}, {heads} head{'s' * (heads > 1)} of depth {depth}{which}. "
            f"{self.origin[:1].upper()}{self.origin[1:]}.",
            f"Shown to {self.digits} decimals, computed in float64.",
        )
        text, source = (" ".join(visible(token, 12) for token in words.tokens)
                        for words in (self.queries, self.keys))  # fmt: skip
        title = f"The six steps of attention: “{text}”"
        title += f" looks at “{source}”" if self.kind == "cross" else ""
        steps = explain(self)
        if self.learned is not None:
            steps += explain_learning(self, self.learned)
        return Lesson(title, about, tuple(steps), self.digits)

    def lines(self) -> list[Line]:
        """Return the lesson as lines of styled text."""
        lesson = self.lesson()
        lines = _filled(lesson.title, "title")
        for about in lesson.about:
            lines += _filled(about, "faint")
        for step in lesson.steps:
            lines += [[], *_step(step, lesson.digits)]
        return lines

    def __str__(self) -> str:
        return "\n".join("".join(text for text, _ in line).rstrip() for line in self.lines())

    def _repr_html_(self) -> str:
        shown = (
            "".join(f'<span class="{style}">{_safe(text)}</span>' for text, style in line)
            for line in self.lines()
        )
        text = "\n".join(shown)
        return f'<style>{_STYLE}</style><div class="headloom-steps">{text}</div>\n'

    def page(self, path: Path | str) -> None:
        """Write the lesson as one HTML file that needs nothing else."""
        head = (
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
            f"<title>{_safe(self.lesson().title)}</title>\n"
            '<meta name="viewport" content="width=device-width,initial-scale=1">\n'
            "<style>:root{color-scheme:light dark}body{margin:1em}</style></head>\n"
        )
        with atomic_file(path) as temporary:
            temporary.write_text(f"{head}<body>{self._repr_html_()}</body></html>\n", "utf-8")

    def picture(self, path: Path | str, *, theme: Theme = "light") -> None:
        """Draw the tables of the lesson as a picture: .png, .svg or .pdf."""
        from headloom.studio.pictures import save_picture
        from headloom.studio.steps.picture import picture

        save_picture(picture(self.lesson(), theme=theme), path)

    def __repr__(self) -> str:
        heads, queries, keys = self.weights.shape
        return f"Steps({self.kind}, {heads} heads, {queries} queries, {keys} keys; {self.origin})"


def _place_of(query: str | int | None, tokens: Sequence[str]) -> int:
    """Return the position of a word or number; None: the last."""
    words = [token.strip() for token in tokens]
    if query in words:
        return words.index(str(query))
    try:
        return range(len(tokens))[-1 if query is None else int(query)]
    except (ValueError, IndexError):
        raise InputError(
            f"query {query!r} not found. Words 0 to {len(tokens) - 1} are "
            f"{visible(', '.join(words), 120)}."
        ) from None


def _safe(text: str) -> str:
    """Escape text for HTML; lone surrogates, which no file can hold, become their codes."""
    return escape(text.encode("utf-8", "backslashreplace").decode("utf-8"))


def _length(line: Line) -> int:
    return sum(cell_len(text) for text, _ in line)


def _filled(text: str, style: str = "") -> list[Line]:
    wrapped = textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False)
    return [[(line, style)] for line in wrapped]


def _step(step: Step, digits: int) -> list[Line]:
    formula = f"{step.formula}   {step.shapes}".rstrip()
    lines: list[Line] = [[(step.title, "title"), (f"   {formula}", "formula")]]
    if _length(lines[0]) > _WIDTH:
        parts = [formula] if cell_len(formula) < _WIDTH else [step.formula, step.shapes]
        lines = [[(step.title, "title")], *([(" " + part, "formula")] for part in parts if part)]
    lines += _filled(step.sentence)
    for row in step.rows:
        lines += _row(row, digits)
    for ledger in step.ledgers:
        lines += [[], *_ledger(ledger)]
    return lines + _filled(step.result, "strong")


def _row(row: Row, digits: int) -> list[Line]:
    """Format tables side by side, in as many rows as the width needs."""
    lines: list[Line] = []
    beside: list[Line] = []
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
            if beside and not _fits(beside, block):
                lines += [[], *beside]
                beside = []
            gap = f" {sign or ' '} " if beside or sign else ""
            # The sign stands in the middle of the numbers, below the names.
            middle = 1 + headed + (len(block) - 1 - headed) // 2
            empty = [(" " * (_length(beside[0]) if beside else 1), "")]
            beside = [
                [*(left or empty), (gap if line == middle else " " * len(gap), ""), *(right or [])]
                for line, (left, right) in enumerate(zip_longest(beside, block))
            ]
        named = table.rows
    return [*lines, [], *beside]


def _fits(left: list[Line], right: list[Line]) -> bool:
    return _length(left[0]) + 3 + _length(right[0]) <= _WIDTH


def _shortened(count: int, most: int) -> list[int | None]:
    """Return at most `most` positions; None stands for those omitted before the last.

    >>> _shortened(3, 4), _shortened(9, 4)
    ([0, 1, 2], [0, 1, 2, None, 8])
    """
    return [*range(count)] if count <= most else [*range(most - 1), None, count - 1]


def _blocks(table: Table, digits: int, headed: bool, labels: tuple[str, ...]) -> list[list[Line]]:
    """Format a table as one block of lines of equal width, or as several where it is too wide."""
    count, columns = table.values.shape
    rows = _shortened(count, _ROWS[1] if not table.rows and count > _ROWS[0] else count)
    texts = [[number(value, digits) for value in row] for row in table.values.tolist()]
    wide = max(cell_len(text) for line in (*texts, table.columns) for text in line)
    names = max(map(cell_len, labels), default=-1) + 1
    # Room for numbers after the indent, the tokens, and perhaps a sign.
    room = _WIDTH - 1 - names
    parts: list[list[int | None]]
    if table.columns:
        fit = max(room // (wide + 1), 1)
        parts = [[*range(start, min(start + fit, columns))] for start in range(0, columns, fit)]
    else:
        fit = (room - 3) // (wide + 1)
        whole = columns <= min(fit, _COLUMNS[0])
        parts = [_shortened(columns, columns if whole else min(fit - 1, _COLUMNS[1]))]
    name = table.name + f" ({count}×{columns})" * (None in rows or None in parts[0])
    blocks = []
    for part in parts:
        from_here = f", from “{table.columns[part[0]]}”" if part[0] else ""
        block: list[Line] = [[(" " * names + name + from_here, "name")]]
        if headed:
            above = [table.columns[place or 0] for place in part] if table.columns else []
            aligned = " ".join(_right(text, wide) for text in above)
            block.append([(" " * names + aligned, "faint")])
        for row in rows:
            if row is None:
                block.append([(" " * names, "faint"), (_right("⋮", wide), "faint")])
                continue
            label = set_cell_size(labels[row], names) if labels else ""
            cells = [_cell(table, texts, row, column, wide) for column in part]
            spaced = [
                (" " * bool(place) + text, style) for place, (text, style) in enumerate(cells)
            ]
            block.append([(label, "faint"), *spaced])
        longest = max(map(_length, block))
        blocks.append([[*line, (" " * (longest - _length(line)), "")] for line in block])
    return blocks


def _cell(
    table: Table, texts: list[list[str]], row: int, column: int | None, wide: int
) -> tuple[str, str]:
    """Format a number of a table; the largest weight is bold, a masked one faint."""
    if column is None:
        return "…", "faint"
    value, weights = float(table.values[row, column]), table.kind == "weights"
    style = ""
    if value == float("-inf") or (weights and not value):
        style = "faint"
    elif weights and value == float(table.values[row].max()):
        style = "strong"
    return _right(texts[row][column], wide), style


def _right(text: str, wide: int) -> str:
    return " " * (wide - cell_len(text)) + text


def _ledger(ledger: Ledger) -> list[Line]:
    rows = [ledger.header, *ledger.lines]
    wide = [max(map(cell_len, cells)) for cells in zip(*rows, strict=True)]
    too_wide = 1 + sum(wide) + 2 * (len(wide) - 1) > _WIDTH
    parts = [(0, ledger.split), (ledger.split, len(wide))] if too_wide else [(0, len(wide))]
    lines: list[Line] = []
    for count, row in enumerate(rows):
        style = "faint" if count == 0 else "strong" if count == len(rows) - 1 else ""
        cells = [
            set_cell_size(cell, wide[place]) if place < ledger.left else _right(cell, wide[place])
            for place, cell in enumerate(row)
        ]
        texts = [
            " " * (1 if start == 0 else 3) + "  ".join(cells[start:end]) for start, end in parts
        ]
        lines += [[(text, style)] for text in texts if text.strip()]
    return lines
