"""`places`: where the places of an image look, over the image itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from headloom.errors import InputError
from headloom.formats.tokens import shown
from headloom.formats.trace import TraceLayer
from headloom.mechanism.grid import Grid
from headloom.studio.pictures.canvas import Array, axes_of_cells, bare, new_figure
from headloom.studio.pictures.fonts import lettering
from headloom.studio.pictures.palette import Palette, Theme, palette

__all__ = ["Look", "looks_of", "places"]

#: The width of an image, and what stands above it and beside it, in inches.
_WIDE, _ABOVE, _MARGIN = 7.2, 0.3, 0.2
#: How much of the ground the ink of the image may take.
_INK = 0.4


@dataclass(frozen=True, eq=False)
class Look:
    """An image, and where some of its places look.

    image: (rows, columns), 0 (the ground) to 1 (ink).
    weights: (rows, columns) of the keys' grid, the mean over these places.
    asked: where they lie, in pixels: first row, first column, rows, columns; None: nowhere, as the
        class token.
    title: above it.
    """

    image: Array
    weights: Array
    asked: tuple[float, float, float, float] | None
    title: str


def looks_of(
    layer: TraceLayer,
    image: Array,
    region: tuple[int, int, int, int] | None,
    title: str,
    head: int = 0,
) -> Look:
    """Where the queries in a region of a layer look, on average.

    Exact where the layer has its queries and keys, or all its edges; else of the kept edges.

    Args:
        layer: of a trace whose positions are places of an image.
        image: as Look has it: of a photograph, its mean over the colours, over 255.
        region: of the queries' grid: first row, first column, rows, columns; None: the tokens
            before the places, as the class token of a vision Transformer.
        title: above it.
        head: which one.

    Raises: InputError: positions that are no places, or no such region.
    """
    queries, keys = (_grid(shown(names)) for names in (layer.query_tokens, layer.key_tokens))
    if region is None:
        if not queries.before:
            raise InputError("places: no token stands before the places of this layer.")
        return Look(image, _mean(layer, head, range(queries.before), keys), None, title)
    row, column, rows, columns = region
    if min(region) < 0 or row + rows > queries.rows or column + columns > queries.columns:
        raise InputError(
            f"places: region {list(region)}; the queries have {queries.rows} rows and "
            f"{queries.columns} columns."
        )
    asked = [
        queries.before + r * queries.columns + c
        for r in range(row, row + rows)
        for c in range(column, column + columns)
    ]
    high, wide = (
        size / cells
        for size, cells in zip(image.shape, (queries.rows, queries.columns), strict=True)
    )
    return Look(
        image,
        _mean(layer, head, asked, keys),
        (row * high, column * wide, rows * high, columns * wide),
        title,
    )


def _mean(layer: TraceLayer, head: int, asked: Sequence[int], keys: Grid) -> Array:
    """The mean weights of some queries, (rows, columns) of the keys' grid."""
    rows, graph = list(asked), layer.graph
    dense: Array = graph.adjacency(head=head)[rows].toarray()
    left_out = graph.count[head, rows] > (graph.keys[head, rows] >= 0).sum(-1)
    matrix = layer.matrix if bool(left_out.any()) else None
    if matrix is not None:
        own = head % layer.heads
        dense = np.concatenate([matrix[own, row : row + 1, :].numpy() for row in rows])
    mean: Array = dense[:, keys.before :].mean(0).reshape(keys.rows, keys.columns)
    return mean


def _grid(names: Sequence[str]) -> Grid:
    """The grid of positions by their names. Raises: InputError: they are no places."""
    patches = [name.removeprefix("patch ").split(",") for name in names if "patch " in name]
    try:
        rows, columns = (max(int(place[axis]) for place in patches) + 1 for axis in (0, 1))
    except (ValueError, IndexError):
        rows = columns = 0
    grid = Grid(rows, columns, len(names) - len(patches))
    # Patches between the tokens of a text are a matter of `headloom.Trace.image_map`.
    last = all("patch " in name for name in names[len(names) - len(patches) :])
    if not patches or grid.length != len(names) or not last:
        raise InputError("places: the positions of this layer are no places of an image.")
    return grid


