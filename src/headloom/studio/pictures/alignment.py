"""`alignment`: the weights of a head as a matrix, with tokens on both axes."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Rectangle

from headloom.errors import InputError
from headloom.formats.tokens import shown
from headloom.formats.trace import TraceLayer
from headloom.studio.pictures.canvas import (
    Onto,
    bare,
    fonts,
    new_figure,
    of_cells,
    room,
    scale_in,
    ticks_of,
    unit,
    weight_colours,
    whole,
    written,
)
from headloom.studio.pictures.masses import Weights, masses_of, not_shown
from headloom.studio.pictures.palette import Palette, Theme, palette

#: Rows and columns up to which each weight is a cell; letters of a token.
_CELLS, _LETTERS = 1_024, 14
#: Units: a matrix at most, a cell at most and at least, and the least one that has its token.
_LONG, _WIDEST, _NARROWEST, _NAMED = 7.5, 0.34, 0.135, 0.06
#: Units around all; below the matrix, for the legend; and its width.
_PAD, _FOOT, _SCALE = 0.14, 0.56, 1.6
#: A name that is a time.
_SECONDS = re.compile(r"[0-9]+\.[0-9]+ s")


def alignment(
    what: Weights,
    head: int | None = None,
    *,
    onto: Onto = None,
    width: float | None = None,
    query_tokens: Sequence[str] | None = None,
    key_tokens: Sequence[str] | None = None,
    links: Collection[tuple[int, int]] = (),
    title: str | None = None,
    theme: Theme | None = None,
    **options: Any,
) -> Axes:
    """The weights of one head, or the mean of all heads, as a matrix with tokens on both axes.

    Rows are queries, who looks; columns are keys, who is looked at. A layer that has its queries
    and keys is shown whole; of kept edges alone, the picture says how much of the mass is not
    shown. With more than 1,024 rows or columns a cell is a block of weights.

    Args:
        what: a layer of a trace, an attention graph or matrix, or weights (heads, queries, keys)
            or (queries, keys).
        head: which one; None: the mean of all.
        onto: axes; a figure, which gets a size of its own, or this width in millimetres, and a
            legend; None: a new figure.
        query_tokens, key_tokens: names of rows and columns; None: those of the layer, or positions.
        links: cells that are outlined, (key, query), as links of words are written.
        title: above it; None: says which layer and head.
        theme: "light" or "dark"; None: as the ground of ``rcParams``.
        options: of `matplotlib.axes.Axes.imshow`.

    Raises: InputError: no such head, or tokens that do not fit.
    """
    masses, colours = masses_of(what, head, _CELLS), palette(theme)
    values, left_out = masses.values.mean(0), float(masses.left_out.mean())
    looking = "← queries"  # turned, the arrow points down
    if isinstance(what, TraceLayer):
        query_tokens = shown(what.query_tokens) if query_tokens is None else query_tokens
        key_tokens = shown(what.key_tokens) if key_tokens is None else key_tokens
        of_head = f"mean of {what.heads} heads" if head is None else f"head {head}"
        title = f"{what.kind} layer {what.index}, {of_head}" if title is None else title
        # A row is named by the token that its query is made from, not by the one written next.
        looking += "" if what.kind == "encoder" else " (just read or written)"
    names = [
        _named(tokens, size, name)
        for tokens, size, name in zip(
            (query_tokens, key_tokens), what.shape[-2:], ("query", "key"), strict=True
        )
    ]
    families, missing = fonts([*names[0], *names[1], title or ""])
    names = [[written(name, missing, _LETTERS) for name in of_axis] for of_axis in names]
    given = isinstance(onto, Axes)
    wanted, _ = room(onto, width)
    axes = onto if isinstance(onto, Axes) else new_figure(onto, colours).add_axes((0, 0, 1, 1))
    high, wide = what.shape[-2:]
    how = {"extent": (-0.5, wide - 0.5, high - 0.5, -0.5), "aspect": "equal" if given else "auto"}
    if values.size:
        axes.imshow(values, **(how | of_cells(options, colours)))
    bare(axes, colours)
    for key, query in links:
        outline = Rectangle((key - 0.5, query - 0.5), 1, 1, fill=False, edgecolor=colours.key,
                            linewidth=1.6 * unit(), zorder=3)  # fmt: skip
        axes.add_patch(outline)
    axes.set_title(written(title or "", missing), color=colours.ink, family=families)
    axes.set_ylabel(looking, color=colours.query)
    axes.set_xlabel("keys →", color=colours.key)
    axes.xaxis.set_label_position("top")
    notes = [f"of the kept edges: {share}"] if (share := not_shown(left_out)) else []
    notes += masses.notes[: masses.sizes != (1, 1)]
    axes.annotate("\n".join(notes), (0, 0), xytext=(0, -3), xycoords="axes fraction", va="top",
                  textcoords="offset points", color=colours.faint, fontsize=6 * unit())  # fmt: skip
    axes.tick_params(length=0, pad=3, labelcolor=colours.ink, labelfontfamily=families, top=False,
                     labeltop=True, labelbottom=False)  # fmt: skip
    if given:
        size = axes.bbox.size / axes.figure.dpi / (wide, high)
        _name(axes, names, (float(size.min()), float(size.min())), colours)
    else:
        _fit(axes, names, None if wanted is None else wanted * unit(), colours)
        scale = weight_colours(options, colours)
        box, inches = axes.get_position(), axes.figure.get_size_inches() / unit()
        place = box.x0, 0.24 / inches[1], min(_SCALE / inches[0], 0.7), 0.085 / inches[1]
        scale_in(axes.figure.add_axes(place), scale, colours, ticks_of(scale))
        axes.figure.sca(axes)
    return axes


def _fit(axes: Axes, names: list[list[str]], width: float | None, colours: Palette) -> None:
    """Give a figure the size that a matrix and all that is written around it need, in inches.

    width: of the figure; None: whatever its cells need.
    """
    figure, (rows, columns) = axes.figure, map(len, names)
    longest = max(rows, columns, 1)
    cell = unit() * float(np.clip(_LONG / longest, _NARROWEST, _WIDEST))
    cell = cell if longest <= _LONG / _NAMED else unit() * _LONG / longest
    beside = np.zeros(4)
    # What is written needs room by the size of cells, which has what is left of the width.
    for _ in range(1 if width is None else 3):
        cell = (
            cell if width is None else max((width - beside[[0, 2]].sum()) / max(columns, 1), 1e-3)
        )
        wide, high = (max(cell * count, 0.3 * unit()) for count in (columns, rows))
        wide = wide if width is None else max(width - beside[[0, 2]].sum(), 0.3 * unit())
        wide, high = whole(wide), whole(high)
        figure.set_size_inches(wide, high, forward=False)
        axes.set_position((0, 0, 1, 1))
        _name(axes, names, (wide / max(columns, 1), high / max(rows, 1)), colours)
        box = axes.get_tightbbox().extents / figure.dpi
        beside = np.maximum([-box[0], -box[1], box[2] - wide, box[3] - high], 0)
        beside = np.ceil((beside + _PAD * unit()) * 200) / 200
        beside[1] += _FOOT * unit()
    left, below, right, above = beside
    size = (
        max(left + wide + right, 2.2 * unit()) if width is None else width,
        below + high + above,
    )
    figure.set_size_inches(*size)
    axes.set_position((left / size[0], below / size[1], wide / size[0], high / size[1]))


def _name(
    axes: Axes, names: list[list[str]], cell: tuple[float, float], colours: Palette
) -> None:  # fmt: skip
    """Write tokens at both axes, or positions where cells of a size in inches have no room."""
    across, down = (size / unit() for size in cell)
    grid = min(across, down) > 0.1
    for axis, labels, size in ((axes.yaxis, names[0], down), (axes.xaxis, names[1], across)):
        crowded = size < _NAMED
        labels = _positions(labels) if crowded else labels
        points = FontProperties(
            size=rcParams[f"{axis.axis_name}tick.labelsize"]
        ).get_size_in_points()
        least = 0.7 if crowded else float(np.clip(size * unit() * 72 * 0.62 / points, 0.5, 0.95))
        axis.set_ticks(range(len(labels)), labels, fontsize=least * points)
        # Lines between cells, not along the edge.
        axis.set_ticks(np.arange(1, len(labels) if grid else 1) - 0.5, minor=True)
    if grid:
        axes.grid(which="minor", color=colours.line, linewidth=0.3, alpha=0.5)
        axes.tick_params(which="minor", length=0)
    longest = max(map(len, names[1]), default=0)
    # Characters stand upright, words lean.
    leans = across >= 0.19
    for label in axes.get_xticklabels():
        if longest > 2 or across <= 0.15:
            label.set(rotation=50 if leans else 90, ha="left" if leans else "center", va="bottom",
                      rotation_mode="anchor" if leans else "default")  # fmt: skip


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
