"""Pictures over an image: `word_map`, what a word looks at; `places`, where its places look."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, PowerNorm, to_rgb
from matplotlib.patches import Rectangle

from headloom.analysis.image_map import ImageMap
from headloom.errors import InputError
from headloom.formats.tokens import shown
from headloom.formats.trace import TraceLayer
from headloom.mechanism.grid import Grid
from headloom.studio.pictures.canvas import Array, Page, picture, weight_norm
from headloom.studio.pictures.masses import masses_of
from headloom.studio.pictures.palette import Palette

#: The longest side of an image under a map, its width under looks, what stands beside it, and the
#: narrowest figure that has room for its title and its scale, in inches.
_LONG, _WIDE, _MARGIN, _NARROW = 6.0, 7.2, 0.2, 4.2
#: How much of the colours over a picture is its own light and dark; and how far the ramp goes
#: there, of which the rest would hide it. How much of the ground the ink of an image may take.
_KEPT, _REACH, _INK = 0.45, 0.62, 0.4
#: Times the mean that the colours of a map reach at least: an even row has the middle colour.
_REACHED = 4.0


@picture
def word_map(page: Page, seen: ImageMap) -> Axes:
    """The map of a word over an image: the weights in colour, the picture in their light and dark.

    The colour of a pixel is how many times its weight is that of an even spread of the row's mass
    over the picture, so that 1 is the mean of all pixels. The strongest colour is that of the
    largest weight, or of 4 where none is that far above the mean.
    """
    (rows, columns), image = seen.weights.shape, seen.picture
    weights, colours = seen.weights.numpy(), page.colours
    title, head = f"What “{seen.word}” looks at", f"head {seen.head}"
    caption = f"{seen.layer}, {'the mean of all heads' if seen.head is None else head}: "
    caption += f"{seen.mass:.1%} of its weight is on the image{seen.outside_in_words}"
    total = float(weights.sum())
    times = weights * (weights.size / total) if total > 0 else weights
    most = max(float(times.max()), _REACHED)
    norm, light = weight_norm(most), None if image is None else _light(image)
    cells = _coloured(np.asarray(norm(times)), light, colours)
    page.letters([title, caption])
    if page.given is not None:
        page.title(title)
        page.given.set_xlabel(page.written(caption), color=colours.faint, family=page.families)
        page.given.imshow(cells, interpolation="nearest")
        page.bare(page.given)
        return page.given
    longest = page.fits(_LONG, (2 * _MARGIN, columns / max(rows, columns)))
    high, wide = (side * longest / max(rows, columns) for side in (rows, columns))
    page.lay(page.room[0] or max(wide, _NARROW) + 2 * _MARGIN, 0.62 + high + 0.62)
    page.title(title, caption)
    axes = page.matrix(_MARGIN, 0.62, wide, high, cells)
    mean = None if light is None else np.full(256, light.mean())
    ramp = ListedColormap(_coloured(np.linspace(0, 1, 256), mean, colours))
    ticks = [0.0, 1.0, *([most / 4] if most > 10 else []), most]
    page.scale(
        _MARGIN, 0.24, min(2.4, page.width - 2 * _MARGIN), {"norm": norm, "cmap": ramp},
        "weight of a pixel, in times the mean of all pixels (square roots)",
        {tick: f"{tick:.3g}" for tick in ticks}, high=0.1, size=6.5,
    )  # fmt: skip
    return axes


def _light(image: Array) -> Array:
    """Luma of ITU-R 601-2, (rows, columns)."""
    light = image if image.ndim == 2 else image[..., :3] @ np.array([0.299, 0.587, 0.114])
    return np.clip(light, 0, 1)


def _coloured(values: Array, light: Array | None, colours: Palette) -> Array:
    """Colours of values from 0 to 1, with the light of an image where there is one."""
    if light is None:
        return np.asarray(colours.weight(values))[..., :3]
    cells = np.asarray(colours.weight(_REACH * values))[..., :3]
    return (1 - _KEPT) * cells + _KEPT * light[..., None]


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
    asked, numbers = None, [*range(queries.before)]
    if region is not None:
        row, column, rows, columns = region
        cells = np.arange(queries.rows * queries.columns).reshape(queries.rows, queries.columns)
        chosen = cells[row : row + rows, column : column + columns]
        if min(region) < 0 or chosen.shape != (rows, columns):
            raise InputError(
                f"places: region {list(region)}; the queries have {queries.rows} rows and "
                f"{queries.columns} columns."
            )
        numbers = (queries.before + chosen.ravel()).tolist()
        high, wide = image.shape[0] / queries.rows, image.shape[1] / queries.columns
        asked = (row * high, column * wide, rows * high, columns * wide)
    if not numbers:
        raise InputError("places: no token stands before the places of this layer.")
    masses = masses_of(layer, head, max(layer.shape)).values[0]
    mean: Array = masses[numbers, keys.before :].mean(0)
    return Look(image, mean.reshape(keys.rows, keys.columns), asked, title)


def _grid(names: Sequence[str]) -> Grid:
    """The grid of positions by their names, "patch 2,5". Raises: InputError: they are no places."""
    patches = [name.removeprefix("patch ").split(",") for name in names if "patch " in name]
    try:
        rows, columns = (max(int(place[axis]) for place in patches) + 1 for axis in (0, 1))
    except (ValueError, IndexError):
        rows = columns = 0
    before = len(names) - len(patches)
    # Patches between the tokens of a text are a matter of `headloom.Trace.image_map`.
    last = all("patch " in name for name in names[before:])
    if not patches or rows * columns != len(patches) or not last:
        raise InputError("places: the positions of this layer are no places of an image.")
    return Grid(rows, columns, before)


@picture
def places(page: Page, looks: Sequence[Look], *, title: str = "", caption: str = "") -> Array:
    """Images below each other, each with the weights that some of its places give to the others.

    The weights are the ground, the image the ink on it, the places that look are framed. The scale
    of weights is one for all: to the largest, or to nine times that of an even row where none is so
    large, so that an even row is faint.

    Args: looks: one or more, of images of one size; title: above; caption: below.
    Returns: the axes of each.
    """
    rows, columns = looks[0].image.shape
    wide = page.fits(_WIDE, (2 * _MARGIN, 1))
    high, top = wide * rows / columns, 0.48 if title else 0.12
    page.letters([title, caption, *(look.title for look in looks)])
    page.lay(wide + 2 * _MARGIN, top + len(looks) * (0.3 + high) + 0.62)
    page.title(title)
    colours, drawn = page.colours, []
    most = max(max(float(look.weights.max()), min(9 / look.weights.size, 1)) for look in looks)
    norm = weight_norm(most)
    how: dict[str, Any] = {"norm": norm, "cmap": colours.weight}
    extent = (-0.5, columns - 0.5, rows - 0.5, -0.5)
    for look in looks:
        page.say(_MARGIN, top + 0.09, look.title, 8.5, colours.ink)
        axes = page.matrix(_MARGIN, top + 0.3, wide, high, look.weights, extent=extent, **how)
        ink = np.dstack((_inks(look, norm, colours), _INK * np.clip(look.image, 0, 1)))
        axes.imshow(ink, extent=extent, aspect="auto", interpolation="nearest")
        if look.asked is not None:
            row, column, tall, across = look.asked
            frame = Rectangle((column - 0.5, row - 0.5), across, tall, fill=False, linewidth=2.2,
                              edgecolor=colours.query, clip_on=False, zorder=4)  # fmt: skip
            axes.add_patch(frame)
        drawn.append(axes)
        top += 0.3 + high
    ticks = {0.0: "0", most / 4: f"{most / 4:.2g}", most: f"{most:.2g}"}
    page.scale(_MARGIN, 0.26, 1.6, how, "weight, square-root scale", ticks)
    page.say(2.1, page.height - 0.15, caption, va="baseline")
    return np.array(drawn)


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
