"""`alignment`: weights of a head as a matrix, with tokens on both axes."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from headloom.analysis.alignment.align import Alignment
from headloom.analysis.compare import Comparison
from headloom.errors import InputError
from headloom.formats.tokens import shown
from headloom.formats.trace import TraceLayer
from headloom.mechanism.shapes import place_of
from headloom.studio.pictures.canvas import Page, picture, whole
from headloom.studio.pictures.masses import Weights, masses_of, not_shown
from headloom.studio.pictures.palette import palette

#: Rows and columns up to which each weight is a cell; letters of a token.
_CELLS, _LETTERS = 1_024, 14
#: Units: a matrix at most; a cell at most, at least, and the smallest one with a label.
_LONG, _WIDEST, _NARROWEST, _NAMED = 7.5, 0.34, 0.135, 0.06
#: Units: margin; space below the matrix for the legend; its width; minimal width of the picture.
_PAD, _FOOT, _SCALE, _LEAST = 0.14, 0.56, 1.6, 2.2
#: A label that is a time.
_SECONDS = re.compile(r"[0-9]+\.[0-9]+ s")


@picture
def alignment(
    page: Page, what: Weights, head: int | None = None, *,
    query_tokens: Sequence[str] | None = None, key_tokens: Sequence[str] | None = None,
    links: Collection[tuple[int, int]] = (), title: str | None = None, scale: str = "weight",
    **imshow: Any,
) -> Axes:  # fmt: skip
    """Draw the weights of one head, or the mean of all: see `headloom.TraceLayer.plot`.

    what: a layer, a graph, a matrix, or weights: (heads, queries, keys) or (queries, keys).
    query_tokens, key_tokens: labels of rows and columns; None: of the layer, or positions.
    links: cells to outline, (key, query), as in word alignments.
    scale: title of the legend.
    """
    masses, colours = masses_of(what, head, _CELLS), page.colours
    looking = "← queries"  # turned, the arrow points down
    if isinstance(what, TraceLayer):
        query_tokens = shown(what.query_tokens) if query_tokens is None else query_tokens
        key_tokens = shown(what.key_tokens) if key_tokens is None else key_tokens
        of_head = f"mean of {what.heads} heads" if head is None else f"head {head}"
        title = f"{what.kind} layer {what.index}, {of_head}" if title is None else title
        # A row is labelled by its query's token, not by the next one.
        looking += "" if what.kind == "encoder" else " (just read or written)"
    high, wide = what.shape[-2:]
    rows, columns = _named(query_tokens, high, "query"), _named(key_tokens, wide, "key")
    page.letters([*rows, *columns, title or ""])
    names = [[page.written(name, _LETTERS) for name in axis] for axis in (rows, columns)]
    axes = page.given or page.figure.add_axes((0, 0, 1, 1))
    how: dict[str, Any] = {"extent": (-0.5, wide - 0.5, high - 0.5, -0.5)}
    how |= {"aspect": "auto" if page.given is None else "equal"} | page.weights(imshow)
    if masses.values.size:
        axes.imshow(masses.values.mean(0), **how)
    page.bare(axes)
    for key, query in links:
        outline = Rectangle((key - 0.5, query - 0.5), 1, 1, fill=False, edgecolor=colours.key,
                            linewidth=1.6 * page.unit, zorder=3)  # fmt: skip
        axes.add_patch(outline)
    axes.set_title(page.written(title or ""), color=colours.ink, family=page.families)
    axes.set_ylabel(looking, color=colours.query)
    axes.set_xlabel("keys →", color=colours.key)
    axes.xaxis.set_label_position("top")
    share = not_shown(float(masses.left_out.mean()))
    notes = [f"of the kept edges: {share}"] * bool(share) + masses.notes[: masses.sizes != (1, 1)]
    axes.annotate("\n".join(notes), (0, 0), xytext=(0, -3), xycoords="axes fraction", va="top",
                  textcoords="offset points", color=colours.faint,
                  fontsize=6 * page.unit)  # fmt: skip
    axes.tick_params(length=0, pad=3, labelcolor=colours.ink, labelfontfamily=page.families,
                     top=False, labeltop=True, labelbottom=False)  # fmt: skip
    if page.given is None:
        _fit(page, axes, names)
        page.scale(axes.get_position().x0 * page.width, 0.24, min(_SCALE, 0.7 * page.width), how,
                   scale)  # fmt: skip
        page.figure.sca(axes)
    else:
        cell = float((page.inches(axes) / (max(wide, 1), max(high, 1))).min())
        _name(page, axes, names, cell, cell)
    return axes


def links(result: Alignment, sentence: int = 0, **options: Any) -> Axes:
    """Draw the weights between the words of a sentence pair, with its links outlined."""
    sentence = place_of("alignment", "plot", "sentence", sentence, len(result.words))
    words = result.words[sentence]
    title = f"links of words by head{'s' * (len(result.heads) > 1)} "
    title += ", ".join(map(str, result.heads))
    how = {"query_tokens": words.target, "key_tokens": words.source, "title": title,
           "links": result.links[sentence]}  # fmt: skip
    return alignment(words.weights[0], **(how | options))


def changes(result: Comparison, **options: Any) -> Axes:
    """Draw the change of each head between two traces: layers are rows, heads columns.

    A cell is the share of a row's mass that is on other keys in the second trace, averaged over
    queries; with kept edges only, a lower bound. options: see `alignment`.
    """
    table = result.heads.pivot(index="layer", columns="head", values="distance")
    least = "" if result.heads["exact"].all() else ", at least"
    how = {"query_tokens": [*map(str, table.index)], "key_tokens": [*map(str, table)],
           "title": f"Heads that changed, by up to {result.most:.0%}",
           "scale": f"share of mass on other keys{least}"}  # fmt: skip
    axes = alignment(table.to_numpy(), **(how | options))
    axes.set_xlabel("head", color=palette().faint)
    axes.set_ylabel("layer", color=palette().faint)
    return axes


def _fit(page: Page, axes: Axes, names: list[list[str]]) -> None:
    """Set the size of the figure to fit a matrix and its labels."""
    (rows, columns), unit = (max(len(of_axis), 1) for of_axis in names), page.unit
    width, longest = page.room[0], max(rows, columns)
    cell = unit * float(np.clip(_LONG / longest, _NARROWEST, _WIDEST))
    cell = cell if longest <= _LONG / _NAMED else unit * _LONG / longest
    beside = np.zeros(4)
    # The size of labels depends on the cells, whose width is the rest: iterate.
    for _ in range(1 if width is None else 3):
        cell = cell if width is None else (width * unit - beside[[0, 2]].sum()) / columns
        wide, high = (whole(max(cell * count, 0.3 * unit)) for count in (columns, rows))
        page.figure.set_size_inches(wide, high, forward=False)
        axes.set_position((0, 0, 1, 1))
        _name(page, axes, names, wide / columns, high / rows)
        box: Any = axes.get_tightbbox()
        left, below, right, above = box.extents / page.figure.dpi
        beside = np.maximum([-left, -below, right - wide, above - high], 0) + _PAD * unit
        beside[1] += _FOOT * unit
        beside = np.ceil(200 * beside) / 200
    left, below, right, above = beside
    wanted = max(left + wide + right, _LEAST * unit) / unit if width is None else width
    page.lay(wanted, (below + high + above) / unit)
    size = page.figure.get_size_inches()
    axes.set_position((left / size[0], below / size[1], wide / size[0], high / size[1]))


def _name(page: Page, axes: Axes, names: list[list[str]], wide: float, high: float) -> None:
    """Label both axes with tokens, or with a dozen positions if cells (in inches) are too small."""
    grid = min(wide, high) > 0.1 * page.unit
    for axis, labels, size in ((axes.yaxis, names[0], high), (axes.xaxis, names[1], wide)):
        crowded, standard = size < _NAMED * page.unit, rcParams["ytick.labelsize"]
        points = FontProperties(size=standard).get_size_in_points()
        part = 0.7 if crowded else float(np.clip(size * 72 * 0.62 / points, 0.5, 0.95))
        places = np.arange(len(labels))
        if crowded:
            ticks = MaxNLocator(12, integer=True).tick_values(0, len(labels) - 1)
            places = np.intersect1d(np.array(ticks, dtype=int), places)
            if not all(map(_SECONDS.fullmatch, labels)):
                labels = [str(place) for place in range(len(labels))]
        axis.set_ticks(places, [labels[place] for place in places], fontsize=part * points)
        # Lines between cells, not along the edge.
        axis.set_ticks(np.arange(1, len(labels) if grid else 1) - 0.5, minor=True)
    if grid:
        axes.grid(which="minor", color=page.colours.line, linewidth=0.3, alpha=0.5)
        axes.tick_params(which="minor", length=0)
    # Characters stand upright, words lean.
    leans = wide >= 0.19 * page.unit
    if max(map(len, names[1]), default=0) > 2 or wide <= 0.15 * page.unit:
        for label in axes.get_xticklabels():
            label.set(rotation=50 if leans else 90, ha="left" if leans else "center", va="bottom",
                      rotation_mode="anchor" if leans else "default")  # fmt: skip


def _named(tokens: Sequence[str] | None, size: int, what: str) -> list[str]:
    """Return the labels of an axis: tokens, or positions without tokens."""
    if tokens is None:
        return [str(position) for position in range(size)]
    if len(tokens) != size:
        raise InputError(f"picture: {len(tokens)} {what} tokens for {size} {what}.")
    return [token or "∅" for token in tokens]