def places(
    looks: Sequence[Look], *, title: str = "", caption: str = "", theme: Theme = "light"
) -> Figure:
    """Images below each other, each with the weights that some of its places give to the others.

    The weights are the ground, the image the ink on it, the places that look are framed. The scale
    of weights is one for all: to the largest, or to nine times that of an even row where none is so
    large, so that an even row is faint.

    Args: looks: one or more, of images of one size; title: above; caption: below; theme.
    Raises: InputError: none, or images of different sizes.
    """
    sizes = {look.image.shape for look in looks}
    if len(sizes) != 1:
        raise InputError(f"places: images of {len(sizes)} sizes; expected one or more, all alike.")
    ((rows, columns),) = sizes
    colours = palette(theme)
    high = _WIDE * rows / columns
    top = 0.48 if title else 0.12
    height = top + len(looks) * (_ABOVE + high) + 0.62
    figure = new_figure(_WIDE + 2 * _MARGIN, height, colours)
    width, height = figure.get_size_inches()
    families = list(lettering([title, caption, *(look.title for look in looks)]).families)
    most = max(max(float(look.weights.max()), min(9 / look.weights.size, 1)) for look in looks)
    norm = PowerNorm(0.5, 0.0, most)
    if title:
        figure.text(_MARGIN / width, 1 - 0.16 / height, title, fontsize=10, va="top",
                    color=colours.ink, fontweight="bold", family=families)  # fmt: skip
    for number, look in enumerate(looks):
        above = top + number * (_ABOVE + high)
        figure.text(_MARGIN / width, 1 - (above + 0.09) / height, look.title, fontsize=8.5,
                    va="top", color=colours.ink, family=families)  # fmt: skip
        axes = axes_of_cells(figure, _MARGIN, above + _ABOVE, _WIDE, high)
        _draw(axes, look, norm, colours)
        bare(axes, colours)
    _scale(figure, most, norm, colours)
    figure.text(2.1 / width, 0.15 / height, caption, fontsize=7, color=colours.faint,
                family=families)  # fmt: skip
    return figure


def _inks(look: Look, norm: PowerNorm, colours: Palette) -> Array:
    """The colour of the ink on each pixel, (rows, columns, 3): ink or paper, what shows better."""
    light = np.array([0.2126, 0.7152, 0.0722])
    rows, columns = (
        np.arange(pixels) * cells // pixels
        for pixels, cells in zip(look.image.shape, look.weights.shape, strict=True)
    )
    under = colours.weight(norm(look.weights))[np.ix_(rows, columns)][..., :3] @ light
    either = np.array([to_rgb(colours.ink), to_rgb(colours.ground)])
    chosen: Array = either[np.abs(under[..., None] - either @ light).argmax(-1)]
    return chosen


def _draw(axes: Axes, look: Look, norm: PowerNorm, colours: Palette) -> None:
    rows, columns = look.image.shape
    extent = (-0.5, columns - 0.5, rows - 0.5, -0.5)
    axes.imshow(look.weights, cmap=colours.weight, norm=norm, extent=extent, aspect="auto",
                interpolation="nearest")  # fmt: skip
    ink = np.empty((rows, columns, 4))
    ink[..., :3] = _inks(look, norm, colours)
    ink[..., 3] = _INK * np.clip(look.image, 0, 1)
    axes.imshow(ink, extent=extent, aspect="auto", interpolation="nearest")
    if look.asked is None:
        return
    row, column, high, wide = look.asked
    axes.add_patch(
        Rectangle(
            (column - 0.5, row - 0.5), wide, high, fill=False, edgecolor=colours.query,
            linewidth=2.2, clip_on=False, zorder=4,
        )
    )  # fmt: skip


def _scale(figure: Figure, most: float, norm: PowerNorm, colours: Palette) -> None:
    """The legend of the weights, from 0 to the largest."""
    width, height = figure.get_size_inches()
    axes = figure.add_axes((_MARGIN / width, 0.26 / height, 1.6 / width, 0.085 / height))
    along = np.linspace(0, 1, 257)
    values = np.asarray(norm.inverse((along[1:] + along[:-1]) / 2))
    axes.pcolormesh(along, [0, 1], values[None], cmap=colours.weight, norm=norm, rasterized=True)
    bare(axes, colours)
    ticks = [0.0, most / 4, most]
    axes.set_xticks([0.0, 0.5, 1.0], [f"{tick:.2g}" for tick in ticks])
    axes.tick_params(axis="x", length=2, width=0.5, pad=1.5, labelsize=6, color=colours.faint,
                     labelcolor=colours.faint)  # fmt: skip
    axes.set_title(
        "weight, square-root scale", fontsize=6.5, color=colours.faint, pad=3, loc="left"
    )
