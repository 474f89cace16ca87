"""`word_map`: what a word looks at in an image, over the image itself."""

from __future__ import annotations

import numpy as np
from matplotlib.colors import LinearSegmentedColormap, PowerNorm
from matplotlib.figure import Figure

from headloom.analysis.image_map import ImageMap
from headloom.errors import InputError
from headloom.studio.pictures.canvas import Array, axes_of_cells, bare, new_figure
from headloom.studio.pictures.fonts import lettering
from headloom.studio.pictures.palette import Palette, Theme, palette

__all__ = ["word_map"]

#: The longest side of an image, what stands beside and above it, and below, in inches.
_LONG, _MARGIN, _ABOVE, _BELOW = 6.0, 0.2, 0.62, 0.62
#: The narrowest figure that has room for its title and its scale.
_NARROW = 4.2
#: How much of the colours over a picture is its own light and dark; and how far the ramp goes
#: there, of which the rest would hide it.
_KEPT, _REACH = 0.45, 0.62
#: Times the mean that the colours reach at least: an even row has the middle colour everywhere.
_REACHED = 4.0


def word_map(
    seen: ImageMap,
    image: Array | None = None,
    *,
    title: str = "",
    caption: str = "",
    theme: Theme = "light",
) -> Figure:
    """The map of a word over an image: the weights in colour, the picture in their light and dark.

    The colour of a pixel is how many times its weight is that of an even spread of the row's mass
    over the picture, so that 1 is the mean of all pixels. The strongest colour is that of the
    largest weight, or of 4 where none is that far above the mean.

    Args:
        seen: of `headloom.Trace.image_map`.
        image: (rows, columns) or (rows, columns, 3), 0 (black) to 1, of the same pixels; None:
            the weights alone.
        title: above; caption: below it; theme.

    Raises: InputError: an image of another size.
    """
    rows, columns = seen.weights.shape
    weights = seen.weights.numpy()
    if image is not None and image.shape[:2] != (rows, columns):
        raise InputError(
            f"word_map: the image has {image.shape[0]} x {image.shape[1]} pixels, the map {rows} x "
            f"{columns}. Ask for the map with the size of the image: size=(rows, columns)."
        )
    total = float(weights.sum())
    times = weights * (weights.size / total) if total > 0 else weights
    norm = PowerNorm(0.5, 0.0, max(float(times.max()), _REACHED))
    colours = palette(theme)
    scale = _LONG / max(rows, columns)
    high, wide = rows * scale, columns * scale
    inches = max(wide, _NARROW) + 2 * _MARGIN
    figure = new_figure(inches, _ABOVE + high + _BELOW, colours)
    width, height = figure.get_size_inches()
    families = list(lettering([title, caption]).families)
    figure.text(_MARGIN / width, 1 - 0.16 / height, title, fontsize=10, va="top",
                color=colours.ink, fontweight="bold", family=families)  # fmt: skip
    figure.text(_MARGIN / width, 1 - 0.39 / height, caption, fontsize=7.5, va="top",
                color=colours.faint, family=families)  # fmt: skip
    axes = axes_of_cells(figure, _MARGIN, _ABOVE, wide, high)
    light = None if image is None else _light(image)
    cells = _coloured(np.asarray(norm(times)), light, colours)
    axes.imshow(cells, aspect="auto", interpolation="nearest")
    bare(axes, colours)
    _scale(figure, norm, colours, None if light is None else float(light.mean()))
    return figure


def _light(image: Array) -> Array:
    """Luma of ITU-R 601-2, (rows, columns)."""
    if image.ndim == 2:
        return np.clip(image, 0, 1)
    light: Array = image[..., :3] @ np.array([0.299, 0.587, 0.114])
    return np.clip(light, 0, 1)


def _coloured(values: Array, light: Array | None, colours: Palette) -> Array:
    """Colours of values from 0 to 1, with the light of an image where there is one."""
    if light is None:
        return np.asarray(colours.weight(values))[..., :3]
    cells = np.asarray(colours.weight(_REACH * values))[..., :3]
    return (1 - _KEPT) * cells + _KEPT * light[..., None]


def _scale(figure: Figure, norm: PowerNorm, colours: Palette, light: float | None) -> None:
    """The legend of the colours, as they are over the mean light of the image."""
    width, height = figure.get_size_inches()
    axes = figure.add_axes((_MARGIN / width, 0.24 / height, 2.4 / width, 0.1 / height))
    along = np.linspace(0, 1, 257)
    middles = (along[1:] + along[:-1]) / 2
    cells = _coloured(middles, None if light is None else np.full(256, light), colours)
    shown = LinearSegmentedColormap.from_list("headloom-shaded", cells, 256)
    axes.pcolormesh(along, [0, 1], middles[None], cmap=shown, vmin=0, vmax=1, rasterized=True)
    bare(axes, colours)
    most = float(norm.vmax or _REACHED)
    ticks = [0.0, 1.0, *([most / 4] if most > 10 else []), most]
    axes.set_xticks([float(norm(tick)) for tick in ticks], [f"{tick:.3g}" for tick in ticks])
    axes.tick_params(axis="x", length=2, width=0.5, pad=1.5, labelsize=6.5, color=colours.faint,
                     labelcolor=colours.faint)  # fmt: skip
    axes.set_title("weight of a pixel, in times the mean of all pixels (square roots)", fontsize=7,
                   color=colours.faint, pad=3, loc="left")  # fmt: skip
