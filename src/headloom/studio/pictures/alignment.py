"""`alignment`: the weights of a head as a matrix, with tokens on both axes."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from headloom.errors import InputError
from headloom.formats.tokens import shown, visible
from headloom.formats.trace import TraceLayer
from headloom.mechanism.graph import AttentionGraph
from headloom.studio.pictures.canvas import Array, Sheet, not_shown, weight_norm, weights_of
from headloom.studio.pictures.palette import Theme, palette

#: Tokens beyond which an axis shows positions, every so many, in place of tokens; their letters.
_MOST_TOKENS, _LETTERS = 120, 14
#: A name that is a time.
_SECONDS = re.compile(r"[0-9]+\.[0-9]+ s")


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
    weights, left_out = weights_of(what, head)
    # A row is named by the token that its query is made from, not by the one written next.
    looking = "queries ↓ (just read or written)"
    if isinstance(what, TraceLayer):
        query_tokens = shown(what.query_tokens) if query_tokens is None else query_tokens
        key_tokens = shown(what.key_tokens) if key_tokens is None else key_tokens
        of_head = f"mean of {what.heads} heads" if head is None else f"head {head}"
        title = f"{what.kind} layer {what.index}, {of_head}" if title is None else title
        looking = "queries ↓" if what.kind == "encoder" else looking
    rows, columns = (
        _named(tokens, size, name)
        for tokens, size, name in zip(
            (query_tokens, key_tokens), weights.shape, ("query", "key"), strict=True
        )
    )
    longest = max(weights.shape)
    cell = float(np.clip(7.5 / max(longest, 1), 0.135, 0.34))
    size = float(np.clip(cell * 72 * 0.62, 5.0, 9.5))
    letter = size / 72 * 0.62
    if longest > _MOST_TOKENS:
        cell, size, letter = 7.5 / longest, 7.0, 0.06
        rows, columns = _positions(rows), _positions(columns)
    letters = [max((len(visible(name, _LETTERS)) if name else 0 for name in names), default=1)
               for names in (rows, columns)]  # fmt: skip
    upright = letters[1] <= 2 and cell > 0.15
    leans = not upright and cell >= 0.19
    left = 0.22 + max(letters[0] * letter, 0.55)
    #: What the names of columns take above the matrix, and right of it where they lean.
    above = (1 if upright else letters[1]) * letter * (0.75 if leans else 1)
    top = 0.62 + above + 0.1
    wide, high = len(columns) * cell, len(rows) * cell
    width = left + max(wide + max(0.25, above if leans else 0), 2.3)
    sheet = Sheet(width, top + high + 0.62, palette(theme), [*rows, *columns, title or ""])
    colours = sheet.colours
    axes = sheet.matrix(left, top, wide, high, weights, colours.weight, weight_norm())
    for key, query in links:
        outline = Rectangle(
            (key - 0.5, query - 0.5),
            1,
            1,
            fill=False,
            edgecolor=colours.key,
            linewidth=1.6,
            zorder=3,
        )
        axes.add_patch(outline)
    axes.set_xticks(range(len(columns)), [sheet.written(name, _LETTERS) for name in columns])
    axes.set_yticks(range(len(rows)), [sheet.written(name, _LETTERS) for name in rows])
    if cell > 0.1:
        # Lines between cells, not along the edge.
        axes.set_xticks(np.arange(1, len(columns)) - 0.5, minor=True)
        axes.set_yticks(np.arange(1, len(rows)) - 0.5, minor=True)
        axes.grid(which="minor", color=colours.line, linewidth=0.3, alpha=0.5)
        axes.tick_params(which="minor", length=0)
    axes.tick_params(
        length=0, pad=3, labelsize=size, labelcolor=colours.ink, top=False, labeltop=True,
        labelbottom=False, labelfontfamily=sheet.families,
    )  # fmt: skip
    for label in axes.get_xticklabels():
        # Characters stand upright, words lean.
        if len(label.get_text()) > (2 if cell > 0.15 else 0):
            label.set(rotation=50 if leans else 90, ha="left" if leans else "center", va="bottom",
                      rotation_mode="anchor" if leans else "default")  # fmt: skip
    sheet.title(title or "", 9.5)
    sheet.say(0.14, 0.37, looking, 7.5, colours.query)
    sheet.say(max(left, 1.95), 0.37, "keys →", 7.5, colours.key)
    sheet.weight_scale(left, 0.24)
    if missing := not_shown(left_out):
        missing = f"of the kept edges: {missing}"
        sheet.say(0.14, sheet.height - 0.04, missing, 6, va="baseline")
    return sheet.figure


def _named(tokens: Sequence[str] | None, size: int, what: str) -> list[str]:
    """Tokens for an axis, or positions where there are none."""
    if tokens is None:
        return [str(position) for position in range(size)]
    if len(tokens) != size:
        raise InputError(f"picture: {len(tokens)} {what} tokens for {size} {what}.")
    return [token or "∅" for token in tokens]


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
