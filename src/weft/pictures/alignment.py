"""`alignment`: who looks at whom, tokens on both axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

from weft.formats.tokens import shown
from weft.formats.trace import TraceLayer
from weft.mechanism.graph import AttentionGraph
from weft.pictures.canvas import (
    axes_of_cells,
    bare,
    new_figure,
    not_shown,
    sized,
    weight_norm,
    weight_scale,
    weights_of,
)
from weft.pictures.fonts import lettering
from weft.pictures.palette import Theme, palette

__all__ = ["alignment"]

#: Tokens beyond which an axis shows positions, every so many, in place of tokens.
_MOST_TOKENS = 120
#: A row is named by the token that its query is made from, not by the one that is written next.
_QUERIES = "queries ↓ (just read or written)"


def alignment(
    what: TraceLayer | AttentionGraph | Tensor | np.ndarray[Any, Any],
    head: int | None = None,
    *,
    query_tokens: Sequence[str] | None = None,
    key_tokens: Sequence[str] | None = None,
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

    # Inches: a cell is as large as leaves the picture within a page, and its label readable.
    cell = float(np.clip(7.5 / max(queries, keys, 1), 0.135, 0.34))
    size = float(np.clip(cell * 72 * 0.62, 5.0, 9.5))
    letter = size / 72 * 0.62
    if max(queries, keys) > _MOST_TOKENS:
        cell = 7.5 / max(queries, keys)
        size, letter = 7.0, 0.06
        rows, columns = _positions(queries), _positions(keys)
    longest_row = max(map(len, rows), default=1)
    longest_column = max(map(len, columns), default=1)
    upright = longest_column <= 2 and cell > 0.15
    longest_column = 1 if upright else longest_column
    slanted = 0.75 if not upright and cell >= 0.19 else 1.0
    left = 0.22 + max(longest_row * letter, 0.55)
    top = 0.62 + longest_column * letter * slanted + 0.1
    overhang = longest_column * letter * slanted if slanted < 1 else 0.0
    wide, high = keys * cell, queries * cell
    width = left + max(wide + max(0.25, overhang), 2.3)
    height = top + high + 0.62
    figure = new_figure(width, height, colours)
    axes = axes_of_cells(figure, left, top, wide, high)
    axes.imshow(
        weights, cmap=colours.weight, norm=weight_norm(), aspect="auto", interpolation="nearest"
    )
    bare(axes, colours)
    if cell > 0.1:
        # Between cells, not along the edge.
        axes.set_xticks(np.arange(1, keys) - 0.5, minor=True)
        axes.set_yticks(np.arange(1, queries) - 0.5, minor=True)
        axes.grid(which="minor", color=colours.line, linewidth=0.3, alpha=0.5)
        axes.tick_params(which="minor", length=0)
    axes.set_xticks(range(keys), columns)
    axes.set_yticks(range(queries), rows)
    axes.tick_params(
        length=0, pad=3, labelsize=size, labelcolor=colours.ink, top=False, labeltop=True,
        labelbottom=False, labelfontfamily=list(letters.families),
    )  # fmt: skip
    for label in axes.get_xticklabels():
        # Characters stand upright, words lean.
        if len(label.get_text()) > (2 if cell > 0.15 else 0):
            label.set_rotation(50 if slanted < 1 else 90)
            label.set_horizontalalignment("left" if slanted < 1 else "center")
            label.set_verticalalignment("bottom")
            label.set_rotation_mode("anchor" if slanted < 1 else "default")
    families = list(letters.families)
    figure.text(
        0.14 / width, 1 - 0.14 / height, letters.text(title or ""), fontsize=9.5, va="top",
        color=colours.ink, fontweight="bold", family=families,
    )  # fmt: skip
    figure.text(
        0.14 / width, 1 - 0.37 / height, _QUERIES, fontsize=7.5, va="top", color=colours.query
    )
    figure.text(max(left, 1.95) / width, 1 - 0.37 / height, "keys →", fontsize=7.5, va="top",
                color=colours.key)  # fmt: skip
    weight_scale(figure, (left / width, 0.24 / height, 1.6 / width, 0.085 / height), colours)
    if not_shown(left_out):
        figure.text(
            0.14 / width, 0.04 / height, f"of the kept edges: {not_shown(left_out)}", fontsize=6,
            color=colours.faint,
        )  # fmt: skip
    return figure


def _positions(size: int) -> list[str]:
    """Labels that leave out all but about a dozen positions."""
    step = int(10 ** np.ceil(np.log10(max(size / 12, 1))))
    step = step // 2 if size / step < 6 and step > 1 else step
    return [str(position) if position % step == 0 else "" for position in range(size)]
