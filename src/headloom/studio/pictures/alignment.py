"""`alignment`: the weights of a head as a matrix, with tokens on both axes."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from headloom.formats.tokens import shown
from headloom.formats.trace import TraceLayer
from headloom.mechanism.graph import AttentionGraph
from headloom.studio.pictures.canvas import (
    Array,
    axes_of_cells,
    bare,
    new_figure,
    not_shown,
    sized,
    weight_norm,
    weight_scale,
    weights_of,
)
from headloom.studio.pictures.fonts import lettering
from headloom.studio.pictures.palette import Palette, Theme, palette

__all__ = ["alignment"]

#: Tokens beyond which an axis shows positions, every so many, in place of tokens.
_MOST_TOKENS = 120
#: A name that is a time.
_SECONDS = re.compile(r"[0-9]+\.[0-9]+ s")
#: A row is named by the token that its query is made from, not by the one that is written next.
#: In an encoder nothing is.
_QUERIES, _ENCODED = "queries ↓ (just read or written)", "queries ↓"


def alignment(
    what: TraceLayer | AttentionGraph | Tensor | Array,
    head: int | None = None,
    *,
    query_tokens: Sequence[str] | None = None,
    key_tokens: Sequence[str] | None = None,
    links: Collection[tuple[int, int]] = (),
    title: str | None = None,
    theme: Theme = "light",
) -> Figure:
    """The weights of one head, or the mean of all heads, as a matrix with tokens on both axes.

    Rows are queries, who looks; columns are keys, who is looked at. A layer that has its queries
    and keys is shown whole; of kept edges alone, the picture says how much of the mass is not
    shown.

    Args:
        what: a layer of a trace, an attention graph, or weights (heads, queries, keys) or
            (queries, keys).
        head: which one; None: the mean of all.
        query_tokens, key_tokens: names of rows and columns; None: those of the layer, or positions.
        links: cells that are outlined, (key, query), as links of words are written.
        title: above it; None: says which layer and head.
        theme: "light" or "dark".

    Raises: InputError: no such head, or tokens that do not fit.
    """
    colours = palette(theme)
    weights, left_out = weights_of(what, head)
    queries, keys = weights.shape
    if isinstance(what, TraceLayer):
        query_tokens = shown(what.query_tokens) if query_tokens is None else query_tokens
        key_tokens = shown(what.key_tokens) if key_tokens is None else key_tokens
        if title is None:
            title = f"{what.kind} layer {what.index}, " + (
                f"mean of {what.heads} heads" if head is None else f"head {head}"
            )
    rows = sized(query_tokens, queries, "query")
    columns = sized(key_tokens, keys, "key")
    letters = lettering([*rows, *columns, title or ""])
    rows, columns = ([letters.token(token, 14) for token in axis] for axis in (rows, columns))

    sheet = _Sheet.of(rows, columns)
    if sheet.shows_positions:
        rows, columns = _positions(rows), _positions(columns)
    figure = new_figure(sheet.width, sheet.height, colours)
    axes = axes_of_cells(figure, sheet.left, sheet.top, keys * sheet.cell, queries * sheet.cell)
    axes.imshow(
        weights, cmap=colours.weight, norm=weight_norm(), aspect="auto", interpolation="nearest"
    )
    bare(axes, colours)
    for key, query in links:
        axes.add_patch(
            Rectangle((key - 0.5, query - 0.5), 1, 1, fill=False, edgecolor=colours.key,
                      linewidth=1.6, zorder=3)
        )  # fmt: skip
    axes.set_xticks(range(keys), columns)
    axes.set_yticks(range(queries), rows)
    _style_axes(axes, sheet, colours, list(letters.families))
    figure.text(
        0.14 / sheet.width, 1 - 0.14 / sheet.height, letters.text(title or ""), fontsize=9.5,
        va="top", color=colours.ink, fontweight="bold", family=list(letters.families),
    )  # fmt: skip
    encoded = isinstance(what, TraceLayer) and what.kind == "encoder"
    _caption(figure, sheet, colours, not_shown(left_out), _ENCODED if encoded else _QUERIES)
    return figure


@dataclass(frozen=True)
class _Sheet:
    """Where things stand, in inches; a cell is as large as a page allows, and its label readable.

    size: of letters, in points.
    slanted: how much of its length the name of a column takes above the matrix.
    shows_positions: whether there are too many tokens to name them.
    """

    cell: float
    size: float
    slanted: float
    left: float
    top: float
    width: float
    height: float
    shows_positions: bool

    @classmethod
    def of(cls, rows: Sequence[str], columns: Sequence[str]) -> _Sheet:
        """The sheet for names of rows and columns."""
        longest = max(len(rows), len(columns))
        cell = float(np.clip(7.5 / max(longest, 1), 0.135, 0.34))
        size = float(np.clip(cell * 72 * 0.62, 5.0, 9.5))
        letter = size / 72 * 0.62
        shows_positions = longest > _MOST_TOKENS
        if shows_positions:
            cell, size, letter = 7.5 / longest, 7.0, 0.06
            rows, columns = _positions(rows), _positions(columns)
        longest_row = max(map(len, rows), default=1)
        longest_column = max(map(len, columns), default=1)
        upright = longest_column <= 2 and cell > 0.15
        longest_column = 1 if upright else longest_column
        slanted = 0.75 if not upright and cell >= 0.19 else 1.0
        left = 0.22 + max(longest_row * letter, 0.55)
        above = longest_column * letter * slanted
        top = 0.62 + above + 0.1
        overhang = above if slanted < 1 else 0.0
        wide = max(len(columns) * cell + max(0.25, overhang), 2.3)
        high = len(rows) * cell
        return cls(cell, size, slanted, left, top, left + wide, top + high + 0.62,
                   shows_positions)  # fmt: skip


def _style_axes(axes: Axes, sheet: _Sheet, colours: Palette, families: list[str]) -> None:
    """Lines between cells, and the names of rows and columns."""
    keys, queries = len(axes.get_xticks()), len(axes.get_yticks())
    if sheet.cell > 0.1:
        # Between cells, not along the edge.
        axes.set_xticks(np.arange(1, keys) - 0.5, minor=True)
        axes.set_yticks(np.arange(1, queries) - 0.5, minor=True)
        axes.grid(which="minor", color=colours.line, linewidth=0.3, alpha=0.5)
        axes.tick_params(which="minor", length=0)
    axes.tick_params(
        length=0, pad=3, labelsize=sheet.size, labelcolor=colours.ink, top=False, labeltop=True,
        labelbottom=False, labelfontfamily=families,
    )  # fmt: skip
    leans = sheet.slanted < 1
    for label in axes.get_xticklabels():
        # Characters stand upright, words lean.
        if len(label.get_text()) > (2 if sheet.cell > 0.15 else 0):
            label.set_rotation(50 if leans else 90)
            label.set_horizontalalignment("left" if leans else "center")
            label.set_verticalalignment("bottom")
            label.set_rotation_mode("anchor" if leans else "default")


def _caption(figure: Figure, sheet: _Sheet, colours: Palette, missing: str, queries: str) -> None:
    """The names of the axes, the scale of the weights, and the mass that is not shown."""
    width, height = sheet.width, sheet.height
    line = 1 - 0.37 / height
    figure.text(0.14 / width, line, queries, fontsize=7.5, va="top", color=colours.query)
    figure.text(max(sheet.left, 1.95) / width, line, "keys →", fontsize=7.5, va="top",
                color=colours.key)  # fmt: skip
    weight_scale(figure, (sheet.left / width, 0.24 / height, 1.6 / width, 0.085 / height), colours)
    if missing:
        figure.text(0.14 / width, 0.04 / height, f"of the kept edges: {missing}", fontsize=6,
                    color=colours.faint)  # fmt: skip


def _positions(names: Sequence[str]) -> list[str]:
    """Labels that leave out all but about a dozen positions; seconds stay seconds.

    >>> [label for label in _positions([f"{i / 50:.2f} s" for i in range(500)]) if label][:3]
    ['0.00 s', '1.00 s', '2.00 s']
    """
    size = len(names)
    step = int(10 ** np.ceil(np.log10(max(size / 12, 1))))
    step = step // 2 if size / step < 6 and step > 1 else step
    timed = all(_SECONDS.fullmatch(name) for name in names)
    return [
        "" if position % step else name if timed else str(position)
        for position, name in enumerate(names)
    ]
